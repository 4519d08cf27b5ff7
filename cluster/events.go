package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/fsm"
)

// ErrTooManyWatchers: this node serves as many watchers as it may. Another node
// may have room.
var ErrTooManyWatchers = errors.New("too many watchers on this node")

// CompactedError says that events which a watcher has not had are not kept any
// more. It must list what it watches anew.
type CompactedError struct {
	Oldest uint64 // the first index from which on everything is kept
}

func (e *CompactedError) Error() string {
	return fmt.Sprintf("events before index %d are not kept any more", e.Oldest)
}

// entriesAtOnce is the most entries that a watcher takes in one go. It bounds
// what a watcher that is stuck holds on to.
const entriesAtOnce = 64

// Feed keeps the newest events of a node for its watchers (P13).
//
// A watcher is only a place in it: nothing is buffered for one, so a slow
// watcher costs no memory and holds nobody up, and is told when what it has not
// had yet is dropped. All methods may be called from any goroutine.
//
// Renewals are many and interest few, so they are kept apart, and do not push
// anything else out.
type Feed struct {
	max      int           // watchers
	wake     chan struct{} // buffer of one: Announce has something to do
	watchers atomic.Int64  // raised under mu

	mu       sync.RWMutex // guards what follows; watchers read
	history  ring         // all events but renewals
	renewals ring
	index    uint64 // of the last entry, with or without events
	few, all signal // for watchers without and with renewals
	ended    uint64 // counts calls of End
	why      error  // given to the last End
}

// signal is a broadcast to those who have found nothing to read.
type signal struct {
	waiting atomic.Bool // somebody looks at changed; set under a read lock
	due     bool
	changed chan struct{} // closed and replaced by a broadcast
}

// NewFeed makes a feed that keeps so many events and, beside them, so many
// renewals, for at most so many watchers at a time.
func NewFeed(events, watchers int) *Feed {
	return &Feed{
		max: watchers, wake: make(chan struct{}, 1), history: newRing(events), renewals: newRing(events),
		few: signal{changed: make(chan struct{})}, all: signal{changed: make(chan struct{})},
	}
}

// Append adds an entry, whose index must be above all before. It copies events
// and does not block on watchers; Announce tells them.
func (f *Feed) Append(index uint64, events []fsm.Event) {
	others, renewed := split(index, events)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index = index
	if len(others.Events) > 0 {
		f.history.push(others)
		f.note(&f.few)
	}
	if len(renewed.Events) > 0 {
		f.renewals.push(renewed)
	}
	if len(events) > 0 {
		f.note(&f.all)
	}
}

// split copies events, the renewals apart.
func split(index uint64, events []fsm.Event) (others, renewed Entry) {
	n := 0
	for i := range events {
		if events[i].Kind == fsm.EventRenewed {
			n++
		}
	}
	others, renewed = Entry{Index: index}, Entry{Index: index}
	if n > 0 {
		renewed.Events = make([]fsm.Event, 0, n)
	}
	if n < len(events) {
		others.Events = make([]fsm.Event, 0, len(events)-n)
	}
	for _, e := range events {
		e.Decided = nil // for the leader alone, and not small
		if e.Kind == fsm.EventRenewed {
			renewed.Events = append(renewed.Events, e)
		} else {
			others.Events = append(others.Events, e)
		}
	}
	return others, renewed
}

