package fsm

import (
	"slices"

	"pgregory.net/rapid"
)

// A watcher sees every entry, its events and the state after it, and knows the
// promises. What it remembers it has from events only.
type watcher struct {
	lastToken, floor uint64
	granted          map[uint64]bool     // tokens
	queues           map[string][]uint64 // tickets of a name, in order
	graces           map[string]uint64   // until when nobody may be granted the name
	promised         map[uint64]uint64   // until when a token was held, when last looked at
	watermarks       map[string]uint64
}

func newWatcher() *watcher {
	return &watcher{granted: map[uint64]bool{}, queues: map[string][]uint64{}, graces: map[string]uint64{}}
}

func (w *watcher) watch(t *rapid.T, s *State, events []Event) {
	grants := 0
	for _, e := range events {
		switch e.Kind {
		case EventGranted:
			grants++
			w.watchGrant(t, s, e)
		case EventQueued:
			w.queues[e.Name] = append(w.queues[e.Name], e.Ticket)
		case EventDequeued:
			i := slices.Index(w.queues[e.Name], e.Ticket)
			if i < 0 {
				t.Fatalf("P12: ticket %d left the queue of %s, in which it was not", e.Ticket, e.Name)
			}
			w.queues[e.Name] = slices.Delete(w.queues[e.Name], i, i+1)
		case EventRestored:
			for name, was := range w.watermarks {
				if was > s.Floor() {
					t.Fatalf("P5: %s had the watermark %d, the floor after a restore is %d", name, was, s.Floor())
				}
			}
			if w.watermarks = nil; w.lastToken > s.Floor() || e.Index != s.Index() {
				t.Fatalf("P1: restored at %d, floor %d, after token %d", e.Index, s.Floor(), w.lastToken)
			}
		case EventExpired:
			if e.GraceMS > 0 {
				w.graces[e.Name] = max(w.graces[e.Name], s.ClockMS()+e.GraceMS)
			}
		}
	}
	if grants > 1 {
		t.Fatalf("P2: entry %d granted %d leases", s.Index(), grants)
	}
	if s.Floor() < w.floor {
		t.Fatalf("P5: the floor fell from %d to %d", w.floor, s.Floor())
	}
	w.floor = s.Floor()
	w.watchLeases(t, s, events)
	w.watchKeys(t, s)
}

// watchGrant looks for one out of turn.
func (w *watcher) watchGrant(t *rapid.T, s *State, e Event) {
	if e.Token != s.Index() || e.Token <= w.lastToken {
		t.Fatalf("P1, P2: entry %d granted token %d after %d", s.Index(), e.Token, w.lastToken)
	}
	w.lastToken, w.granted[e.Token] = e.Token, true
	if until := w.graces[e.Name]; until > s.ClockMS() {
		t.Fatalf("%s was granted at %d, but has a grace until %d", e.Name, s.ClockMS(), until)
	}
	switch queue := w.queues[e.Name]; {
	case e.Ticket == 0 && len(queue) > 0:
		t.Fatalf("P12: %s was granted past the queue %v", e.Name, queue)
	case e.Ticket != 0 && (len(queue) == 0 || queue[0] != e.Ticket):
		t.Fatalf("P12: %s was granted to ticket %d of the queue %v", e.Name, e.Ticket, queue)
	case e.Ticket != 0:
		w.queues[e.Name] = queue[1:]
	}
}

// watchLeases looks for slots that were given twice (P3), and for a promise that
// was shortened (P7), unless by a release or a cancel of that token, or a jump.
func (w *watcher) watchLeases(t *rapid.T, s *State, events []Event) {
	promised, held, graces := map[uint64]uint64{}, 0, 0
	for _, l := range s.leases.Values() {
		taken, last := uint64(0), uint64(0)
		for _, h := range l.Holders {
			taken += h.Take
			promised[h.Token] = h.DeadlineMS
			if h.Token <= s.RestoreFloor() { // held no more, but nobody else may have it before that
				w.graces[l.Name] = max(w.graces[l.Name], h.DeadlineMS+h.GraceMS)
			}
			if !w.granted[h.Token] || h.Token <= last {
				t.Fatalf("P2: %s has the token %d after %d, granted: %v", l.Name, h.Token, last, w.granted[h.Token])
			}
			last = h.Token
		}
		if taken > l.Slots || l.Slots < 1 {
			t.Fatalf("P3: %d slots of %s are taken, it has %d", taken, l.Name, l.Slots)
		}
		if len(l.Holders) > 0 {
			held++
		}
		if l.GraceUntilMS != 0 {
			graces++
		}
	}
	for token, until := range w.promised {
		released := func(e Event) bool { return e.Kind == EventReleased && e.PreviousToken == token }
		if until > s.ClockMS() && token > s.RestoreFloor() && promised[token] < until && !slices.ContainsFunc(events, released) {
			t.Fatalf("P7: token %d was held until %d, now until %d", token, until, promised[token])
		}
	}
	deadlines := len(promised) + graces + s.Counts().Waiters
	if c := s.Counts(); held != c.Held || s.expiries.Len() != deadlines {
		t.Fatalf("%d held, counted %d; %d deadlines, want %d", held, c.Held, s.expiries.Len(), deadlines)
	}
	w.promised = promised
}

// watchKeys looks for a watermark that fell, or went above the floor (P5).
func (w *watcher) watchKeys(t *rapid.T, s *State) {
	watermarks, data := map[string]uint64{}, uint64(0)
	s.keys.Scan(func(name string, k *Key) bool {
		watermarks[name] = k.Watermark
		data += k.bytes()
		if !w.granted[k.Watermark] {
			t.Fatalf("P6: the watermark %d of %s was never issued", k.Watermark, name)
		}
		return true
	})
	for name, was := range w.watermarks {
		if now := watermarks[name]; now < was && (now != 0 || was > s.Floor()) {
			t.Fatalf("P5: the watermark of %s fell from %d to %d, floor %d", name, was, now, s.Floor())
		}
	}
	if got := s.Counts().DataBytes; got != data {
		t.Fatalf("counted %d bytes of data, want %d", got, data)
	}
	w.watermarks = watermarks
}
