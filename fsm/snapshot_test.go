package fsm

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"fencepost/fsm/fsmpb"
)

// smallState has a record of each kind.
func smallState(t testing.TB) *State {
	t.Helper()
	s := New()
	mustApply(t, s, 0, &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{
		ClusterId: "c1", Node: &fsmpb.Node{Name: "n1", Id: "r1"},
	}}})
	a := acquireOf("db", "h", 1000)
	a.GetAcquire().Request = &fsmpb.Request{Key: "k", Path: "p", Digest: []byte("d")}
	a.GetAcquire().Metadata = []*fsmpb.Pair{{Key: "m", Value: "1"}}
	db := mustApply(t, s, 10, a).Token
	mail := mustApply(t, s, 20, acquireOf("mail", "h", 1000)).Token
	mustApply(t, s, 20, releaseOf("mail", mail))
	mustApply(t, s, 20, writeOf(db, putOf("x", "value"), &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_FENCE, Key: "y"}))
	// One that is shared, with a grace; one whose head can be granted; one that
	// somebody waits for.
	for _, key := range []string{"p1", "p2", "p3"} {
		mustApply(t, s, 20, waitFor("pool", key, 3, 1))
	}
	short := waitFor("pool", "p4", 3, 3)
	mustApply(t, s, 20, short)
	short = waitFor("free", "f1", 1, 1)
	short.GetAcquire().TtlMs = 10
	mustApply(t, s, 20, short)
	mustApply(t, s, 20, waitFor("free", "f2", 1, 1))
	mustApply(t, s, 30, acquireOf("free", "h", 1000))
	return s
}

// waitFor asks for some slots of a lease, and waits 100 ms if there are none.
func waitFor(name, key string, slots, take uint64) *fsmpb.Command {
	c := acquireOf(name, key, 1000)
	a := c.GetAcquire()
	a.Slots, a.Take, a.WaitMs, a.GraceMs = slots, take, 100, 5
	a.Request = &fsmpb.Request{Key: key, Path: "acquire/" + name, Digest: []byte(key)}
	return c
}

// TestP12_SnapshotKeepsTheQueue: a state that was restored goes on where the
// other one does: who waits, who can be granted, who shares, what is in grace.
func TestP12_SnapshotKeepsTheQueue(t *testing.T) {
	s := smallState(t)
	if c := s.Counts(); c.Waiters != 2 || s.Ready() != 0 || c.Held != 2 {
		t.Fatalf("%+v, %d ready: not the state that the test is about", c, s.Ready())
	}
	if l, _ := s.Lease("free"); l.GraceUntilMS != 35 {
		t.Fatalf("grace until %d, want one that runs", l.GraceUntilMS)
	}
	mustApply(t, s, 40, waitFor("free", "f3", 1, 1)) // ends the grace, and grants nobody
	restored := throughSnapshot(t, s)
	if s.Ready() != 1 || derived(s) != derived(restored) {
		t.Fatalf("%d ready; indexes\n%s, restored\n%s", s.Ready(), derived(s), derived(restored))
	}
	for _, now := range []uint64{40, 60, 1000, 1020, 1021, 1030, 1040, 1045, 3000} {
		a, b := applyEvents(t, s, now, advanceOf()), applyEvents(t, restored, now, advanceOf())
		if !slices.EqualFunc(a, b, sameEvent) || s.Digest() != restored.Digest() {
			t.Fatalf("at %d: %s, restored %s", now, eventsText(a), eventsText(b))
		}
	}
	if c := s.Counts(); c.Waiters != 0 || c.Held != 0 || s.Totals().Grants != 7 {
		t.Errorf("in the end %+v, %+v", c, s.Totals())
	}
}

func snapshotBytes(t testing.TB, s *State) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestP14_DamagedSnapshots: every truncation and every flipped bit is found.
func TestP14_DamagedSnapshots(t *testing.T) {
	s := smallState(t)
	whole := snapshotBytes(t, s)
	buffer := bufio.NewReaderSize(nil, 256<<10) // saves the reader from making its own, thousands of times
	read := func(b []byte) error {
		buffer.Reset(bytes.NewReader(b))
		got, err := ReadSnapshot(buffer)
		if err == nil && got.Digest() != s.Digest() {
			t.Fatal("read without an error a state that was not written")
		}
		return err
	}
	if err := read(whole); err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if err := read(whole[:n]); !errors.Is(err, ErrBadSnapshot) {
			t.Fatalf("cut to %d bytes of %d: %v, want ErrBadSnapshot", n, len(whole), err)
		}
	}
	damaged := bytes.Clone(whole)
	for i := range damaged {
		for bit := range 8 {
			damaged[i] ^= 1 << bit
			if err := read(damaged); !errors.Is(err, ErrBadSnapshot) {
				t.Fatalf("bit %d of byte %d of %d flipped: %v, want ErrBadSnapshot", bit, i, len(whole), err)
			}
			damaged[i] ^= 1 << bit
		}
	}
}

