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
	"fencepost/fsm/model"
)

// TestRandomAgainstModel applies random entries to the state machine and to the
// model. They must agree on every outcome, event and record, across snapshots;
// and the promises hold at every step (see watcher).
func TestRandomAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, m, g := New(), model.New(), newGenerator()
		w := newWatcher()
		for range rapid.IntRange(1, 250).Draw(t, "entries") {
			c := throughLog(t, g.next(t))
			before := contents(s)
			want, wantEvents := m.Apply(g.index, g.term, proto.CloneOf(c))
			got, events, err := s.Apply(g.index, g.term, c)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, want) {
				t.Fatalf("entry %d, %v:\ngot  %v\nwant %v", g.index, c, got, want)
			}
			if modelled := modelEvents(wantEvents); !slices.EqualFunc(events, modelled, sameEvent) {
				t.Fatalf("entry %d, %v:\ngot  %s\nwant %s", g.index, c, eventsText(events), eventsText(modelled))
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
			if oneIn(t, 10, "backup") {
				g.restore.backUp(t, s)
			}
			g.learn(t, c, got, events)
			if oneIn(t, 40, "recovery") {
				jumpBoth(t, s, m, g)
				w.watch(t, s, nil)
			}
		}
	})
}

// TestFullAdvancesAgainstModel has more to end and to remove than one Advance does.
func TestFullAdvancesAgainstModel(t *testing.T) {
	s, m, index := New(), model.New(), uint64(0)
	apply := func(nowMS uint64, c *fsmpb.Command) {
		t.Helper()
		index++
		c.NowMs, c.Term = nowMS, 1
		want, wantEvents := m.Apply(index, 1, proto.CloneOf(c))
		got, events, err := s.Apply(index, 1, c)
		if modelled := modelEvents(wantEvents); err != nil || !proto.Equal(got, want) || !slices.EqualFunc(events, modelled, sameEvent) {
			t.Fatalf("entry %d: got %v, %v, %d events, want %v, %d", index, got, err, len(events), want, len(modelled))
		}
		if c.GetAdvance() != nil {
			compareWithModel(t, s, m)
		}
	}
	for i := range 1500 {
		a := &fsmpb.Acquire{Name: fmt.Sprint("n", i), Holder: "h", TtlMs: 1000, Request: &fsmpb.Request{Key: fmt.Sprint("k", i), Path: "acquire"}}
		if i%3 == 0 {
			a.GraceMs = 10
		}
		apply(0, &fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: a}})
	}
	for range 3 {
		apply(2000, advanceOf())
	}
	for range 4 {
		apply(2000+KeepEndedMS, advanceOf())
	}
	if c := s.Counts(); c.Leases+c.Requests != 0 {
		t.Errorf("%d leases and %d requests are left", c.Leases, c.Requests)
	}
}

