// Package model is the state machine of fencepost told a second time, in the
// plainest way: maps and lists, full scans, hardly an index kept beside what it
// indexes. It shares the messages of the log with package fsm and nothing else, so
// that a mistake of one is unlikely to be the other's.
//
// It has two uses: the random test of package fsm compares the two entry by entry,
// and package cluster/check replays the log of a run through it, to judge what the
// run's clients were answered. It is quick enough for some hundred thousand entries
// on some dozens of names, and has none of the limits on size and form that are the
// edge's (P15). Nothing in it may be used at once by several goroutines.
package model

import (
	"math"
	"strings"

	"fencepost/fsm/fsmpb"
)

// How long records outlive what they describe, in milliseconds of cluster clock.
const (
	keepEndedMS      = 10 * 60 * 1000
	keepRequestMS    = 10 * 60 * 1000
	keepServerMadeMS = 30 * 1000
)

const (
	maxSlots = 1000
	maxTTLMS = 1 << 40
)

// A Machine is the whole state. Its fields are for reading.
type Machine struct {
	ClusterID    string
	Index, Clock uint64 // of the last entry; the cluster clock, in milliseconds
	Floor        uint64
	RestoreFloor uint64 // what has a token or ticket at or below it is from before a jump
	LastGranted  uint64 // newest token of any name
	Leases       map[string]*Lease
	Queues       map[string][]*Waiter // by name, in ticket order; never an empty one
	Keys         map[string]*Key
	Requests     map[ID]*Request
	Nodes        map[string]string // name to id
	Totals       Totals
	Staging      *Staging // nil: no backup is being restored
	Base         uint64   // by how much jumps have moved the index

	nameOf map[uint64]string // of every token that was ever granted
	events []Event

	// What keeps full scans from being made in vain.
	holdersChanged bool   // so the floor may have
	firstGone      uint64 // no request goes earlier
	firstBare      uint64 // no key that is only a watermark has a lower one
}

// A Lease is a name with those who have it, and the one who had it last.
type Lease struct {
	Name         string
	Slots        uint64
	Holders      []*Holder // not ended, in the order of their tokens
	LastToken    uint64    // newest
	GraceUntilMS uint64    // 0: none, or it has been ended
	Gone         *Holder   // ended last
	Ended        fsmpb.Reason
	EndedMS      uint64 // when Gone did
}

// A Holder has a lease, or some of its slots.
type Holder struct {
	Holder, Principal           string
	Token, Previous, Take       uint64
	TTLMS, DeadlineMS, Renewals uint64
	GraceMS                     uint64
	Metadata                    []*fsmpb.Pair
	request                     *ID
}

// A Waiter stands in a queue.
type Waiter struct {
	Ticket, UntilMS uint64
	Acquire         *fsmpb.Acquire
	ID              ID
}

// A Key is a guarded key, or only its watermark.
type Key struct {
	Present                   bool
	Value, ContentType        string
	Version, Token, Watermark uint64
}

// An ID is what tells requests apart.
type ID struct{ Principal, Path, Key string }

// A Request is one that is remembered.
type Request struct {
	Attempt    uint64
	Outcome    *fsmpb.Outcome
	GoneMS     uint64 // 0: it waits, or its lease has not ended
	digest     string
	anyDigest  bool // it was cancelled before it came
	serverMade bool
}

// Totals count since the first entry.
type Totals struct {
	Grants, Renewals, Expirations, Releases                                  uint64
	BelowWatermark, NewerIssued, NotOnRecord, WrongLease, NotHeld, NotIssued uint64
}

// New is the state before the first entry.
func New() *Machine {
	return &Machine{
		Leases: map[string]*Lease{}, Queues: map[string][]*Waiter{}, Keys: map[string]*Key{},
		Requests: map[ID]*Request{}, Nodes: map[string]string{}, nameOf: map[uint64]string{},
		firstGone: math.MaxUint64, firstBare: math.MaxUint64,
	}
}

// Apply applies an entry: its public index (of one that restores, as it would be
// without the jump; Index is where it led to), the Raft term it has, and its command,
// which the Machine keeps. The events are good until the next Apply; the outcome is
// for reading.
func (m *Machine) Apply(index, term uint64, c *fsmpb.Command) (*fsmpb.Outcome, []Event) {
	m.Index, m.events = index, nil
	if c.Term == term && c.NowMs > m.Clock {
		m.Clock = c.NowMs
	}
	o := &fsmpb.Outcome{}
	switch {
	case c.GetAcquire() != nil:
		o = m.acquire(c.GetAcquire())
	case c.GetRenew() != nil:
		for _, r := range c.GetRenew().Renewals {
			o.Renewals = append(o.Renewals, m.renew(r))
		}
	case c.GetRelease() != nil:
		o = m.release(c.GetRelease())
	case c.GetCancel() != nil:
		o = m.cancel(c.GetCancel())
	case c.GetAdvance() != nil:
		o = m.advance()
	case c.GetWrite() != nil:
		o = m.write(c.GetWrite())
	case c.GetSetNode() != nil:
		o = m.setNode(c.GetSetNode())
	case c.GetRemoveNode() != nil:
		o = m.removeNode(c.GetRemoveNode())
	case c.GetRestoreBegin() != nil:
		o = m.restoreBegin(c.GetRestoreBegin())
	case c.GetRestoreChunk() != nil:
		o = m.restoreChunk(c.GetRestoreChunk())
	case c.GetRestoreCommit() != nil:
		o = m.restoreCommit(c.GetRestoreCommit())
	}
	if o.Index == 0 {
		o.Index = m.Index
	}
	m.setFloor()
	return o, m.events
}

// setFloor: one below the oldest token that has a record; never falling.
func (m *Machine) setFloor() {
	if !m.holdersChanged {
		return
	}
	m.holdersChanged = false
	floor := m.LastGranted
	for _, l := range m.Leases {
		for _, h := range l.Holders {
			if !m.old(h.Token) {
				floor = min(floor, h.Token-1)
			}
		}
		if !l.Held() && l.Slots == 1 && !m.old(l.Gone.Token) {
			floor = min(floor, l.Gone.Token-1)
		}
	}
	m.Floor = max(m.Floor, floor)
}

func invalid(field string) *fsmpb.Outcome {
	return &fsmpb.Outcome{Code: fsmpb.Code_CODE_INVALID_REQUEST, Field: field}
}

// nameOK is only of the form that a path gives a name.
func nameOK(name string) bool {
	for _, part := range strings.Split(name, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

// Held: somebody has it, be it that an entry is yet to end them.
func (l *Lease) Held() bool { return l != nil && len(l.Holders) > 0 }

func (l *Lease) holder(token uint64) *Holder {
	if l != nil {
		for _, h := range l.Holders {
			if h.Token == token {
				return h
			}
		}
	}
	return nil
}

// Left is how long is left until an instant of the cluster clock; 0: it is over.
func (m *Machine) Left(until uint64) uint64 {
	if until <= m.Clock {
		return 0
	}
	return until - m.Clock
}
