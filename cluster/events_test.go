package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/cluster/bubble"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// some are events of an entry; renewals are told apart by their kind.
func some(index uint64, kind fsm.EventKind, n int) (events []fsm.Event) {
	for i := range n {
		events = append(events, fsm.Event{Kind: kind, Index: index, Name: fmt.Sprint("l", i)})
	}
	return events
}

// indexes are those of entries, each with its number of events: "7x2".
func indexes(entries []Entry) string {
	var all []string
	for _, e := range entries {
		for _, ev := range e.Events {
			if ev.Index != e.Index {
				return fmt.Sprintf("an event of %d in entry %d", ev.Index, e.Index)
			}
		}
		all = append(all, fmt.Sprintf("%dx%d", e.Index, len(e.Events)))
	}
	return strings.Join(all, " ")
}

// take is what a watcher gets without waiting.
func take(t *testing.T, w *Watcher) string {
	t.Helper()
	entries, err := w.Next(t.Context(), 0)
	if err != nil {
		return err.Error()
	}
	return indexes(entries)
}

// The ring keeps the newest entries, whole, within its bounds, and knows where
// they begin; over thousands of turns.
func TestP13_TheRingKeepsTheNewestWhole(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 0))
	r := newRing(50)
	var all []Entry
	for index := uint64(1); index < 5000; index++ {
		if rnd.IntN(3) == 0 {
			continue // an entry without events
		}
		e := Entry{index, some(index, fsm.EventPut, 1+rnd.IntN(20))}
		if rnd.IntN(50) == 0 {
			e.Events = some(index, fsm.EventPut, 80) // more than fits
		}
		all = append(all, e)
		r.push(e)
		kept := r.from(0)
		if r.events > 50 && len(kept) > 1 {
			t.Fatalf("seed %d: %d events in %d entries are kept", seed, r.events, len(kept))
		}
		if want := all[len(all)-len(kept):]; indexes(kept) != indexes(want) {
			t.Fatalf("seed %d: kept %s, want %s", seed, indexes(kept), indexes(want))
		}
		if left := len(all) - len(kept); left > 0 && r.oldest != all[left-1].Index+1 {
			t.Fatalf("seed %d: oldest %d, want that after %d", seed, r.oldest, all[left-1].Index)
		}
		from := kept[0].Index + uint64(rnd.IntN(30))
		at := slices.IndexFunc(kept, func(e Entry) bool { return e.Index >= from })
		if at < 0 {
			at = len(kept)
		}
		if got := r.from(from); indexes(got) != indexes(kept[at:]) {
			t.Fatalf("seed %d: from %d: %s of %s", seed, from, indexes(got), indexes(kept))
		}
	}
	if cap(r.entries) > 1000 {
		t.Errorf("it has room for %d entries", cap(r.entries))
	}
}

// Large metadata does not make a ring of events a ring of gigabytes.
func TestTheRingIsBoundInBytes(t *testing.T) {
	r := newRing(100)
	for index := uint64(1); index <= 1000; index++ {
		e := fsm.Event{Index: index, Metadata: []*fsmpb.Pair{{Key: "k", Value: strings.Repeat("x", 4<<10)}}}
		r.push(Entry{index, []fsm.Event{e}})
	}
	if r.bytes > 100*bytesPerEvent || len(r.from(0)) < 20 || r.oldest != r.from(0)[0].Index {
		t.Errorf("%d bytes in %d entries from %d on", r.bytes, len(r.from(0)), r.oldest)
	}
}

func TestP13_ResumeAtTheEdge(t *testing.T) {
	f := NewFeed(4, 10)
	for index := uint64(1); index <= 10; index++ {
		f.Append(index, some(index, fsm.EventPut, 2-int(index%2)*2)) // of 2, 4, 6 and so on
	}
	for from, want := range map[uint64]string{
		6:  "events before index 7 are not kept any more",
		7:  "8x2 10x2", // 7 had none
		8:  "8x2 10x2",
		10: "10x2",
		11: "", 0: "", 99: "",
	} {
		w, err := f.Watch(from, false)
		if err != nil {
			if err.Error() != want {
				t.Errorf("from %d: %v, want %q", from, err, want)
			}
			continue
		}
		if got := take(t, w); got != want {
			t.Errorf("from %d: got %q, want %q", from, got, want)
		}
		if want := max(10, from-1); from != 0 && w.Reached() != want {
			t.Errorf("from %d: reached %d, want %d", from, w.Reached(), want)
		}
		w.Close()
		w.Close()
	}
	if f.Watchers() != 0 {
		t.Errorf("%d watchers are left", f.Watchers())
	}
	// One that was there is overtaken by the next entry that it does not read.
	w, _ := f.Watch(8, false)
	f.Append(11, some(11, fsm.EventPut, 2))
	var c *CompactedError
	if _, err := w.Next(t.Context(), 0); !errors.As(err, &c) || c.Oldest != 9 || w.Reached() != 7 {
		t.Errorf("overtaken: %v, reached %d", err, w.Reached())
	}
}