// jumpBoth is what a recovery does to the state, between two entries.
func jumpBoth(t *rapid.T, s *State, m *model.Machine, g *generator) {
	t.Helper()
	j := Jump{SinceMS: pick[uint64](t, "since", 0, g.nowMS, 1<<30), Above: pick(t, "above", 0, g.index, g.index+1<<34)}
	to, err := j.To(s.Index())
	by := to - s.Index()
	if err == nil {
		err = s.Jump(j)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.Jump(to)
	g.jumped(by)
	compareWithModel(t, s, m)
}

// modelEvents are the model's, as this package has them.
func modelEvents(events []model.Event) (es []Event) {
	for _, e := range events {
		ours := Event{
			Kind: EventKind(e.Kind), Index: e.Index, Name: e.Name, Holder: e.Holder, Principal: e.Principal,
			Token: e.Token, PreviousToken: e.PreviousToken, PreviousHolder: e.PreviousHolder, Watermark: e.Watermark,
			Reason: e.Reason, Version: e.Version, Ticket: e.Ticket, Slots: e.Slots, Take: e.Take, TTLMS: e.TTLMS,
			Metadata: e.Metadata, GraceMS: e.GraceMS, QueueLength: e.QueueLength,
		}
		if d := e.Decided; d != nil {
			ours.Decided = &Decision{RequestKey: modelRequestKey(d.ID), Outcome: d.Outcome}
		}
		es = append(es, ours)
	}
	return es
}

func modelRequestKey(id model.ID) string {
	return requestKey(id.Principal, &fsmpb.Request{Path: id.Path, Key: id.Key})
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
func compareWithModel(t rapid.TB, s *State, m *model.Machine) {
	t.Helper()
	numbers := fmt.Sprint(s.ClusterID(), s.Index(), s.ClockMS(), s.Floor(), s.RestoreFloor(), s.LastToken(), s.Totals())
	if want := fmt.Sprint(m.ClusterID, m.Index, m.Clock, m.Floor, m.RestoreFloor, m.LastGranted, m.Totals); numbers != want {
		t.Fatalf("got numbers %s, want %s", numbers, want)
	}
	c, present := s.Counts(), 0
	for name, want := range m.Keys {
		k, ok := s.Key(name)
		if !ok || (model.Key{Present: k.Present, Value: string(k.Value), ContentType: k.ContentType, Version: k.Version, Token: k.Token, Watermark: k.Watermark}) != *want {
			t.Fatalf("key %s: got %+v, want %+v", name, k, want)
		}
		if want.Present {
			present++
		}
	}
	if c.Records != len(m.Keys) || c.Keys != present || c.Leases != len(m.Leases) || c.Requests != len(m.Requests) {
		t.Fatalf("got %+v, want %d keys of %d, %d leases, %d requests", c, present, len(m.Keys), len(m.Leases), len(m.Requests))
	}
	for name, want := range m.Leases {
		l, ok := s.leases.Get(name)
		if !ok || !sameLease(want, l) {
			t.Fatalf("lease %s: got %+v, want %+v", name, l, want)
		}
		shown, _ := s.Lease(name)
		if shown.GraceUntilMS != m.GraceUntil(want) || shown.GraceUntilMS != 0 && m.GraceUntil(want) != want.GraceUntilMS && shown.Live() {
			t.Fatalf("lease %s: shown as %+v, grace until %d wanted", name, shown, m.GraceUntil(want))
		}
	}
	compareQueues(t, s, m)
	for id, want := range m.Requests {
		r, ok := s.requests.Get(modelRequestKey(id))
		if !ok || r.attempt != want.Attempt || r.goneMS != want.GoneMS || !proto.Equal(r.outcome, want.Outcome) {
			t.Fatalf("request %v: got %+v, want %+v", id, r, want)
		}
	}
	compareStaging(t, s, m)
	if nodes := s.Nodes(); len(nodes) != len(m.Nodes) {
		t.Fatalf("got members %v, want %v", nodes, m.Nodes)
	}
	for _, n := range s.Nodes() {
		if m.Nodes[n.Name] != n.Id {
			t.Fatalf("got member %v, want %v", n, m.Nodes)
		}
	}
}

// compareStaging compares the backups that are being restored.
func compareStaging(t rapid.TB, s *State, m *model.Machine) {
	t.Helper()
	g, want := s.staging, m.Staging
	if s.Base() != m.Base || (g == nil) != (want == nil) {
		t.Fatalf("base %d, staging %v; want %d, %v", s.Base(), g, m.Base, want)
	}
	if g == nil {
		return
	}
	if g.id != want.ID || g.deadlineMS != want.DeadlineMS || g.keys.Len() != len(want.Keys) {
		t.Fatalf("staging %+v, want %+v", g, want)
	}
	g.keys.Scan(func(name string, k *Key) bool {
		if w := want.Keys[name]; w == nil || w.Version != k.Version || w.Watermark != k.Watermark || w.Value != string(k.Value) {
			t.Fatalf("staged key %s: %+v, want %+v", name, k, w)
		}
		return true
	})
}

// compareQueues compares who waits, in which order, and who can be granted.
func compareQueues(t rapid.TB, s *State, m *model.Machine) {
	t.Helper()
	waiters, ready := 0, []due{}
	for name, want := range m.Queues {
		waiters += len(want)
		got := s.Waiters(name, 1000)
		if len(got) != len(want) || s.QueueLength(name) != len(want) {
			t.Fatalf("%d wait for %s, counted as %d, want %d", len(got), name, s.QueueLength(name), len(want))
		}
		for i, w := range want {
			if g := got[i]; g.Ticket != w.Ticket || g.UntilMS != w.UntilMS || !proto.Equal(g.Acquire, w.Acquire) {
				t.Fatalf("waiter %d of %s: got %+v, want %+v", i, name, g, w)
			}
		}
	}
	if got := s.Counts().Waiters; got != waiters {
		t.Fatalf("%d wait, want %d", got, waiters)
	}
	for _, w := range m.Ready() {
		ready = append(ready, due{at: w.Ticket, of: dueGrant, key: w.Acquire.Name})
	}
	if got := s.ready.Items(); !slices.Equal(got, ready) || s.Ready() != len(ready) {
		t.Fatalf("heads that can be granted: %v, want %v", got, ready)
	}
	at, any := s.NextExpiryMS()
	if wantAt, want := m.NextDue(); any != want || at != wantAt {
		t.Fatalf("the next Advance is due at %d, %v, want %d, %v", at, any, wantAt, want)
	}
}

func sameLease(want *model.Lease, got *Lease) bool {
	same := got.Name == want.Name && got.Slots == want.Slots && got.LastToken == want.LastToken && got.GraceUntilMS == want.GraceUntilMS &&
		got.ended == want.Ended && slices.EqualFunc(want.Holders, got.Holders, sameHolder)
	if want.Gone == nil {
		return same && got.former == nil
	}
	return same && sameHolder(want.Gone, got.former) && got.goneMS == want.EndedMS+KeepEndedMS
}

func sameHolder(want *model.Holder, got *Holder) bool {
	return got.Holder == want.Holder && got.Principal == want.Principal && got.Token == want.Token && got.Previous == want.Previous &&
		got.Take == want.Take && got.TTLMS == want.TTLMS && got.DeadlineMS == want.DeadlineMS && got.GraceMS == want.GraceMS && got.Renewals == want.Renewals &&
		slices.EqualFunc(got.Metadata, want.Metadata, func(a, b *fsmpb.Pair) bool { return proto.Equal(a, b) })
}
