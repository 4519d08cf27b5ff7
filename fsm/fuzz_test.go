package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"fencepost/fsm/fsmpb"
)

// someCommands are one of each kind, with every field set once.
func someCommands() []*fsmpb.Command {
	request := &fsmpb.Request{Key: "k", Path: "p", Digest: []byte("d"), ServerMade: true}
	version := uint64(0)
	acquire, write := acquireOf("a/b", "h", 1000), writeOf(1, putOf("k", "v"))
	acquire.NowMs, acquire.Term = 5, 1
	acquire.GetAcquire().Request, acquire.GetAcquire().Principal = request, "p"
	acquire.GetAcquire().Metadata = []*fsmpb.Pair{{Key: "m", Value: "1"}}
	acquire.GetAcquire().WaitMs, acquire.GetAcquire().GraceMs = 60_000, 1000
	acquire.GetAcquire().Slots, acquire.GetAcquire().Take = 3, 2
	write.GetWrite().Guard, write.GetWrite().Lease, write.GetWrite().Request = fsmpb.Guard_GUARD_HELD, "a/b", request
	write.GetWrite().Ops = append(write.GetWrite().Ops, &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_CHECK, Key: "x", IfVersion: &version})
	release := releaseOf("a/b", 1)
	release.GetRelease().Request = request
	return []*fsmpb.Command{
		acquire, write, release, advanceOf(), tickOf(),
		{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: "a/b", Principal: "p", Request: request, Attempt: 1}}},
		{Op: &fsmpb.Command_Renew{Renew: &fsmpb.Renew{Renewals: []*fsmpb.Renewal{{Name: "a/b", Token: 1, TtlMs: 9}, {}}}}},
		{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{Node: &fsmpb.Node{Name: "n", Id: "i"}, ClusterId: "c"}}},
		{Op: &fsmpb.Command_RemoveNode{RemoveNode: &fsmpb.RemoveNode{Name: "n", Id: "i"}}},
	}
}

// TestP14_DecodeRefusesTheUnknown: a field, command or enum value that this
// version does not know stops the node, at whatever depth it is; for to skip it
// would be to diverge from the replicas that know it.
func TestP14_DecodeRefusesTheUnknown(t *testing.T) {
	for _, c := range someCommands() {
		eachMessage(c.ProtoReflect(), func(m protoreflect.Message) {
			m.SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4000, protowire.VarintType), 1))
			if d, err := Decode(encoded(t, c)); err == nil {
				t.Errorf("an unknown field of %s was skipped: %v", m.Descriptor().FullName(), d)
			}
			m.SetUnknown(nil)
			fields := m.Descriptor().Fields()
			for i := range fields.Len() {
				f := fields.Get(i)
				if f.Kind() != protoreflect.EnumKind {
					continue
				}
				old := m.Get(f)
				m.Set(f, protoreflect.ValueOfEnum(4000))
				if d, err := Decode(encoded(t, c)); err == nil {
					t.Errorf("an unknown value of %s was let through: %v", f.FullName(), d)
				}
				m.Set(f, old)
			}
		})
		if d, err := Decode(encoded(t, c)); err != nil || !proto.Equal(d, c) {
			t.Errorf("decoded %v, error %v, want %v", d, err, c)
		}
	}
	later := protowire.AppendBytes(protowire.AppendTag(nil, 22, protowire.BytesType), nil)
	if c, err := Decode(later); err == nil {
		t.Errorf("a command of a later version was decoded as %v", c)
	}
}

func encoded(t testing.TB, c *fsmpb.Command) []byte {
	t.Helper()
	b, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// eachMessage calls visit with the message and every one inside it.
func eachMessage(m protoreflect.Message, visit func(protoreflect.Message)) {
	visit(m)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() == nil {
			return true
		}
		if !f.IsList() {
			eachMessage(v.Message(), visit)
			return true
		}
		for i := range v.List().Len() {
			eachMessage(v.List().Get(i).Message(), visit)
		}
		return true
	})
}

