package cluster

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// compactionStep bounds one transaction of a compaction, so that it neither
// holds up appends nor looks like a stalled disk.
const compactionStep = 10_000

// watchedStore is a log and stable store whose writes are timed. A leader whose
// log write hangs goes on sending heartbeats, so nobody would take over; and a
// write that was given up may still land later. The one safe answer is to end
// the process: the others elect a leader.
type watchedStore struct {
	raft.LogStore
	raft.StableStore

	started time.Time // what the slots count from
	// One slot for each writer that Raft has: appends and votes come from its
	// main goroutine, compaction from the snapshot goroutine.
	append, compact, stable slot
}

// slot holds when the write in progress began, in nanoseconds after the store
// was opened; 0: none is in progress. A large write counts as begun later, by
// the time that its size allows.
type slot struct{ since atomic.Int64 }

// slowestBytesPerSecond is what a disk and a link must carry: what is large is
// given the time that it takes at this rate, beside the bound for what is small.
const slowestBytesPerSecond = 4 << 20

func timeFor(bytes int) time.Duration {
	return time.Duration(bytes) * time.Second / slowestBytesPerSecond
}

func watchStore(logs raft.LogStore, stable raft.StableStore) *watchedStore {
	// A little in the past, so that no write begins at 0.
	return &watchedStore{LogStore: logs, StableStore: stable, started: time.Now().Add(-time.Second)}
}

func (s *watchedStore) timed(sl *slot, bytes int, write func() error) error {
	sl.since.Store(int64(time.Since(s.started) + timeFor(bytes)))
	defer sl.since.Store(0)
	return write()
}

func (s *watchedStore) StoreLog(l *raft.Log) error {
	return s.timed(&s.append, len(l.Data), func() error { return s.LogStore.StoreLog(l) })
}

func (s *watchedStore) StoreLogs(ls []*raft.Log) error {
	bytes := 0
	for _, l := range ls {
		bytes += len(l.Data)
	}
	return s.timed(&s.append, bytes, func() error { return s.LogStore.StoreLogs(ls) })
}

func (s *watchedStore) DeleteRange(first, last uint64) error {
	for first <= last {
		end := min(last, first+compactionStep-1)
		if err := s.timed(&s.compact, 0, func() error { return s.LogStore.DeleteRange(first, end) }); err != nil {
			return err
		}
		first = end + 1
	}
	return nil
}

func (s *watchedStore) Set(key, value []byte) error {
	return s.timed(&s.stable, 0, func() error { return s.StableStore.Set(key, value) })
}

func (s *watchedStore) SetUint64(key []byte, value uint64) error {
	return s.timed(&s.stable, 0, func() error { return s.StableStore.SetUint64(key, value) })
}

// watch calls exit once a write has taken longer than bound.
func (s *watchedStore) watch(ctx context.Context, bound time.Duration, exit func(why string)) {
	t := time.NewTicker(bound / 10)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := int64(time.Since(s.started))
		for _, sl := range []*slot{&s.append, &s.compact, &s.stable} {
			if since := sl.since.Load(); since != 0 && time.Duration(now-since) > bound {
				exit(fmt.Sprintf("a write to the log has taken longer than %s: the disk is stalled", bound))
				return
			}
		}
	}
}