// TestSnapshotReadErrors: a reader that fails is not a bad snapshot, and its
// error is not lost.
func TestSnapshotReadErrors(t *testing.T) {
	whole, broken := snapshotBytes(t, smallState(t)), errors.New("the disk")
	for n := range whole {
		_, err := ReadSnapshot(io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) || errors.Is(err, ErrBadSnapshot) {
			t.Fatalf("the reader fails after %d bytes: got %v, want its error", n, err)
		}
	}
}

// TestSnapshotWriteErrors: a writer that fails at any byte is an error.
func TestSnapshotWriteErrors(t *testing.T) {
	s := smallState(t)
	for i := range 200 {
		// More than the writer's buffer, so that it fails early and late.
		mustApply(t, s, 20, writeOf(2, putOf(fmt.Sprint("big/", i), strings.Repeat("x", 8<<10))))
	}
	total := len(snapshotBytes(t, s))
	for n := 0; n < total; n += 50_000 {
		if _, err := s.Snapshot().WriteTo(&shortWriter{left: n}); !errors.Is(err, io.ErrShortWrite) {
			t.Fatalf("the writer fails after %d bytes of %d: %v", n, total, err)
		}
	}
	if n, err := s.Snapshot().WriteTo(&shortWriter{left: total}); err != nil || n != int64(total) {
		t.Errorf("wrote %d of %d, error %v", n, total, err)
	}
}

type shortWriter struct{ left int }

func (w *shortWriter) Write(b []byte) (int, error) {
	if len(b) > w.left {
		return w.left, io.ErrShortWrite
	}
	w.left -= len(b)
	return len(b), nil
}

// TestP15_SnapshotClaimsAreNotTrusted: a few bytes that claim to be a large
// record cost no memory.
func TestP15_SnapshotClaimsAreNotTrusted(t *testing.T) {
	for _, claim := range []uint64{1, 1 << 20, maxFrameBytes, maxFrameBytes + 1, 1 << 40, 1<<64 - 1} {
		b := append(binary.AppendUvarint([]byte(snapshotMagic), claim), "abc"...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ReadSnapshot(bytes.NewReader(b))
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrBadSnapshot) {
			t.Errorf("a record of %d bytes: %v, want ErrBadSnapshot", claim, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
			t.Errorf("a record of %d bytes that are not there took %d bytes of memory", claim, used)
		}
	}
}

// TestP14_SnapshotOfAnotherStructure: streams whose checksum is right, but
// which no state has written.
func TestP14_SnapshotOfAnotherStructure(t *testing.T) {
	records := fullRecords()
	header, node := records[0], records[1]
	trailer := func(n, digest uint64) *fsmpb.Record {
		return &fsmpb.Record{Record: &fsmpb.Record_Trailer{Trailer: &fsmpb.Trailer{Records: n, Digest: digest, DigestVersion: DigestVersion}}}
	}
	good := append(append([]*fsmpb.Record{}, records...), trailer(uint64(len(records)), digestOf(t, records)))
	if _, err := ReadSnapshot(bytes.NewReader(sealed(t, good...))); err != nil {
		t.Fatalf("a stream as it should be: %v", err)
	}
	newer := fullRecords()[0]
	newer.GetHeader().Version++
	unknown := fullRecords()[1]
	unknown.GetNode().ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 1})
	cases := map[string][]*fsmpb.Record{
		"nothing":                {},
		"no trailer":             {header, node},
		"no header":              {node, trailer(1, 0)},
		"only a trailer":         {trailer(0, New().Digest())},
		"two headers":            {header, header, trailer(2, digestOf(t, records[:1]))},
		"wrong count":            {header, node, trailer(1, digestOf(t, records[:2]))},
		"wrong digest":           {header, node, trailer(2, 1)},
		"two trailers":           {header, node, trailer(2, digestOf(t, records[:2])), trailer(2, digestOf(t, records[:2]))},
		"records after trailer":  {header, trailer(1, digestOf(t, records[:1])), node},
		"newer format":           {newer, trailer(1, digestOf(t, records[:1]))},
		"unknown field":          {header, unknown, trailer(2, digestOf(t, records[:2]))},
		"waiter without acquire": {header, {Record: &fsmpb.Record_Waiter{Waiter: &fsmpb.WaiterRecord{Ticket: 1}}}, trailer(2, 0)},
		"waiter without request": {header, {Record: &fsmpb.Record_Waiter{Waiter: &fsmpb.WaiterRecord{
			Ticket: 1, Acquire: &fsmpb.Acquire{Name: "n", Holder: "h", TtlMs: 1},
		}}}, trailer(2, 0)},
		"lease without holders": {header, {Record: &fsmpb.Record_Lease{Lease: &fsmpb.LeaseRecord{Name: "n", Slots: 1}}}, trailer(2, 0)},
		"request without id":    {header, {Record: &fsmpb.Record_Request{Request: &fsmpb.RequestRecord{Principal: "p"}}}, trailer(2, 0)},
	}
	for name, c := range cases {
		if _, err := ReadSnapshot(bytes.NewReader(sealed(t, c...))); !errors.Is(err, ErrBadSnapshot) {
			t.Errorf("%s: %v, want ErrBadSnapshot", name, err)
		}
	}
}

