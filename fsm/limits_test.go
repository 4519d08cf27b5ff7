package fsm

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"fencepost/fsm/fsmpb"
)

// A reading near the end of its range would make deadlines wrap, and a lease
// that was just granted free again (P3, P7).
func TestP7_AnAbsurdReadingIsIgnored(t *testing.T) {
	s := New()
	acquire := func(index uint64) *fsmpb.Outcome {
		o, _, err := s.Apply(index, 1, &fsmpb.Command{NowMs: math.MaxUint64 - 5, Term: 1, Op: &fsmpb.Command_Acquire{
			Acquire: &fsmpb.Acquire{Name: "db", Holder: "h", TtlMs: 10_000}}})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if o := acquire(1); o.Code != fsmpb.Code_CODE_OK {
		t.Fatal(o)
	}
	if o := acquire(2); o.Code != fsmpb.Code_CODE_LEASE_HELD {
		t.Fatalf("the next entry was granted the lease too: %v", o)
	}
}

func TestSnapshotWithSomethingBehindItIsRefused(t *testing.T) {
	var b bytes.Buffer
	if _, err := New().Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSnapshot(bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	b.WriteByte(0)
	if _, err := ReadSnapshot(&b); !errors.Is(err, ErrBadSnapshot) {
		t.Fatalf("got %v", err)
	}
}
