package fsm

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"fencepost/fsm/fsmpb"
)

// TestP14_EqualDigests: two replicas, one of which is restored from its own
// snapshot now and then, have one digest and one future at every index.
func TestP14_EqualDigests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, g := New(), New(), newGenerator()
		for range rapid.IntRange(1, 150).Draw(t, "entries") {
			c := g.next(t)
			got, events, err := a.Apply(g.index, g.term, throughLog(t, c))
			if err != nil {
				t.Fatal(err)
			}
			if other, _, err := b.Apply(g.index, g.term, throughLog(t, c)); err != nil || !proto.Equal(got, other) {
				t.Fatalf("entry %d: %v and %v, error %v", g.index, got, other, err)
			}
			if oneIn(t, 5, "restore") {
				b = throughSnapshot(t, b)
			}
			if a.Digest() != b.Digest() {
				t.Fatalf("entry %d, %v: digests differ", g.index, c)
			}
			if x, y := derived(a), derived(b); x != y {
				t.Fatalf("entry %d, %v: a restored state has other indexes:\n%s\n%s", g.index, c, x, y)
			}
			if oneIn(t, 10, "backup") {
				g.restore.backUp(t, a)
			}
			g.learn(t, c, got, events)
			if oneIn(t, 40, "recovery") {
				was := a.Index()
				if err := errors.Join(a.Jump(Jump{Above: g.index}), b.Jump(Jump{Above: g.index})); err != nil {
					t.Fatal(err)
				}
				g.jumped(a.Index() - was)
			}
		}
	})
}

// derived is what a state keeps beside its records.
func derived(s *State) string {
	return fmt.Sprintln(
		s.tokens.Keys(), s.tokens.Values(), s.expiries.Items(), s.removals.Items(), s.tombstones.Items(),
		s.tickets.Keys(), s.tickets.Values(), s.queues.Keys(), s.queues.Values(), s.ready.Items(), s.held, s.dataBytes, s.sum, s.keySum, s.floor, s.Totals(),
	)
}

// fullRecords are records with every field set.
func fullRecords() []*fsmpb.Record {
	pair := []*fsmpb.Pair{{Key: "k", Value: "v"}, {Key: "l", Value: "w"}}
	outcome := &fsmpb.Outcome{
		Code: fsmpb.Code_CODE_STALE_TOKEN, Reason: fsmpb.Reason_REASON_NOT_HELD, Field: "f", Index: 1, Name: "n", Holder: "h",
		Token: 2, LastToken: 3, PreviousToken: 4, TtlMs: 5, ExpiresInMs: 6, Metadata: pair, Released: true,
		Watermark: 7, Version: 8, OpIndex: 9, Key: "k", Ticket: 12, Slots: 13, Take: 14, OldestToken: 15, QueueLength: 16,
		GraceMs: 17, Attempt: 18, Cancelled: true,
		Ops: []*fsmpb.OpOutcome{{Kind: fsmpb.WriteOp_KIND_PUT, Key: "k", Version: 10, Deleted: true, Watermark: 11}},
	}
	holder := func(token uint64) *fsmpb.HolderRecord {
		return &fsmpb.HolderRecord{
			Holder: "h", Principal: "p", Token: token, Take: 2, TtlMs: 21, DeadlineMs: 22, GraceMs: 23, Renewals: 24,
			PreviousToken: 19, Metadata: pair, RequestKey: "q",
		}
	}
	return []*fsmpb.Record{
		{Record: &fsmpb.Record_Header{Header: &fsmpb.Header{
			Version: snapshotVersion, ClusterId: "c", Index: 1000, Base: 100, ClockMs: 50, Floor: 1, LastToken: 900, RestoreFloor: 1,
		}}},
		{Record: &fsmpb.Record_Node{Node: &fsmpb.Node{
			Name: "n", Id: "i", RaftAddr: "r", HttpAddr: "h", Voter: true, Version: "v", Understands: 1,
		}}},
		{Record: &fsmpb.Record_Lease{Lease: &fsmpb.LeaseRecord{
			Name: "n", Slots: 5, Former: holder(20),
			Ended: fsmpb.Reason_REASON_EXPIRED, GoneMs: 23, LastToken: 25, GraceUntilMs: 26,
		}}},
		{Record: &fsmpb.Record_Holder{Holder: holder(21)}},
		{Record: &fsmpb.Record_Holder{Holder: holder(25)}},
		{Record: &fsmpb.Record_Waiter{Waiter: &fsmpb.WaiterRecord{Ticket: 30, UntilMs: 31, Acquire: &fsmpb.Acquire{
			Name: "n", Holder: "h", Principal: "p", TtlMs: 32, Metadata: pair, WaitMs: 33, Slots: 5, Take: 2, GraceMs: 34,
			Request: &fsmpb.Request{Key: "k", Path: "p", Digest: []byte("d"), ServerMade: true},
		}}}},
		{Record: &fsmpb.Record_Key{Key: &fsmpb.KeyRecord{
			Key: "k", Present: true, Value: []byte("v"), ContentType: "t", Version: 30, Token: 31, Watermark: 32,
		}}},
		{Record: &fsmpb.Record_Request{Request: &fsmpb.RequestRecord{
			Principal: "p", Request: &fsmpb.Request{Key: "k", Path: "p", Digest: []byte("d"), ServerMade: true},
			Attempt: 1, Outcome: outcome, GoneMs: 40,
		}}},
		{Record: &fsmpb.Record_Staging{Staging: &fsmpb.StagingRecord{Id: "s", BackupIndex: 99, TtlMs: 41, DeadlineMs: 42}}},
		{Record: &fsmpb.Record_Staged{Staged: &fsmpb.KeyRecord{
			Key: "k", Present: true, Value: []byte("v"), ContentType: "t", Version: 50, Token: 51, Watermark: 52,
		}}},
	}
}

