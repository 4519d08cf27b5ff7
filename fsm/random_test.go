package fsm

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"fencepost/fsm/fsmpb"
)

// TestRandomAgainstModel applies random entries to the state machine and to the
// model. They must agree on every outcome, event and record, across snapshots;
// and the promises hold at every step (see watcher).
func TestRandomAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, m, g := New(), newModel(), newGenerator()
		w := newWatcher()
		for range rapid.IntRange(1, 250).Draw(t, "entries") {
			c := throughLog(t, g.next(t))
			before := contents(s)
			want := m.apply(g.index, g.term, proto.CloneOf(c))
			got, events, err := s.Apply(g.index, g.term, c)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, want) {
				t.Fatalf("entry %d, %v:\ngot  %v\nwant %v", g.index, c, got, want)
			}
			if !slices.EqualFunc(events, m.events, sameEvent) {
				t.Fatalf("entry %d, %v:\ngot  %s\nwant %s", g.index, c, eventsText(events), eventsText(m.events))
			}
			if refused(got) && len(events) == refusals(events) && contents(s) != before {
				t.Fatalf("entry %d, %v was refused with %v, but changed the state", g.index, c, got)
			}
			compareWithModel(t, s, m)
			w.watch(t, s, events)
			if oneIn(t, 15, "restore") {
				digest := s.Digest()
				if s = throughSnapshot(t, s); s.Digest() != digest {
					t.Fatalf("P14: restored after entry %d, the state has another digest", g.index)
				}
				compareWithModel(t, s, m)
			}
			g.learn(t, c, got, events)
		}
	})
}

// sameEvent compares what an Event has, also behind its pointers.
func sameEvent(a, b Event) bool {
	samePair := func(a, b *fsmpb.Pair) bool { return proto.Equal(a, b) }
	if !slices.EqualFunc(a.Metadata, b.Metadata, samePair) || (a.Decided == nil) != (b.Decided == nil) {
		return false
	}
	if a.Decided != nil && (a.Decided.RequestKey != b.Decided.RequestKey || !proto.Equal(a.Decided.Outcome, b.Decided.Outcome)) {
		return false
	}
	a.Metadata, b.Metadata, a.Decided, b.Decided = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}

func eventsText(events []Event) (text string) {
	for _, e := range events {
		text += fmt.Sprintf("\n  %+v", e)
		if e.Decided != nil {
			text += fmt.Sprintf(" decided %q %v", e.Decided.RequestKey, e.Decided.Outcome)
		}
	}
	return text
}

// refused: neither done nor waiting.
func refused(o *fsmpb.Outcome) bool {
	return o.Code != fsmpb.Code_CODE_OK && o.Code != fsmpb.Code_CODE_QUEUED
}

func refusals(events []Event) (n int) {
	for _, e := range events {
		if e.Kind == EventRefused {
			n++
		}
	}
	return n
}

// throughLog is the command as it comes out of the log.
func throughLog(t rapid.TB, c *fsmpb.Command) *fsmpb.Command {
	t.Helper()
	b, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func throughSnapshot(t rapid.TB, s *State) *State {
	t.Helper()
	var b bytes.Buffer
	if n, err := s.Snapshot().WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("wrote %d bytes of %d, error %v", n, b.Len(), err)
	}
	restored, err := ReadSnapshot(&b)
	if err != nil {
		t.Fatal(err)
	}
	return restored
}

