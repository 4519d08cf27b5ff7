package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"fencepost/fsm/fsmpb"
)

// TestRandomAgainstModel applies random entries to the state machine and to the
// model. They must agree on every outcome, event and record, across snapshots;
// and the promises about numbers hold at every step (P1 to P6, P11).
func TestRandomAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, m, g := New(), newModel(), newGenerator()
		var w watcher
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
			if !slices.Equal(events, m.events) {
				t.Fatalf("entry %d, %v:\ngot  %+v\nwant %+v", g.index, c, events, m.events)
			}
			if got.Code != fsmpb.Code_CODE_OK && len(s.events) == refusals(events) && contents(s) != before {
				t.Fatalf("entry %d, %v was refused with %v, but changed the state", g.index, c, got)
			}
			compareWithModel(t, s, m)
			w.watch(t, s, c, got)
			if oneIn(t, 15, "restore") {
				s = throughSnapshot(t, s)
				compareWithModel(t, s, m)
			}
			g.learn(t, c, got)
		}
	})
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

// A watcher sees every entry and knows the promises about numbers.
type watcher struct {
	lastToken, floor uint64
	promised         map[string]uint64 // until when a name was held, when last looked at
	watermarks       map[string]uint64
}

func (w *watcher) watch(t *rapid.T, s *State, c *fsmpb.Command, o *fsmpb.Outcome) {
	if c.GetAcquire() != nil && o.Code == fsmpb.Code_CODE_OK && o.Index == s.Index() {
		if o.Token != s.Index() || o.Token <= w.lastToken {
			t.Fatalf("P1, P2: entry %d granted token %d after %d", s.Index(), o.Token, w.lastToken)
		}
		if until := w.promised[o.Name]; until > s.ClockMS() {
			t.Fatalf("P3, P7: %s was granted at %d, but is held until %d", o.Name, s.ClockMS(), until)
		}
		w.lastToken = o.Token
	}
	if s.Floor() < w.floor {
		t.Fatalf("P5: the floor fell from %d to %d", w.floor, s.Floor())
	}
	w.floor = s.Floor()
	w.watchLeases(t, s, c)
	w.watchKeys(t, s)
}

// watchLeases looks for a promise that was shortened (P7), unless by a release.
func (w *watcher) watchLeases(t *rapid.T, s *State, c *fsmpb.Command) {
	promised, held := map[string]uint64{}, 0
	leases, _ := s.Leases("", "", 100)
	for _, l := range leases {
		if l.Live {
			held++
			promised[l.Name] = l.DeadlineMS
		}
	}
	for name, until := range w.promised {
		if until > s.ClockMS() && promised[name] < until && c.GetRelease().GetName() != name {
			t.Fatalf("P7: %s was held until %d, now until %d", name, until, promised[name])
		}
	}
	if c := s.Counts(); held != c.Held || s.expiries.Len() != held {
		t.Fatalf("%d held, counted %d, %d deadlines", held, c.Held, s.expiries.Len())
	}
	w.promised = promised
}

// watchKeys looks for a watermark that fell, or went above the floor (P5).
func (w *watcher) watchKeys(t *rapid.T, s *State) {
	watermarks, data := map[string]uint64{}, uint64(0)
	s.keys.Scan(func(name string, k *Key) bool {
		watermarks[name] = k.Watermark
		data += k.bytes()
		if k.Watermark > s.LastToken() {
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

func (l *modelLease) equals(got *Lease) bool {
	gone := uint64(0)
	if l.ended != fsmpb.Reason_REASON_NONE {
		gone = l.endedAt + KeepEndedMS
	}
	return got.Name == l.name && got.Holder == l.holder && got.Principal == l.principal &&
		got.Token == l.token && got.Previous == l.previous && got.TTLMS == l.ttl && got.DeadlineMS == l.deadline &&
		got.Renewals == l.renewals && got.Ended == l.ended && got.Live == (l.ended == fsmpb.Reason_REASON_NONE) &&
		got.GoneMS == gone && slices.EqualFunc(got.Metadata, l.metadata, func(a, b *fsmpb.Pair) bool { return proto.Equal(a, b) })
}