// TestSnapshotWhileApplying: a snapshot is the state at its index, whatever is
// applied while it is written. Run it with -race.
func TestSnapshotWhileApplying(t *testing.T) {
	s := New()
	token := uint64(0)
	entry := func(i int) {
		now := uint64(i) * 20
		switch i % 4 {
		case 0:
			token = mustApply(t, s, now, acquireOf(fmt.Sprint("lease/", i%97), "h", 10_000)).Token
			mustApply(t, s, now, waitFor(fmt.Sprint("pool/", i%13), fmt.Sprint("w", i), 3, 1+uint64(i/4%3)))
		case 1:
			mustApply(t, s, now, writeOf(max(token, 1), putOf(fmt.Sprint("key/", i%203), fmt.Sprint(i))))
		case 2:
			mustApply(t, s, now, advanceOf())
			mustApply(t, s, now, &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{
				ClusterId: "c", Node: &fsmpb.Node{Name: fmt.Sprint("n", i%5), Id: fmt.Sprint(i)},
			}}})
		case 3:
			c := releaseOf(fmt.Sprint("lease/", (i-3)%97), max(token, 1))
			c.GetRelease().Request = &fsmpb.Request{Key: fmt.Sprint(i), Path: "p", Digest: []byte{byte(i)}}
			mustApply(t, s, now, c)
		}
	}
	for i := range 2000 {
		entry(i)
	}
	for round := range 4 {
		p, late, index, digest := s.Snapshot(), s.Snapshot(), s.Index(), s.Digest()
		if p.Index() != index {
			t.Fatalf("snapshot at index %d, want %d", p.Index(), index)
		}
		var b bytes.Buffer
		written := make(chan error)
		go func() {
			_, err := p.WriteTo(&b)
			written <- err
		}()
		for i := range 1000 {
			entry(2000 + round*1000 + i)
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		// One that is written only now is the same, byte for byte.
		var c bytes.Buffer
		if _, err := late.WriteTo(&c); err != nil || !bytes.Equal(b.Bytes(), c.Bytes()) {
			t.Errorf("written later, a snapshot differs, error %v", err)
		}
		got, err := ReadSnapshot(&b)
		if err != nil {
			t.Fatal(err)
		}
		if got.Index() != index || got.Digest() != digest {
			t.Errorf("restored index %d digest %x, want %d %x", got.Index(), got.Digest(), index, digest)
		}
		if s.Digest() == digest {
			t.Error("the entries changed nothing, the test shows nothing")
		}
	}
}

// TestSnapshotIsConstant: taking one costs the same however much is stored.
func TestSnapshotIsConstant(t *testing.T) {
	cost := func(keys int) float64 {
		s := New()
		token := mustApply(t, s, 0, acquireOf("db", "h", 1000)).Token
		for i := range keys {
			mustApply(t, s, 0, writeOf(token, putOf(fmt.Sprint(i), "v")))
		}
		return testing.AllocsPerRun(10, func() { s.Snapshot() })
	}
	if few, many := cost(1), cost(20_000); many > few {
		t.Errorf("%v allocations with one key, %v with many", few, many)
	}
}

// P9, P15: the largest that the limits allow goes through a snapshot; and one
// that could not be read is not written, since the log is cut off behind it.
func TestP9_SnapshotOfTheLargestLease(t *testing.T) {
	s := New()
	var pairs []*fsmpb.Pair // 4 KiB as the API counts it, and three times that here
	for i := range 2048 {
		pairs = append(pairs, &fsmpb.Pair{Key: string([]byte{byte(i>>6) | 64, byte(i&63) | 64})})
	}
	slices.SortFunc(pairs, func(a, b *fsmpb.Pair) int { return strings.Compare(a.Key, b.Key) })
	for i := range MaxSlots {
		c := waitFor(strings.Repeat("n", 512), fmt.Sprint("k", i), MaxSlots, 1)
		c.GetAcquire().Metadata, c.GetAcquire().TtlMs = pairs, 1<<30
		if o := mustApply(t, s, 0, c); o.Code != fsmpb.Code_CODE_OK {
			t.Fatalf("holder %d: %v", i, o.Code)
		}
	}
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if b.Len() < maxFrameBytes/4 {
		t.Fatalf("only %d bytes: this is not large", b.Len())
	}
	restored, err := ReadSnapshot(&b)
	if err != nil {
		t.Fatal(err)
	}
	if restored.Digest() != s.Digest() || restored.Counts() != s.Counts() {
		t.Error("it is not what was written")
	}

	s.setKey("large", &Key{Key: "large", Present: true, Value: make([]byte, maxFrameBytes)})
	if _, err := s.Snapshot().WriteTo(io.Discard); err == nil {
		t.Error("a record that nobody could read was written")
	}
}