// compareWithModel compares all that both have.
func compareWithModel(t *rapid.T, s *State, m *model) {
	t.Helper()
	numbers := fmt.Sprint(s.ClusterID(), s.Index(), s.ClockMS(), s.Floor(), s.LastToken(), s.Totals())
	if want := fmt.Sprint(m.cluster, m.index, m.clock, m.floor, m.lastGranted, m.totals); numbers != want {
		t.Fatalf("got numbers %s, want %s", numbers, want)
	}
	c, present := s.Counts(), 0
	for name, want := range m.keys {
		k, ok := s.Key(name)
		if !ok || (modelKey{k.Present, string(k.Value), k.ContentType, k.Version, k.Token, k.Watermark}) != *want {
			t.Fatalf("key %s: got %+v, want %+v", name, k, want)
		}
		if want.present {
			present++
		}
	}
	if c.Records != len(m.keys) || c.Keys != present || c.Leases != len(m.leases) || c.Requests != len(m.requests) {
		t.Fatalf("got %+v, want %d keys of %d, %d leases, %d requests", c, present, len(m.keys), len(m.leases), len(m.requests))
	}
	for name, want := range m.leases {
		l, ok := s.Lease(name)
		if !ok || !want.equals(l) {
			t.Fatalf("lease %s: got %+v, want %+v", name, l, want)
		}
	}
	compareQueues(t, s, m)
	for id, want := range m.requests {
		r, ok := s.requests.Get(requestKey(id.principal, &fsmpb.Request{Path: id.path, Key: id.key}))
		if !ok || r.attempt != want.attempt || r.goneMS != want.goneAt || !proto.Equal(r.outcome, want.outcome) {
			t.Fatalf("request %v: got %+v, want %+v", id, r, want)
		}
	}
	if nodes := s.Nodes(); len(nodes) != len(m.nodes) {
		t.Fatalf("got members %v, want %v", nodes, m.nodes)
	}
	for _, n := range s.Nodes() {
		if m.nodes[n.Name] != n.Id {
			t.Fatalf("got member %v, want %v", n, m.nodes)
		}
	}
}

// compareQueues compares who waits, in which order, and who can be granted.
func compareQueues(t *rapid.T, s *State, m *model) {
	t.Helper()
	if got := s.Counts().Waiters; got != len(m.queue) {
		t.Fatalf("%d wait, want %d", got, len(m.queue))
	}
	names, ready := map[string]bool{}, []due{}
	for _, w := range m.queue {
		names[w.asked.Name] = true
	}
	for name := range names {
		got, want := s.Waiters(name, 1000), m.waiting(name)
		if len(got) != len(want) || s.QueueLength(name) != len(want) {
			t.Fatalf("%d wait for %s, counted as %d, want %d", len(got), name, s.QueueLength(name), len(want))
		}
		for i, w := range want {
			if g := got[i]; g.Ticket != w.ticket || g.UntilMS != w.until || !proto.Equal(g.Acquire, w.asked) {
				t.Fatalf("waiter %d of %s: got %+v, want %+v", i, name, g, w)
			}
		}
	}
	for _, w := range m.ready() {
		ready = append(ready, due{at: w.ticket, of: dueGrant, key: w.asked.Name})
	}
	if got := s.ready.Items(); !slices.Equal(got, ready) || s.Ready() != len(ready) {
		t.Fatalf("heads that can be granted: %v, want %v", got, ready)
	}
	at, any := s.NextExpiryMS()
	if wantAt, want := m.nextDue(); any != want || at != wantAt {
		t.Fatalf("the next Advance is due at %d, %v, want %d, %v", at, any, wantAt, want)
	}
}

func (l *modelLease) equals(got *Lease) bool {
	same := got.Name == l.name && got.Slots == l.slots && got.LastToken == l.last && got.GraceUntilMS == l.graceUntil &&
		got.ended == l.ended && slices.EqualFunc(l.holders, got.Holders, (*modelHolder).equals)
	if l.gone == nil {
		return same && got.former == nil
	}
	return same && l.gone.equals(got.former) && got.goneMS == l.endedAt+KeepEndedMS
}

func (h *modelHolder) equals(got *Holder) bool {
	return got.Holder == h.holder && got.Principal == h.principal && got.Token == h.token && got.Previous == h.previous &&
		got.Take == h.take && got.TTLMS == h.ttl && got.DeadlineMS == h.deadline && got.GraceMS == h.grace && got.Renewals == h.renewals &&
		slices.EqualFunc(got.Metadata, h.metadata, func(a, b *fsmpb.Pair) bool { return proto.Equal(a, b) })
}
