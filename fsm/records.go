package fsm

import (
	"cmp"
	"slices"

	"fencepost/fsm/fsmpb"
)

// keyOverheadBytes is what a key counts against the data quota beside its name
// and value: the record and its place in the trees.
const keyOverheadBytes = 64

// A Lease is a name that is held, or was. It is never changed once it is in a
// State; a change replaces it, and so with its Holders.
type Lease struct {
	Name string
	// Slots is how many there are to be taken, by the holders or the last ones.
	Slots     uint64
	Holders   []*Holder // live, in token order
	LastToken uint64    // newest granted for the name
	// GraceUntilMS is the cluster time until which nobody is granted the name.
	GraceUntilMS uint64

	former *Holder      // the one that ended last
	ended  fsmpb.Reason // why it did
	goneMS uint64       // when a name without holders leaves the record
	hash   uint64       // of all but the holders
}

// A Holder has a lease, or some of its slots. It is never changed once it is in
// a State.
type Holder struct {
	Holder    string
	Principal string
	Token     uint64
	Take      uint64 // slots
	TTLMS     uint64
	// DeadlineMS is the cluster time at which the holder's time is over.
	DeadlineMS uint64
	GraceMS    uint64
	Renewals   uint64
	Previous   uint64        // the token issued for the name before; 0: none on record
	Metadata   []*fsmpb.Pair // sorted by key

	requestKey string // of the remembered request that acquired it; "": none
	hash       uint64
}

// ExpiresInMS is what is left of the holder's time; 0 if it is over.
func (h *Holder) ExpiresInMS(clockMS uint64) uint64 { return left(h.DeadlineMS, clockMS) }

func left(untilMS, clockMS uint64) uint64 { return max(untilMS, clockMS) - clockMS }

// Live says whether the lease has holders, be it that their time is over.
func (l *Lease) Live() bool { return len(l.Holders) > 0 }

// Used is how many slots are taken.
func (l *Lease) Used() (n uint64) {
	for _, h := range l.Holders {
		n += h.Take
	}
	return n
}

// firstToken is the oldest of the holders'; 0: there is none.
func (l *Lease) firstToken() uint64 {
	if l.Live() {
		return l.Holders[0].Token
	}
	return 0
}

// First is the holder that ends first; nil if there is none.
func (l *Lease) First() (first *Holder) {
	for _, h := range l.Holders {
		if first == nil || h.DeadlineMS < first.DeadlineMS {
			first = h
		}
	}
	return first
}

// oldest is the oldest token whose time is not over; 0: there is none.
func (l *Lease) oldest(clockMS uint64) uint64 {
	for _, h := range l.Holders {
		if h.DeadlineMS > clockMS {
			return h.Token
		}
	}
	return 0
}

func byToken(h *Holder, token uint64) int { return cmp.Compare(h.Token, token) }

// holder finds a live holder by its token.
func (l *Lease) holder(token uint64) *Holder {
	i, ok := slices.BinarySearchFunc(l.Holders, token, byToken)
	if !ok {
		return nil
	}
	return l.Holders[i]
}

// onRecord is the holder with this token, if the token may still write under
// guard latest: a live one, or of a lease with one slot the last that ended.
func (l *Lease) onRecord(token, clockMS uint64) *Holder {
	h := l.holder(token)
	switch {
	case h != nil && l.Slots == 1 && clockMS >= h.DeadlineMS+KeepEndedMS:
		return nil // its Advance is late
	case h != nil:
		return h
	case l.formerOnRecord() && l.former.Token == token && clockMS < l.goneMS:
		return l.former
	}
	return nil
}

func (l *Lease) formerOnRecord() bool { return l.Slots == 1 && !l.Live() && l.former != nil }

// previous is the token issued last for the name; 0: none on record.
func (l *Lease) previous(clockMS uint64) uint64 {
	if l.Live() || clockMS < l.goneMS {
		return l.LastToken
	}
	return 0
}

// withHolder is the lease with one more holder, which has the newest token.
func (l Lease) withHolder(h *Holder) *Lease {
	l.Holders = append(slices.Clip(l.Holders), h)
	l.LastToken = h.Token
	return &l
}

// replacing is the lease with another version of one of its holders.
func (l Lease) replacing(h *Holder) *Lease {
	l.Holders = slices.Clone(l.Holders)
	i, _ := slices.BinarySearchFunc(l.Holders, h.Token, byToken)
	l.Holders[i] = h
	return &l
}

// without is the lease after one of its holders has ended.
func (l Lease) without(h *Holder, why fsmpb.Reason, goneMS uint64) *Lease {
	kept := make([]*Holder, 0, len(l.Holders))
	for _, other := range l.Holders {
		if other.Token != h.Token {
			kept = append(kept, other)
		}
	}
	l.Holders, l.former, l.ended, l.goneMS = kept, h, why, goneMS
	return &l
}

// A Key is a guarded key: a value and a watermark, or only a watermark. It is
// never changed once it is in a State.
type Key struct {
	Key         string
	Present     bool // false: deleted or only fenced
	Value       []byte
	ContentType string
	Version     uint64 // index of the write that put the value; 0 without a value
	Token       uint64 // that put the value
	Watermark   uint64
	hash        uint64
}

func (k *Key) bytes() uint64 {
	return uint64(len(k.Key)+len(k.Value)+len(k.ContentType)) + keyOverheadBytes
}