// FuzzDecode: no bytes make Decode panic; what it accepts is all it read, and
// can be applied: with an outcome, never an error, and the same on a replica.
func FuzzDecode(f *testing.F) {
	for _, c := range someCommands() {
		b, err := Encode(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	// Of what smallState has: repetitions, waiters, holders of some slots.
	again := waitFor("pool", "p4", 3, 3)
	again.NowMs, again.Term, again.GetAcquire().WaitMs = 100, 1, 0
	for _, c := range []*fsmpb.Command{
		again, waitFor("pool", "p1", 3, 1), waitFor("pool", "p5", 3, 1), waitFor("free", "f2", 1, 1), waitFor("db", "x", 2, 2), {
			NowMs: 36, Term: 1, Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{
				Name: "pool", Request: &fsmpb.Request{Key: "p1", Path: "acquire/pool"}, Attempt: 1,
			}},
		}, {NowMs: 1020, Term: 1, Op: advanceOf().Op},
	} {
		f.Add(encoded(f, c))
	}
	f.Add([]byte{0x9a, 1, 0})          // kept for a later command
	f.Add([]byte{0x72, 0, 0xf8, 1, 1}) // an unknown field
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(encoded(t, c))
		if err != nil || !proto.Equal(c, again) {
			t.Fatalf("%v came back as %v, error %v", c, again, err)
		}
		one, two := smallState(t), smallState(t)
		o, _, err := one.Apply(one.Index()+1, 1, c)
		if err != nil || o == nil {
			t.Fatalf("apply %v: %v, error %v", c, o, err)
		}
		p, _, err := two.Apply(two.Index()+1, 1, again)
		if err != nil || !proto.Equal(o, p) || one.Digest() != two.Digest() {
			t.Fatalf("apply %v: %v, then %v, error %v", c, o, p, err)
		}
		if _, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, one))); err != nil {
			t.Fatalf("after %v the state's own snapshot cannot be read: %v", c, err)
		}
	})
}

// sealed is a snapshot of these records with the checksum that it should have.
func sealed(t testing.TB, records ...*fsmpb.Record) []byte {
	t.Helper()
	return sealedAs(t, snapshotMagic, records...)
}

func sealedAs(t testing.TB, magic string, records ...*fsmpb.Record) []byte {
	t.Helper()
	var b []byte
	for _, r := range records {
		body, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		b = append(binary.AppendUvarint(b, uint64(len(body))), body...)
	}
	return seal(magic, b)
}

func seal(magic string, frames []byte) []byte {
	b := append(append([]byte(magic), frames...), 0)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// FuzzReadSnapshot: no bytes make it panic; what it refuses it refuses as a bad
// snapshot; what it accepts has a snapshot of its own that is read again. With
// asFrames the bytes get a magic and a checksum, so that they come further.
func FuzzReadSnapshot(f *testing.F) {
	f.Add(snapshotBytes(f, smallState(f)), false)
	f.Add(snapshotBytes(f, New()), false)
	whole := snapshotBytes(f, smallState(f))
	f.Add(whole[len(snapshotMagic):len(whole)-sha256.Size-1], true)
	for _, r := range fullRecords() {
		one := sealed(f, fullRecords()[0], r)
		f.Add(one[len(snapshotMagic):len(one)-sha256.Size-1], true)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, true)
	f.Fuzz(func(t *testing.T, b []byte, asFrames bool) {
		if asFrames {
			b = seal(snapshotMagic, b)
		}
		s, err := ReadSnapshot(bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, ErrBadSnapshot) {
				t.Fatalf("%v, want ErrBadSnapshot", err)
			}
			return
		}
		again, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, s)))
		if err != nil || again.Digest() != s.Digest() {
			t.Fatalf("a state that was read cannot be written and read again: %v", err)
		}
	})
}