// Renewals come in their place to those who want them, push out only each
// other, and wake nobody else.
func TestP13_RenewalsAreKeptApart(t *testing.T) {
	f := NewFeed(5, 10)
	for index := uint64(1); index <= 20; index++ {
		kind := fsm.EventRenewed
		if index%5 == 0 {
			kind = fsm.EventGranted
		}
		f.Append(index, some(index, kind, 1))
	}
	f.Append(21, append(some(21, fsm.EventExpired, 1), some(21, fsm.EventRenewed, 2)...))
	plain, _ := f.Watch(1, false)
	if got := take(t, plain); got != "5x1 10x1 15x1 20x1 21x1" {
		t.Errorf("without renewals: %q", got)
	}
	var c *CompactedError
	if _, err := f.Watch(16, true); !errors.As(err, &c) || c.Oldest != 17 {
		t.Errorf("renewals from 16 on: %v", err)
	}
	both, _ := f.Watch(17, true)
	if got := take(t, both); got != "17x1 18x1 19x1 20x1 21x3" {
		t.Errorf("with renewals: %q", got)
	}
	bubble.Test(t, func(t *testing.T) {
		f := NewFeed(5, 10)
		plain, _ := f.Watch(0, false)
		both, _ := f.Watch(0, true)
		var woken []string
		var mu sync.Mutex
		for name, w := range map[string]*Watcher{"plain": plain, "both": both} {
			go func() {
				entries, err := w.Next(t.Context(), time.Minute)
				mu.Lock()
				defer mu.Unlock()
				woken = append(woken, fmt.Sprint(name, " ", indexes(entries), err))
			}()
		}
		synctest.Wait()
		f.Append(1, some(1, fsm.EventRenewed, 1))
		f.Announce()
		synctest.Wait()
		f.Append(2, some(2, fsm.EventPut, 1))
		f.Announce()
		synctest.Wait()
		if got := strings.Join(woken, ", "); got != "both 1x1<nil>, plain 2x1<nil>" {
			t.Errorf("woken: %s", got)
		}
	})
}

func TestP13_ASnapshotEmptiesTheFeed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := NewFeed(100, 10)
		f.Append(1, some(1, fsm.EventPut, 1))
		w, _ := f.Watch(0, false)
		behind := make(chan error, 1)
		go func() {
			_, err := w.Next(t.Context(), time.Hour)
			behind <- err
		}()
		ahead, _ := f.Watch(101, false)
		synctest.Wait()
		f.Reset(100)
		<-f.wake // the node's goroutine is asked to
		f.Announce()
		var c *CompactedError
		if err := <-behind; !errors.As(err, &c) || c.Oldest != 101 {
			t.Errorf("a watch that the snapshot has skipped: %v", err)
		}
		f.Append(101, some(101, fsm.EventPut, 1))
		if got := take(t, ahead); got != "101x1" {
			t.Errorf("a watch from after the snapshot: %q", got)
		}
		if _, err := f.Watch(100, false); !errors.As(err, &c) || c.Oldest != 101 {
			t.Errorf("a watch of the snapshot's own index: %v", err)
		}
	})
}

// The feed keeps copies: what it was given changes with the next entry.
func TestTheFeedCopies(t *testing.T) {
	f := NewFeed(10, 10)
	events := some(1, fsm.EventPut, 1)
	events[0].Decided = &fsm.Decision{}
	f.Append(1, events)
	events[0].Index = 99
	w, _ := f.Watch(1, false)
	entries, err := w.Next(t.Context(), 0)
	if err != nil || indexes(entries) != "1x1" || entries[0].Events[0].Decided != nil {
		t.Errorf("got %+v, %v", entries, err)
	}
}

func TestWatchersAreLimited(t *testing.T) {
	f := NewFeed(10, 2)
	a, _ := f.Watch(0, false)
	if _, err := f.Watch(0, false); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Watch(0, false); !errors.Is(err, ErrTooManyWatchers) {
		t.Errorf("the third of two: %v", err)
	}
	a.Close()
	if _, err := f.Watch(0, false); err != nil {
		t.Errorf("after one has gone: %v", err)
	}
}

func TestEndEndsThoseThatAreOpen(t *testing.T) {
	f := NewFeed(10, 10)
	w, _ := f.Watch(0, false)
	f.Append(1, some(1, fsm.EventPut, 1))
	f.End(ErrNoLeader)
	for range 2 {
		if _, err := w.Next(t.Context(), 0); !errors.Is(err, ErrNoLeader) {
			t.Errorf("got %v", err)
		}
	}
	w, _ = f.Watch(1, false)
	if got := take(t, w); got != "1x1" {
		t.Errorf("a new one: %q", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Next(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// No wakeup is lost, whatever is appended while watchers look.
func TestP13_WatchersBesideAWriterMissNothing(t *testing.T) {
	const last = 20_000
	f := NewFeed(2*last, 10)
	ctx, stop := context.WithCancel(t.Context())
	var announcer, watchers sync.WaitGroup
	announcer.Go(func() {
		for {
			select {
			case <-f.wake:
				f.Announce()
			case <-ctx.Done():
				return
			}
		}
	})
	for i := range 8 {
		w, err := f.Watch(1, i%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		step := uint64(2 - (i+1)%2) // every second entry is renewals
		watchers.Go(func() {
			defer w.Close()
			for next := step; next <= last; {
				entries, err := w.Next(ctx, time.Minute)
				if err != nil || len(entries) == 0 {
					t.Errorf("waiting for %d: %v", next, err)
					return
				}
				for _, e := range entries {
					if e.Index != next {
						t.Errorf("got %d, want %d", e.Index, next)
						return
					}
					next += step
				}
			}
		})
	}
	for index := uint64(1); index <= last; index++ {
		kind := fsm.EventPut
		if index%2 == 1 {
			kind = fsm.EventRenewed
		}
		f.Append(index, some(index, kind, 1))
	}
	watchers.Wait()
	stop()
	announcer.Wait()
}

func BenchmarkAppend(b *testing.B) {
	events := some(1, fsm.EventGranted, 1)
	f := NewFeed(65_536, 10)
	b.ReportAllocs()
	index := uint64(0)
	for b.Loop() {
		index++
		f.Append(index, events)
	}
}
