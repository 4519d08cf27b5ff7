package cluster

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what only the node can count; what the state knows is read from
// the state by whoever serves it.
type metrics struct {
	registry      *prometheus.Registry
	commit        prometheus.Histogram
	append        prometheus.Histogram
	leaderChanges prometheus.Counter
	pauses        prometheus.Counter

	diskFull        prometheus.Gauge
	snapshotsMissed prometheus.Counter
	logEntries      prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fencepost_commit_seconds", Help: "Time from a proposal to its outcome, on the leader.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5},
		}),
		append: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fencepost_log_append_seconds", Help: "Time to make entries durable in this node's log, the disk's flush included.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5},
		}),
		leaderChanges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_leader_changes_total", Help: "Leaders that this node has seen since it started.",
		}),
		pauses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_pauses_total", Help: "Times that this process stood still for as long as the leader lease.",
		}),
		diskFull: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fencepost_disk_full", Help: "1 while this node finds no room on its disk for the log.",
		}),
		snapshotsMissed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_snapshots_failed_total", Help: "Snapshots that this node could not take; until it can, its log grows.",
		}),
		logEntries: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fencepost_log_entries", Help: "Entries in this node's log.",
		}),
	}
	m.registry.MustRegister(m.commit, m.append, m.leaderChanges, m.pauses, m.diskFull, m.snapshotsMissed, m.logEntries)
	return m
}

// Metrics gathers what this node counts.
func (n *Node) Metrics() prometheus.Gatherer { return n.metrics.registry }
