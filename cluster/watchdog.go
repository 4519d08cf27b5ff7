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

	cut atomic.Bool                  // the log's end was deleted, and nothing stored since
	end func(what string, err error) // ends the process; nil: nobody does
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
	return s.stored(s.timed(&s.append, len(l.Data), func() error { return s.LogStore.StoreLog(l) }))
}

func (s *watchedStore) StoreLogs(ls []*raft.Log) error {
	bytes := 0
	for _, l := range ls {
		bytes += len(l.Data)
	}
	return s.stored(s.timed(&s.append, bytes, func() error { return s.LogStore.StoreLogs(ls) }))
}

// stored ends the process if entries that were to replace others could not be
// stored. Raft then goes on as if it had the others: it would stand for election
// with them, and if it led, begin its own behind them, with a gap before.
func (s *watchedStore) stored(err error) error {
	if err == nil {
		s.cut.Store(false)
	} else if s.cut.Load() && s.end != nil {
		s.end("the end of the log was deleted, and what replaces it cannot be written", err)
	}
	return err
}

// DeleteRange deletes step by step: from the front, or, at the end of the log, from
// the end, so that a crash in the middle leaves no gap.
func (s *watchedStore) DeleteRange(first, last uint64) error {
	newest, err := s.LogStore.LastIndex()
	if err != nil {
		return err
	}
	for first <= last {
		from, to := first, min(last, first+compactionStep-1)
		if last >= newest {
			from, to = max(first, last-min(last, compactionStep-1)), last
		}
		if err := s.timed(&s.compact, 0, func() error { return s.LogStore.DeleteRange(from, to) }); err != nil {
			return err
		}
		if last >= newest {
			s.cut.Store(true)
			last, newest = from-1, from-1
		} else {
			first = to + 1
		}
	}
	return nil
}

// moves tells that the disk is at work, on something that a write in progress has to
// wait for: the write's time begins anew.
func (s *watchedStore) moves() {
	now := int64(time.Since(s.started))
	for _, sl := range []*slot{&s.append, &s.compact} {
		if since := sl.since.Load(); since != 0 && since < now {
			sl.since.CompareAndSwap(since, now)
		}
	}
}

func (s *watchedStore) Set(key, value []byte) error {
	return s.timed(&s.stable, 0, func() error { return s.StableStore.Set(key, value) })
}

func (s *watchedStore) SetUint64(key []byte, value uint64) error {
	return s.timed(&s.stable, 0, func() error { return s.StableStore.SetUint64(key, value) })
}

// looks is how often the watchdog looks in the bound of a write.
const looks = 10

// watch calls exit once a write has taken longer than bound, and was seen to for as
// long: in a process that was stopped in the middle of a write, that counts for one
// look at it.
func (s *watchedStore) watch(ctx context.Context, bound time.Duration, exit func(why string)) {
	t := time.NewTicker(bound / looks)
	defer t.Stop()
	var seen sightings
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if s.stalled(&seen, int64(time.Since(s.started)), bound) {
			exit(fmt.Sprintf("a write to the log has taken longer than %s: the disk is stalled", bound))
			return
		}
	}
}

// sightings are the writes in progress that the watchdog has seen, and how often.
type sightings [3]struct {
	since int64
	times int
}

// stalled is one look, at an instant.
func (s *watchedStore) stalled(seen *sightings, now int64, bound time.Duration) bool {
	for i, sl := range [...]*slot{&s.append, &s.compact, &s.stable} {
		since := sl.since.Load()
		if seen[i].since != since {
			seen[i].since, seen[i].times = since, 0
		}
		seen[i].times++
		if since != 0 && time.Duration(now-since) > bound && seen[i].times > looks {
			return true
		}
	}
	return false
}
