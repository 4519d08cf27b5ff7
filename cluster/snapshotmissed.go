package cluster

import (
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// A snapshot that failed is tried again, each time after twice as long: each
	// try writes the whole state, onto a disk that may be full.
	snapshotRetry    = 5 * time.Second
	snapshotRetryMax = time.Minute
	// missedRemind is how often it is said that there still is none.
	missedRemind = 10 * time.Minute
)

// missedSnapshots are the tries since the last snapshot that was taken.
type missedSnapshots struct {
	count      int
	next, told time.Time
	wait       time.Duration
}

// again says whether it is time for another try.
func (m *missedSnapshots) again(now time.Time) bool { return !now.Before(m.next) }

// note takes a failure. It is said at the first, and then every ten minutes:
// without snapshots the log grows for ever.
func (m *missedSnapshots) note(now time.Time, log hclog.Logger, err error, entries uint64) {
	m.count++
	m.wait = min(max(2*m.wait, snapshotRetry), snapshotRetryMax)
	m.next = now.Add(m.wait)
	if m.count == 1 || now.Sub(m.told) >= missedRemind {
		m.told = now
		log.Error("no snapshot can be taken, so the log grows", "error", err, "failures", m.count, "entries_since_the_last", entries)
	}
}

// over is called when one was taken.
func (m *missedSnapshots) over(log hclog.Logger) missedSnapshots {
	if m.count > 0 {
		log.Info("a snapshot was taken again", "failures", m.count)
	}
	return missedSnapshots{}
}

// noteLog measures the log.
func (n *Node) noteLog(mb *member) {
	first, err := mb.log.FirstIndex()
	last, err2 := mb.log.LastIndex()
	if err == nil && err2 == nil && first > 0 {
		n.metrics.logEntries.Set(float64(last - first + 1))
	}
}
