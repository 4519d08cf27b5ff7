package replay

import (
	"fmt"
	"time"

	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
	"fencepost/fsm/model"
)

// newLeaderGrace is for how long a new leader gives nobody up: the clients of those
// who wait have to find it first.
const newLeaderGrace = 5 * time.Second

// tenure is what a leader owes, by the contract, to those whom it finds waiting, and
// to those whose time is over. It is judged in the order of the log.
type tenure struct {
	seen      *visibility
	punctual  time.Duration // how late an end or a grant may be, in cluster time; 0: it is not judged
	sent      int64         // start of an exchange that a former entry has decided
	term      uint64
	follows   bool              // another term: the first leader finds nobody
	began     int64             // the term did after this
	beganMS   uint64            // by the cluster clock
	readyMS   map[uint64]uint64 // by ticket: since when there has been room for a head
	cancelled int
	entries   int

	place, due check.Verdict
}

func newTenure(seen *visibility, punctual time.Duration) *tenure {
	return &tenure{
		seen: seen, punctual: punctual, readyMS: map[uint64]uint64{},
		place: check.Verdict{Name: "P12 a new leader gives nobody up"},
		due:   check.Verdict{Name: "P8 what is due is done"},
	}
}

// see takes an entry, what it did, and the answers that it decided.
func (t *tenure) see(e check.Entry, m *model.Machine, events []model.Event, decided []*asked) {
	t.entries++
	if e.Term != t.term {
		t.follows = t.term != 0
		t.term, t.began, t.beganMS = e.Term, t.sent, m.Clock
	}
	for _, a := range decided {
		if a.decided() {
			t.sent = max(t.sent, a.Start)
		}
	}
	if t.follows && e.Command.GetCancel().GetAttempt() > 0 {
		t.cancel(e, events)
	}
	if t.punctual > 0 {
		t.late(e, m)
	}
}

// cancel is one of the cluster's own, of a place in a queue or a grant.
func (t *tenure) cancel(e check.Entry, events []model.Event) {
	for _, ev := range events {
		if ev.Kind != model.Released && (ev.Kind != model.Dequeued || ev.Reason != fsmpb.Reason_REASON_CANCELLED) {
			continue
		}
		t.cancelled++
		first, ok := t.seen.of(e.Index)
		if after := time.Duration(first.at - t.began); ok && after < newLeaderGrace {
			t.place.Find("entry %d gives up what %s has of %s, at the most %v after term %d began", e.Index, e.Command.GetCancel().GetRequest().GetKey(), ev.Name, after, t.term)
		}
	}
}

// late looks for what should have ended, or been granted, by now. What the leader was
// left with counts from the beginning of its term.
func (t *tenure) late(e check.Entry, m *model.Machine) {
	find := func(what string, since uint64) {
		since = max(since, t.beganMS)
		if late := time.Duration(m.Clock-since) * time.Millisecond; late > t.punctual {
			t.due.Find("entry %d: %s for %v of cluster time", e.Index, what, late)
		}
	}
	if name, at, ok := m.FirstDue(); ok && at <= m.Clock {
		find(fmt.Sprintf("something of %s has been over", name), at)
	}
	ready := map[uint64]uint64{}
	for _, w := range m.Ready() {
		since, ok := t.readyMS[w.Ticket]
		if !ok {
			since = m.Clock
		}
		ready[w.Ticket] = since
		find(fmt.Sprintf("there has been room for ticket %d of %s", w.Ticket, w.Acquire.Name), since)
	}
	t.readyMS = ready
}

func (t *tenure) verdicts() []*check.Verdict {
	t.place.Note = fmt.Sprintf("%d given up", t.cancelled)
	if t.punctual == 0 {
		return []*check.Verdict{&t.place}
	}
	t.due.Count("%d entries", t.entries)
	return []*check.Verdict{&t.place, &t.due}
}
