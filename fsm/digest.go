package fsm

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"fencepost/fsm/fsmpb"
)

// DigestVersion changes with the way digests are made: nodes compare only
// digests of one version (P14).
const DigestVersion = 4

// Digest is a number that two replicas share if they have applied the same
// entries to the same effect. It is the sum of a hash of each record, kept up
// to date by every change, so that reading it costs the same however much is
// stored. It guards against faults, not against forgery.
func (s *State) Digest() uint64 {
	var b hashed
	b.u64(s.sum+s.keySum, s.base, s.index, s.clockMS, s.floor, s.lastToken)
	b.str(s.clusterID)
	if s.restored != 0 { // a state that never jumped has the digest it always had
		b.u64(s.restored)
	}
	if g := s.staging; g != nil {
		b.str("staging", g.id)
		b.u64(g.backupIndex, g.ttlMS, g.deadlineMS, uint64(g.keys.Len()), g.sum)
	}
	return b.sum()
}

// hashed collects the fields of a record, each so that no two records have the
// same bytes.
type hashed struct{ b []byte }

func (h *hashed) u64(vs ...uint64) {
	for _, v := range vs {
		h.b = binary.LittleEndian.AppendUint64(h.b, v)
	}
}

func (h *hashed) str(vs ...string) {
	for _, v := range vs {
		h.u64(uint64(len(v)))
		h.b = append(h.b, v...)
	}
}

func (h *hashed) flag(v bool) {
	if v {
		h.b = append(h.b, 1)
	} else {
		h.b = append(h.b, 0)
	}
}

func (h *hashed) pairs(ps []*fsmpb.Pair) {
	h.u64(uint64(len(ps)))
	for _, p := range ps {
		h.str(p.Key, p.Value)
	}
}

func (h *hashed) sum() uint64 { return xxhash.Sum64(h.b) }

func (l *Lease) digest() uint64 {
	h := hashed{make([]byte, 0, 256)}
	h.str("lease", l.Name)
	h.u64(l.Slots, l.LastToken, l.GraceUntilMS, uint64(l.ended), l.goneMS)
	h.flag(l.former != nil)
	if l.former != nil {
		h.u64(l.former.hash)
	}
	return h.sum()
}

func (d *Holder) digest(name string) uint64 {
	h := hashed{make([]byte, 0, 256)}
	h.str("holder", name, d.Holder, d.Principal, d.requestKey)
	h.u64(d.Token, d.Take, d.TTLMS, d.DeadlineMS, d.GraceMS, d.Renewals, d.Previous)
	h.pairs(d.Metadata)
	return h.sum()
}

func (w *Waiter) digest() uint64 {
	h := hashed{make([]byte, 0, 256)}
	c := w.Acquire
	h.str("waiter", c.Name, c.Holder, w.requestKey())
	h.u64(w.Ticket, w.UntilMS, c.TtlMs, c.Slots, c.Take, c.GraceMs)
	h.pairs(c.Metadata)
	return h.sum()
}

func (k *Key) digest() uint64 {
	h := hashed{make([]byte, 0, 128)}
	h.str("key", k.Key, k.ContentType)
	h.flag(k.Present)
	h.u64(k.Version, k.Token, k.Watermark, xxhash.Sum64(k.Value))
	return h.sum()
}

func (r *request) digest() uint64 {
	h := hashed{make([]byte, 0, 256)}
	h.str("request", r.principal, r.id.Path, r.id.Key, string(r.id.Digest))
	h.flag(r.id.ServerMade)
	h.u64(r.attempt, r.goneMS)
	o := r.outcome // its fields for renewals and malformed requests are never set here
	h.str(o.Name, o.Holder, o.Key)
	h.u64(uint64(o.Code), uint64(o.Reason), o.Index, o.Token, o.LastToken, o.PreviousToken, o.TtlMs, o.ExpiresInMs)
	h.u64(o.Watermark, o.Version, uint64(o.OpIndex))
	h.u64(o.Ticket, o.Slots, o.Take, o.OldestToken, o.QueueLength, o.GraceMs, o.Attempt)
	h.flag(o.Released)
	h.pairs(o.Metadata)
	h.u64(uint64(len(o.Ops)))
	for _, op := range o.Ops {
		h.str(op.Key)
		h.u64(uint64(op.Kind), op.Version, op.Watermark)
		h.flag(op.Deleted)
	}
	return h.sum()
}

func nodeDigest(n *fsmpb.Node) uint64 {
	var h hashed
	h.str("node", n.Name, n.Id, n.RaftAddr, n.HttpAddr, n.Version)
	h.flag(n.Voter)
	h.u64(uint64(n.Understands))
	return h.sum()
}