// TestP14_EveryFieldCounts: a difference in any one field of any record is a
// difference of the digest. It walks the schema, so that a new field is in it.
func TestP14_EveryFieldCounts(t *testing.T) {
	records := fullRecords()
	want := digestOf(t, records)
	mutations, uncounted := 0, uncountedFields()
	for i, r := range records {
		body := proto.CloneOf(r)
		eachMutation(t, "", body.ProtoReflect(), func(path string) {
			if uncounted[path] {
				return
			}
			mutations++
			changed := append([]*fsmpb.Record{}, records...)
			changed[i] = proto.CloneOf(body)
			if digestOf(t, changed) == want {
				t.Errorf("a change of %s leaves the digest as it was", path)
			}
		})
		if !proto.Equal(body, r) {
			t.Fatalf("the walk did not restore record %d", i)
		}
	}
	if mutations < 100 {
		t.Errorf("only %d mutations were tried", mutations)
	}
	for path := range uncounted {
		if !walked(t, records, path) {
			t.Errorf("%s is exempt, but there is no such field", path)
		}
	}
}

// uncountedFields are not in the digest, each for a reason.
func uncountedFields() map[string]bool {
	return map[string]bool{
		"header.version": true, // of the format, not of the state
		"header.totals":  true, // counts for people: they decide nothing, and a later version may count more
		// Outcomes of renewals, of cancels and of malformed requests are never remembered.
		"request.outcome.field":     true,
		"request.outcome.renewals":  true,
		"request.outcome.cancelled": true,
		// Of a waiter that are looked at no more: until_ms has come of the first,
		// and the record of the request has the others.
		"waiter.acquire.wait_ms":             true,
		"waiter.acquire.request.digest":      true,
		"waiter.acquire.request.server_made": true,
	}
}

// walked says whether the walk over the records comes by this path.
func walked(t *testing.T, records []*fsmpb.Record, want string) (found bool) {
	for _, r := range records {
		eachMutation(t, "", proto.CloneOf(r).ProtoReflect(), func(path string) { found = found || path == want })
	}
	return found
}

func digestOf(t *testing.T, records []*fsmpb.Record) uint64 {
	t.Helper()
	load := loader{s: New()}
	for i, r := range records {
		if err := load.record(r, i == 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := load.finishLease(); err != nil {
		t.Fatal(err)
	}
	return load.s.Digest()
}

// eachMutation changes one field of the message after another, at any depth,
// calls visit with its path, and changes it back.
func eachMutation(t *testing.T, prefix string, m protoreflect.Message, visit func(path string)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.ContainingOneof() != nil && !m.Has(f) {
			continue // another kind of record
		}
		path := prefix + string(f.Name())
		switch {
		case f.IsList():
			mutateList(t, path, m, f, visit)
		case f.Message() != nil && m.Has(f):
			eachMutation(t, path+".", m.Mutable(f).Message(), visit)
		case f.Message() != nil:
			visit(path) // exempt, or an error: fullRecords should have set it
		default:
			old := m.Get(f)
			m.Set(f, another(t, f, old))
			visit(path)
			m.Set(f, old)
		}
	}
}

// mutateList changes each element, and then leaves out the last.
func mutateList(t *testing.T, path string, m protoreflect.Message, f protoreflect.FieldDescriptor, visit func(string)) {
	list := m.Mutable(f).List()
	n := list.Len()
	if n == 0 {
		visit(path)
		m.Clear(f)
		return
	}
	for i := range n {
		eachMutation(t, fmt.Sprintf("%s[%d].", path, i), list.Get(i).Message(), visit)
	}
	last := list.Get(n - 1)
	list.Truncate(n - 1)
	visit(path)
	list.Append(last)
}

// another is a value of the field that is not the old one.
func another(t *testing.T, f protoreflect.FieldDescriptor, old protoreflect.Value) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(!old.Bool())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(old.String() + "x")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(append([]byte("x"), old.Bytes()...))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(old.Uint()) + 1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(old.Uint() + 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(old.Enum() - 1)
	}
	t.Fatalf("a field of kind %v, which no record had so far", f.Kind())
	return protoreflect.Value{}
}
