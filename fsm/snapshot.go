package fsm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"google.golang.org/protobuf/proto"

	"fencepost/fsm/fsmpb"
)

// A snapshot is the magic, then frames, then a checksum:
//
//	"FENCEPOST\n"
//	frame*                 uvarint length, then a fsmpb.Record
//	uvarint 0, SHA-256     of everything before the checksum
//
// The first record is the header, the last the trailer, which has the digest
// of the state; so a reader knows that what it built is what was written. It is
// written and read record by record: the state is never held twice.
const (
	snapshotMagic   = "FENCEPOST\n"
	snapshotVersion = 2 // 1: before leases could be shared
	// maxFrameBytes is far above the largest record that the limits allow.
	maxFrameBytes = 64 << 20
)

// ErrBadSnapshot is wrapped by every error that is the snapshot's own fault.
var ErrBadSnapshot = errors.New("damaged or foreign snapshot")

// A Snapshot is the state at one index. It may be written while the state that
// it was taken from goes on applying.
type Snapshot struct{ s *State }

// Snapshot takes one in constant time: the trees are copied on write.
func (s *State) Snapshot() *Snapshot {
	c := *s
	c.leases, c.keys = s.leases.Copy(), s.keys.Copy()
	c.waiters, c.requests, c.nodes = s.waiters.Copy(), s.requests.Copy(), s.nodes.Copy()
	c.tokens, c.expiries, c.removals, c.tombstones = nil, nil, nil, nil
	c.tickets, c.queues, c.ready, c.events, c.touched = nil, nil, nil, nil, nil
	c.staging = s.staging.copy()
	return &Snapshot{&c}
}

// Index is the public index that the snapshot is at.
func (p *Snapshot) Index() uint64 { return p.s.index }

// WriteTo writes the snapshot. It may be called from any goroutine, by one at a time.
func (p *Snapshot) WriteTo(w io.Writer) (int64, error) {
	buffered := bufio.NewWriterSize(w, 256<<10)
	out := &snapshotWriter{w: buffered, sum: sha256.New()}
	out.raw([]byte(snapshotMagic))
	s := p.s
	out.record(&fsmpb.Record{Record: &fsmpb.Record_Header{Header: s.header()}})
	s.nodes.Scan(func(_ string, n *fsmpb.Node) bool {
		return out.record(&fsmpb.Record{Record: &fsmpb.Record_Node{Node: n}})
	})
	s.leases.Scan(func(_ string, l *Lease) bool {
		ok := out.record(&fsmpb.Record{Record: &fsmpb.Record_Lease{Lease: l.record()}})
		for _, h := range l.Holders {
			ok = ok && out.record(&fsmpb.Record{Record: &fsmpb.Record_Holder{Holder: h.record()}})
		}
		return ok
	})
	s.waiters.Scan(func(w *Waiter) bool {
		return out.record(&fsmpb.Record{Record: &fsmpb.Record_Waiter{Waiter: w.record()}})
	})
	s.keys.Scan(func(_ string, k *Key) bool {
		return out.record(&fsmpb.Record{Record: &fsmpb.Record_Key{Key: k.record()}})
	})
	s.requests.Scan(func(_ string, r *request) bool {
		return out.record(&fsmpb.Record{Record: &fsmpb.Record_Request{Request: r.record()}})
	})
	s.staging.write(out)
	out.record(&fsmpb.Record{Record: &fsmpb.Record_Trailer{Trailer: &fsmpb.Trailer{Records: out.records, Digest: s.Digest(), DigestVersion: DigestVersion}}})
	if err := out.end(buffered); err != nil {
		return out.n, fmt.Errorf("write snapshot: %w", err)
	}
	return out.n, nil
}

// end writes what follows the records.
func (w *snapshotWriter) end(buffered *bufio.Writer) error {
	w.raw([]byte{0})
	w.raw(w.sum.Sum(nil))
	if w.err == nil {
		w.err = buffered.Flush()
	}
	return w.err
}

type snapshotWriter struct {
	w       io.Writer
	sum     hash.Hash
	buf     []byte
	n       int64
	records uint64
	err     error
}

func (w *snapshotWriter) raw(b []byte) {
	if w.err != nil {
		return
	}
	w.sum.Write(b)
	n, err := w.w.Write(b)
	w.n += int64(n)
	w.err = err
}