// note makes a broadcast due if anybody waits for it.
func (f *Feed) note(s *signal) {
	if !s.waiting.Load() {
		return
	}
	s.due = true
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Reset forgets all events: the state is now that of a snapshot at this index,
// and how it came about is not known.
func (f *Feed) Reset(index uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index = index
	f.history.clear(index + 1)
	f.renewals.clear(index + 1)
	f.note(&f.few)
	f.note(&f.all)
}

// Announce wakes the watchers that wait for what has been appended. It is not a
// part of Append, so that applying entries does not pay for waking thousands.
func (f *Feed) Announce() {
	f.mu.Lock()
	var told []chan struct{}
	for _, s := range [...]*signal{&f.few, &f.all} {
		if s.due {
			told = append(told, s.changed)
			s.changed, s.due = make(chan struct{}), false
			s.waiting.Store(false)
		}
	}
	f.mu.Unlock()
	for _, c := range told {
		close(c)
	}
}

// End ends all watches that are open, with this error. New ones are not
// affected.
func (f *Feed) End(why error) {
	f.mu.Lock()
	f.ended++
	f.why = why
	f.few.due, f.all.due = true, true
	f.mu.Unlock()
	f.Announce()
}

// Watchers is how many watches are open.
func (f *Feed) Watchers() int { return int(f.watchers.Load()) }

// Watch opens a watch of everything from an index on, inclusive; 0: of what
// comes after the last entry. An index that has not been reached is waited for.
// With renewals it has those, too. The error is a *CompactedError or
// ErrTooManyWatchers. The caller must Close the watcher.
func (f *Feed) Watch(from uint64, renewals bool) (*Watcher, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if from == 0 {
		from = f.index + 1
	}
	w := &Watcher{feed: f, next: from, renewals: renewals, ended: f.ended}
	if oldest := f.oldest(renewals); from < oldest {
		return nil, &CompactedError{oldest}
	}
	if f.Watchers() >= f.max {
		return nil, ErrTooManyWatchers
	}
	f.watchers.Add(1)
	return w, nil
}

func (f *Feed) oldest(renewals bool) uint64 {
	if renewals {
		return max(f.history.oldest, f.renewals.oldest)
	}
	return f.history.oldest
}

// Watcher is a place in a node's events. It is for one goroutine.
type Watcher struct {
	feed     *Feed
	next     uint64 // index that is looked at next
	renewals bool
	ended    uint64 // of the feed, when the watch was opened
	buffer   []Entry
	closed   bool
}

// Reached is the index up to which the watcher has had everything.
func (w *Watcher) Reached() uint64 { return w.next - 1 }

// Next returns the next entries that have events, in the order of their indexes
// and each whole; Reached then includes them, and all entries without events
// that were between and after them. It waits for some, but not longer than
// quiet: then there are none, and that is no error. The entries are good until
// the next call.
//
// The error is a *CompactedError, what the watch was ended with, or the
// context's; Reached still holds then, and later calls fail again.
func (w *Watcher) Next(ctx context.Context, quiet time.Duration) ([]Entry, error) {
	var timeout <-chan time.Time
	for {
		entries, changed, err := w.read()
		if err != nil || len(entries) > 0 {
			return entries, err
		}
		if timeout == nil {
			t := time.NewTimer(quiet)
			defer t.Stop()
			timeout = t.C
		}
		select {
		case <-changed:
		case <-timeout:
			entries, _, err := w.read() // entries without events wake nobody
			return entries, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// read takes what there is, or else the channel that is closed when there is
// more.
func (w *Watcher) read() ([]Entry, <-chan struct{}, error) {
	f := w.feed
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.ended != w.ended {
		return nil, nil, f.why
	}
	if oldest := f.oldest(w.renewals); w.next < oldest {
		return nil, nil, &CompactedError{oldest}
	}
	news, renewed, s := f.history.from(w.next), []Entry(nil), &f.few
	if w.renewals {
		renewed, s = f.renewals.from(w.next), &f.all
	}
	if len(news)+len(renewed) == 0 {
		w.next = max(w.next, f.index+1)
		clear(w.buffer[:cap(w.buffer)]) // an idle watcher holds on to nothing
		s.waiting.Store(true)
		return nil, s.changed, nil
	}
	if w.buffer == nil {
		w.buffer = make([]Entry, 0, entriesAtOnce)
	}
	entries := merge(w.buffer, news, renewed)
	w.next = entries[len(entries)-1].Index + 1
	if len(entries) == len(news)+len(renewed) {
		w.next = f.index + 1
	}
	return entries, nil, nil
}

// Close gives the place back. It may be called again.
func (w *Watcher) Close() {
	if w.closed {
		return
	}
	w.closed = true
	w.feed.watchers.Add(-1)
}
