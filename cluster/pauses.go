package cluster

import (
	"context"
	"sync/atomic"
	"time"
)

// pauses notices that the process stood still (stopped, starved, suspended)
// for as long as the leader lease: others may have elected a leader meanwhile,
// and answers to questions that were asked before the pause prove nothing.
type pauses struct {
	bound time.Duration
	start time.Time
	stamp atomic.Int64  // nanoseconds after start at which the ticker last ran
	count atomic.Uint64 // pauses seen
}

func newPauses(bound time.Duration) *pauses { return &pauses{bound: bound, start: time.Now()} }

// watch stamps the time, and calls paused after each pause.
func (p *pauses) watch(ctx context.Context, paused func()) {
	t := time.NewTicker(p.bound / 4)
	defer t.Stop()
	p.stamp.Store(int64(time.Since(p.start)))
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Since(p.start)
		if now-time.Duration(p.stamp.Load()) >= p.bound {
			p.count.Add(1)
			paused() // before running says that all is well again
		}
		p.stamp.Store(int64(now))
	}
}

// running says that the ticker ran within the bound: the process is not just
// waking from a pause that the ticker has not seen yet.
func (p *pauses) running() bool {
	return time.Since(p.start)-time.Duration(p.stamp.Load()) < p.bound
}
