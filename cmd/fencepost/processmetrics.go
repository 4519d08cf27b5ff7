package main

import (
	"github.com/hashicorp/go-hclog"
	metrics "github.com/hashicorp/go-metrics/compat"
	sink "github.com/hashicorp/go-metrics/compat/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// processMetrics are what is measured once for a process: what Raft and its log
// store measure, and Go's and the kernel's view of it, under their usual names.
func processMetrics(log hclog.Logger) prometheus.Gatherer {
	process := prometheus.NewRegistry()
	process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return prometheus.Gatherers{process, raftMetrics(log)}
}

// raftMetrics routes what Raft and its log store measure, which goes to a
// global sink, to a registry. All nodes in one process share them. It must go
// through the compat packages: only those reach the libraries whichever
// build tags are set.
func raftMetrics(log hclog.Logger) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	s, err := sink.NewPrometheusSinkFrom(sink.PrometheusOpts{Registerer: registry})
	if err == nil {
		c := metrics.DefaultConfig("fencepost")
		c.EnableHostname, c.EnableRuntimeMetrics = false, false
		// Samples of every single entry, on every node: they cost more than they tell.
		c.BlockedPrefixes = []string{"fencepost.raft.fsm.apply", "fencepost.raft.boltdb.logSize"}
		_, err = metrics.NewGlobal(c, s)
	}
	if err != nil {
		log.Warn("Raft's own metrics are not served", "error", err)
	}
	return registry
}
