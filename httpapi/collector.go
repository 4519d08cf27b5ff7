package httpapi

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/fsm"
	"fencepost/httpapi/wire"
)

// collector tells the figures of the state as this node has applied it, at the
// time of the scrape. No name, key or holder ever becomes a label.
type collector struct {
	node Node

	hasLeader, isLeader, index, floor                    *prometheus.Desc
	held, waiters, keys, watchers                        *prometheus.Desc
	grants, renewals, expirations, releases, staleWrites *prometheus.Desc
	dataBytes                                            *prometheus.Desc
}

func newCollector(node Node) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("fencepost_"+name, help, labels, nil)
	}
	return &collector{
		node:        node,
		hasLeader:   desc("has_leader", "1 if this node knows a leader."),
		isLeader:    desc("is_leader", "1 if this node leads."),
		index:       desc("index", "Index of the last entry applied here."),
		floor:       desc("floor", "Tokens at or below it are refused on every key."),
		held:        desc("leases_held", "Leases that are held."),
		waiters:     desc("waiters", "Requests queued for a lease."),
		keys:        desc("keys", "Guarded keys with a value."),
		watchers:    desc("watchers", "Watches served by this node."),
		grants:      desc("grants_total", "Leases granted since the cluster was made."),
		renewals:    desc("renewals_total", "Leases renewed since the cluster was made."),
		expirations: desc("expirations_total", "Leases ended by the clock since the cluster was made."),
		releases:    desc("releases_total", "Leases released since the cluster was made."),
		staleWrites: desc("stale_writes_refused_total", "Guarded writes refused for their token since the cluster was made.", "reason"),
		dataBytes:   desc("data_bytes", "Bytes of keys, values and watermarks that count against the quota."),
	}
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{
		c.hasLeader, c.isLeader, c.index, c.floor, c.held, c.waiters, c.keys, c.watchers,
		c.grants, c.renewals, c.expirations, c.releases, c.staleWrites, c.dataBytes,
	} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	status := c.node.Status()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	flag := func(d *prometheus.Desc, v bool) {
		if v {
			gauge(d, 1)
		} else {
			gauge(d, 0)
		}
	}
	flag(c.hasLeader, status.IsLeader || status.LeaderURL != "")
	flag(c.isLeader, status.IsLeader)
	gauge(c.watchers, float64(status.Watchers))

	var counts fsm.Counts
	var totals fsm.Totals
	var floor, index uint64
	_, err := c.node.Read(context.Background(), true, func(s *fsm.State) {
		counts, totals, floor, index = s.Counts(), s.Totals(), s.Floor(), s.Index()
	})
	if err != nil {
		return // the rest is missing from the scrape rather than wrong
	}
	gauge(c.index, float64(index))
	gauge(c.floor, float64(floor))
	gauge(c.held, float64(counts.Held))
	gauge(c.waiters, float64(counts.Waiters))
	gauge(c.keys, float64(counts.Keys))
	gauge(c.dataBytes, float64(counts.DataBytes))
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	counter(c.grants, totals.Grants)
	counter(c.renewals, totals.Renewals)
	counter(c.expirations, totals.Expirations)
	counter(c.releases, totals.Releases)
	counter(c.staleWrites, totals.BelowWatermark, wire.ReasonBelowWatermark)
	counter(c.staleWrites, totals.NewerIssued, wire.ReasonNewerIssued)
	counter(c.staleWrites, totals.NotOnRecord, wire.ReasonNotOnRecord)
	counter(c.staleWrites, totals.WrongLease, wire.ReasonWrongLease)
	counter(c.staleWrites, totals.NotHeld, wire.ReasonNotHeld)
	counter(c.staleWrites, totals.NotIssued, string(wire.CodeTokenNotIssued))
}