func (w *snapshotWriter) record(r *fsmpb.Record) bool {
	if w.err != nil {
		return false
	}
	size := proto.Size(r)
	if size > maxFrameBytes { // nobody could read it, and the log is cut off behind a snapshot
		w.err = fmt.Errorf("a record of %d bytes", size)
		return false
	}
	w.buf = binary.AppendUvarint(w.buf[:0], uint64(size))
	w.buf, w.err = proto.MarshalOptions{}.MarshalAppend(w.buf, r)
	w.raw(w.buf)
	w.records++
	return w.err == nil
}

// ReadSnapshot builds a state from what WriteTo wrote. It reads to the end, and
// fails, with ErrBadSnapshot in the chain, unless every byte is as it was
// written and none follows.
func ReadSnapshot(r io.Reader) (*State, error) {
	in := &snapshotReader{r: bufio.NewReaderSize(r, 256<<10), sum: sha256.New()}
	s, err := in.state()
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return s, nil
}

type snapshotReader struct {
	r   *bufio.Reader
	sum hash.Hash
	buf []byte
	err error // of ReadByte

	bytes int64 // read so far
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrBadSnapshot}, args...)...)
}

// cut is for a read that failed: an end is the snapshot's fault, anything else
// its reader's.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return bad("it is cut short")
	}
	return err
}

// magic reads what every snapshot, or every backup, begins with.
func (r *snapshotReader) magic(want string) error {
	magic := make([]byte, len(want))
	if _, err := io.ReadFull(r.r, magic); err != nil {
		return cut(err)
	}
	r.bytes += int64(len(magic))
	if string(magic) != want {
		return bad("it does not begin like one")
	}
	r.sum.Write(magic)
	return nil
}

// ReadSnapshotHeader reads the beginning of a snapshot, and says nothing of
// whether the rest is whole. Its errors are those of ReadSnapshot.
func ReadSnapshotHeader(r io.Reader) (*fsmpb.Header, error) {
	in := &snapshotReader{r: bufio.NewReader(r), sum: sha256.New()}
	load := loader{s: New()}
	err := in.magic(snapshotMagic)
	if err == nil {
		var rec *fsmpb.Record
		if rec, err = in.record(); err == nil && rec == nil {
			err = bad("it is empty")
		} else if err == nil {
			err = load.record(rec, true)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return load.s.header(), nil
}

func (r *snapshotReader) state() (*State, error) {
	if err := r.magic(snapshotMagic); err != nil {
		return nil, err
	}
	s := New()
	var records uint64
	var trailer *fsmpb.Trailer
	load := loader{s: s}
	for {
		rec, err := r.record()
		if err != nil {
			return nil, err
		}
		if rec == nil {
			break
		}
		if trailer != nil {
			return nil, bad("records follow the trailer")
		}
		if t, ok := rec.Record.(*fsmpb.Record_Trailer); ok {
			trailer = t.Trailer
			continue
		}
		if err := load.record(rec, records == 0); err != nil {
			return nil, err
		}
		records++
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	if trailer == nil || trailer.Records != records || records == 0 {
		return nil, bad("it is not complete")
	}
	if err := load.finishLease(); err != nil {
		return nil, err
	}
	s.settle()
	if trailer.DigestVersion == DigestVersion && trailer.Digest != s.Digest() { // the checksum is of every version
		return nil, bad("the state built from it has another digest than the one it was written from")
	}
	return s, nil
}

// end reads what follows the records, and sees that it is the end.
func (r *snapshotReader) end() error {
	want := r.sum.Sum(nil)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r.r, got); err != nil {
		return cut(err)
	}
	r.bytes += int64(len(got))
	if !bytes.Equal(got, want) {
		return bad("its checksum differs")
	}
	if _, err := r.r.ReadByte(); err == nil {
		return bad("something follows it")
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// record reads one frame; nil at the end of the frames.
func (r *snapshotReader) record() (*fsmpb.Record, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil && r.err == nil {
		return nil, bad("the length of a record: %v", err)
	}
	if err != nil {
		return nil, cut(r.err)
	}
	if n == 0 {
		return nil, nil
	}
	if n > maxFrameBytes {
		return nil, bad("a record of %d bytes", n)
	}
	if b, err := r.body(int(n)); err != nil {
		return nil, err
	} else if r.buf = b; true {
		r.sum.Write(b)
	}
	rec := new(fsmpb.Record)
	if err := proto.Unmarshal(r.buf, rec); err != nil {
		return nil, bad("%v", err)
	}
	if name, ok := unknownIn(rec.ProtoReflect()); ok {
		return nil, bad("a field or value of %s is %w", name, ErrUnknown)
	}
	return rec, nil
}

// body reads n bytes without trusting n with memory before the bytes are there.
func (r *snapshotReader) body(n int) ([]byte, error) {
	const step = 1 << 20
	b := r.buf[:0]
	for len(b) < n {
		k := min(step, n-len(b))
		at := len(b)
		b = append(b, make([]byte, k)...)
		if _, err := io.ReadFull(r.r, b[at:]); err != nil {
			return nil, cut(err)
		}
	}
	r.bytes += int64(n)
	return b, nil
}

// ReadByte makes the reader fit for binary.ReadUvarint.
func (r *snapshotReader) ReadByte() (byte, error) {
	b, err := r.r.ReadByte()
	if err == nil {
		r.bytes++
		r.sum.Write([]byte{b})
	}
	r.err = err
	return b, err
}

// loader builds a state from records.
type loader struct {
	s     *State
	lease *Lease // whose holders may follow
}

// finishLease puts a lease whose holders are all there into the state.
func (p *loader) finishLease() error {
	l := p.lease
	if l == nil {
		return nil
	}
	if !l.Live() && l.former == nil {
		return bad("a lease that nobody has or had")
	}
	p.s.setLease(l.Name, l)
	p.lease = nil
	return nil
}

func (p *loader) holder(r *fsmpb.HolderRecord) error {
	if p.lease == nil {
		return bad("a holder without a lease")
	}
	h := holderOf(r)
	if n := len(p.lease.Holders); n > 0 && p.lease.Holders[n-1].Token >= h.Token {
		return bad("the holders of a lease out of order")
	}
	p.lease.Holders = append(p.lease.Holders, h)
	return nil
}

func (p *loader) record(rec *fsmpb.Record, first bool) error {
	s := p.s
	if h, ok := rec.Record.(*fsmpb.Record_Holder); ok {
		return p.holder(h.Holder)
	}
	if err := p.finishLease(); err != nil {
		return err
	}
	if h, ok := rec.Record.(*fsmpb.Record_Header); ok != first {
		return bad("its header is missing or repeated")
	} else if ok {
		return s.loadHeader(h.Header)
	}
	switch r := rec.Record.(type) {
	case *fsmpb.Record_Node:
		s.putNode(r.Node.Name, r.Node)
	case *fsmpb.Record_Lease:
		p.lease = leaseOf(r.Lease)
	case *fsmpb.Record_Waiter:
		w := &Waiter{Ticket: r.Waiter.Ticket, UntilMS: r.Waiter.UntilMs, Acquire: r.Waiter.Acquire}
		if w.Acquire == nil || w.Acquire.Request == nil {
			return bad("a waiter without a request")
		}
		s.setWaiter(w)
	case *fsmpb.Record_Key:
		s.setKey(r.Key.Key, keyOf(r.Key))
	case *fsmpb.Record_Request:
		q := requestOf(r.Request)
		if q.id == nil || q.outcome == nil {
			return bad("a request without a key or an outcome")
		}
		s.setRequest(requestKey(q.principal, q.id), q)
	case *fsmpb.Record_Staging:
		if s.staging != nil {
			return bad("two staged backups")
		}
		s.staging = stagingOf(r.Staging)
	case *fsmpb.Record_Staged:
		if s.staging == nil {
			return bad("a staged key without a staging")
		}
		s.staging.put(keyOf(r.Staged))
	default:
		return bad("a record of an unknown kind")
	}
	return nil
}

func (s *State) loadHeader(h *fsmpb.Header) error {
	if h.Version != snapshotVersion {
		return bad("format %d is %w", h.Version, ErrUnknown)
	}
	s.clusterID, s.index, s.base = h.ClusterId, h.Index, h.Base
	s.clockMS, s.floor, s.lastToken, s.restored = h.ClockMs, h.Floor, h.LastToken, h.RestoreFloor
	if t := h.Totals; t != nil {
		s.totals = Totals{
			Grants: t.Grants, Renewals: t.Renewals, Expirations: t.Expirations, Releases: t.Releases,
			BelowWatermark: t.RefusedBelowWatermark, NewerIssued: t.RefusedNewerIssued, NotOnRecord: t.RefusedNotOnRecord,
			WrongLease: t.RefusedWrongLease, NotHeld: t.RefusedNotHeld, NotIssued: t.RefusedNotIssued,
		}
	}
	return nil
}

func (s *State) header() *fsmpb.Header {
	t := s.totals
	return &fsmpb.Header{
		Version: snapshotVersion, ClusterId: s.clusterID, Index: s.index, Base: s.base,
		ClockMs: s.clockMS, Floor: s.floor, LastToken: s.lastToken, RestoreFloor: s.restored,
		Totals: &fsmpb.Totals{
			Grants: t.Grants, Renewals: t.Renewals, Expirations: t.Expirations, Releases: t.Releases,
			RefusedBelowWatermark: t.BelowWatermark, RefusedNewerIssued: t.NewerIssued, RefusedNotOnRecord: t.NotOnRecord,
			RefusedWrongLease: t.WrongLease, RefusedNotHeld: t.NotHeld, RefusedNotIssued: t.NotIssued,
		},
	}
}

func (l *Lease) record() *fsmpb.LeaseRecord {
	r := &fsmpb.LeaseRecord{
		Name: l.Name, Slots: l.Slots, Ended: l.ended, GoneMs: l.goneMS, LastToken: l.LastToken, GraceUntilMs: l.GraceUntilMS,
	}
	if l.former != nil {
		r.Former = l.former.record()
	}
	return r
}

func leaseOf(r *fsmpb.LeaseRecord) *Lease {
	l := &Lease{
		Name: r.Name, Slots: r.Slots, LastToken: r.LastToken, GraceUntilMS: r.GraceUntilMs,
		ended: r.Ended, goneMS: r.GoneMs,
	}
	if r.Former != nil {
		l.former = holderOf(r.Former)
		l.former.hash = l.former.digest(l.Name)
	}
	return l
}

func (h *Holder) record() *fsmpb.HolderRecord {
	return &fsmpb.HolderRecord{
		Holder: h.Holder, Principal: h.Principal, Token: h.Token, Take: h.Take, TtlMs: h.TTLMS, DeadlineMs: h.DeadlineMS,
		GraceMs: h.GraceMS, Renewals: h.Renewals, PreviousToken: h.Previous, Metadata: h.Metadata, RequestKey: h.requestKey,
	}
}

func holderOf(r *fsmpb.HolderRecord) *Holder {
	return &Holder{
		Holder: r.Holder, Principal: r.Principal, Token: r.Token, Take: r.Take, TTLMS: r.TtlMs, DeadlineMS: r.DeadlineMs,
		GraceMS: r.GraceMs, Renewals: r.Renewals, Previous: r.PreviousToken, Metadata: r.Metadata, requestKey: r.RequestKey,
	}
}

func (w *Waiter) record() *fsmpb.WaiterRecord {
	return &fsmpb.WaiterRecord{Ticket: w.Ticket, UntilMs: w.UntilMS, Acquire: w.Acquire}
}

func (k *Key) record() *fsmpb.KeyRecord {
	return &fsmpb.KeyRecord{
		Key: k.Key, Present: k.Present, Value: k.Value, ContentType: k.ContentType,
		Version: k.Version, Token: k.Token, Watermark: k.Watermark,
	}
}

func keyOf(r *fsmpb.KeyRecord) *Key {
	return &Key{
		Key: r.Key, Present: r.Present, Value: r.Value, ContentType: r.ContentType,
		Version: r.Version, Token: r.Token, Watermark: r.Watermark,
	}
}

func (r *request) record() *fsmpb.RequestRecord {
	return &fsmpb.RequestRecord{Principal: r.principal, Request: r.id, Attempt: r.attempt, Outcome: r.outcome, GoneMs: r.goneMS}
}

func requestOf(r *fsmpb.RequestRecord) *request {
	return &request{principal: r.Principal, id: r.Request, attempt: r.Attempt, outcome: r.Outcome, goneMS: r.GoneMs}
}
