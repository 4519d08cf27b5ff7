package fsm

import (
	"strings"

	"github.com/tidwall/btree"

	"fencepost/fsm/fsmpb"
)

// How long records outlive what they describe, in milliseconds of cluster clock.
const (
	KeepEndedMS      = 10 * 60 * 1000 // an ended lease, and so its token
	KeepRequestMS    = 10 * 60 * 1000 // a request whose key the client chose
	KeepServerMadeMS = 30 * 1000      // a request whose key the server made
)

// due is an item of the trees that are ordered by a number.
type due struct {
	at    uint64
	of    dueKind
	key   string
	token uint64 // of the holder, ticket of the waiter
}

type dueKind uint8

const (
	dueHolder    dueKind = iota // its time is over
	dueGrace                    // the same
	dueWait                     // the same
	dueLease                    // a name leaves the record
	dueRequest                  // a request does
	dueTombstone                // a watermark may go
	dueGrant                    // the head of a queue can be granted
)

func dueBefore(a, b due) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	if a.of != b.of {
		return a.of < b.of
	}
	if a.key != b.key {
		return a.key < b.key
	}
	return a.token < b.token
}

func newDueTree() *btree.BTreeG[due] {
	return btree.NewBTreeGOptions(dueBefore, btree.Options{NoLocks: true})
}

// State is everything that the replicas agree on.
type State struct {
	clusterID string
	base      uint64 // public index = base + Raft's index
	index     uint64 // public index of the last entry applied
	clockMS   uint64
	floor     uint64
	restored  uint64 // the floor that the newest jump set; see jump.go
	lastToken uint64 // newest token ever granted
	totals    Totals

	leases   *btree.Map[string, *Lease]
	keys     *btree.Map[string, *Key]
	waiters  *btree.BTreeG[*Waiter] // by name and ticket
	requests *btree.Map[string, *request]
	nodes    *btree.Map[string, *fsmpb.Node]
	staging  *staging // nil: no backup is being restored

	// Derived from the above, and rebuilt when a snapshot is read.
	tokens     *btree.Map[uint64, string] // on record, with the lease's name
	expiries   *btree.BTreeG[due]         // deadlines of holders, graces and waits
	removals   *btree.BTreeG[due]         // when ended leases and requests leave
	tombstones *btree.BTreeG[due]         // watermarks of keys without a value
	tickets    *btree.Map[uint64, string] // of waiters, with the lease's name
	queues     *btree.Map[string, queue]  // of the names that somebody waits for
	ready      *btree.BTreeG[due]         // heads that can be granted, by ticket
	held       int
	dataBytes  uint64
	sum        uint64 // of the hashes of all records but keys; see digest.go
	keySum     uint64 // of those

	// Of the entry being applied.
	events  []Event
	touched []string // names with a queue that it changed
}

// New is the state before the first entry.
func New() *State {
	return &State{
		leases:     btree.NewMap[string, *Lease](0),
		keys:       btree.NewMap[string, *Key](0),
		waiters:    newWaiterTree(),
		requests:   btree.NewMap[string, *request](0),
		nodes:      btree.NewMap[string, *fsmpb.Node](0),
		tokens:     btree.NewMap[uint64, string](0),
		expiries:   newDueTree(),
		removals:   newDueTree(),
		tombstones: newDueTree(),
		tickets:    btree.NewMap[uint64, string](0),
		queues:     btree.NewMap[string, queue](0),
		ready:      newDueTree(),
	}
}

// Totals count what has happened since the cluster was made.
type Totals struct {
	Grants, Renewals, Expirations, Releases uint64
	// Refused guarded writes, by reason.
	BelowWatermark, NewerIssued, NotOnRecord, WrongLease, NotHeld, NotIssued uint64
}

// Counts say how full the state is.
type Counts struct {
	Leases    int // live and ended
	Held      int // live
	Waiters   int
	Keys      int // with a value
	Records   int // keys, also those with only a watermark
	Requests  int // remembered
	DataBytes uint64
}

func (s *State) ClusterID() string { return s.clusterID }
func (s *State) Base() uint64      { return s.base }
func (s *State) Index() uint64     { return s.index }
func (s *State) ClockMS() uint64   { return s.clockMS }
func (s *State) Floor() uint64     { return s.floor }
func (s *State) LastToken() uint64 { return s.lastToken }
func (s *State) Totals() Totals    { return s.totals }

// Counts says how full the state is.
func (s *State) Counts() Counts {
	return Counts{
		Leases:    s.leases.Len(),
		Held:      s.held,
		Waiters:   s.waiters.Len(),
		Keys:      s.keys.Len() - s.tombstones.Len(),
		Records:   s.keys.Len(),
		Requests:  s.requests.Len(),
		DataBytes: s.dataBytes,
	}
}

// Lease is the lease of that name, live or ended and on record. The caller
// must not change it. One from before a restore is shown as the grace that it is.
func (s *State) Lease(name string) (*Lease, bool) {
	l, ok := s.leases.Get(name)
	if ok {
		l = s.asGrace(l)
	}
	return l, ok
}

// Key is the record of that key, which may be only a watermark. The caller
// must not change it.
func (s *State) Key(key string) (*Key, bool) { return s.keys.Get(key) }

// Leases lists those whose name has the prefix and comes after "after", in
// name order, at most limit. more says that others follow.
func (s *State) Leases(prefix, after string, limit int) (page []*Lease, more bool) {
	page, more = scan(s.leases, prefix, after, limit, func(*Lease) bool { return true })
	for i, l := range page {
		page[i] = s.asGrace(l)
	}
	return page, more
}

// Keys lists those that have a value, as Leases does.
func (s *State) Keys(prefix, after string, limit int) (page []*Key, more bool) {
	return scan(s.keys, prefix, after, limit, func(k *Key) bool { return k.Present })
}

// Nodes lists the members in name order. The caller must not change them.
func (s *State) Nodes() []*fsmpb.Node { return s.nodes.Values() }

// Node is the member of that name.
func (s *State) Node(name string) (*fsmpb.Node, bool) { return s.nodes.Get(name) }

func scan[T any](m *btree.Map[string, T], prefix, after string, limit int, want func(T) bool) (page []T, more bool) {
	start := prefix
	if after != "" && after >= start {
		start = after + "\x00"
	}
	m.Ascend(start, func(name string, v T) bool {
		if !strings.HasPrefix(name, prefix) {
			return false
		}
		if !want(v) {
			return true
		}
		if len(page) == limit {
			more = true
			return false
		}
		page = append(page, v)
		return true
	})
	return page, more
}

// replace puts or removes a record in one search of the tree, and returns the
// one that was there.
func replace[T any](m *btree.Map[string, T], key string, v T, put bool) (old T, existed bool) {
	if put {
		return m.Set(key, v)
	}
	return m.Delete(key)
}

// setLease is the only way a lease enters the state; it keeps every index of
// it. Nil removes the name.
func (s *State) setLease(name string, l *Lease) {
	old, existed := replace(s.leases, name, l, l != nil)
	var before, after []*Holder
	if existed {
		before = old.Holders
		s.unlist(old)
	}
	if l != nil {
		after = l.Holders
	}
	s.setHolders(name, before, after)
	if l != nil {
		l.hash = l.digest()
		s.list(l)
	}
	s.touch(name)
}

// replaceHolder gives a holder of a lease other times, the commonest change of
// all: nothing else about the lease depends on them.
func (s *State) replaceHolder(l *Lease, was, is *Holder) {
	next := l.replacing(is)
	s.leases.Set(l.Name, next)
	s.replaceTimes(l.Name, was, is)
}

func (s *State) replaceTimes(name string, was, is *Holder) {
	is.hash = is.digest(name)
	s.sum += is.hash - was.hash
	s.expiries.Delete(due{was.DeadlineMS, dueHolder, name, was.Token})
	s.expiries.Set(due{is.DeadlineMS, dueHolder, name, is.Token})
}

// list puts a lease into the indexes, but for its holders.
func (s *State) list(l *Lease) {
	s.sum += l.hash
	if l.GraceUntilMS != 0 {
		s.expiries.Set(due{at: l.GraceUntilMS, of: dueGrace, key: l.Name})
	}
	if l.Live() {
		s.held++
	} else {
		s.removals.Set(due{at: l.goneMS, of: dueLease, key: l.Name})
	}
	if l.formerOnRecord() {
		s.tokens.Set(l.former.Token, l.Name)
	}
}

// unlist takes it out of them.
func (s *State) unlist(l *Lease) {
	s.sum -= l.hash
	if l.GraceUntilMS != 0 {
		s.expiries.Delete(due{at: l.GraceUntilMS, of: dueGrace, key: l.Name})
	}
	if l.Live() {
		s.held--
	} else {
		s.removals.Delete(due{at: l.goneMS, of: dueLease, key: l.Name})
	}
	if l.formerOnRecord() {
		s.tokens.Delete(l.former.Token)
	}
}

// setHolders brings the indexes from one set of holders to another. Both are in
// token order, and a holder that has not changed is the same one.
func (s *State) setHolders(name string, before, after []*Holder) {
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) > 0 && (len(before) == 0 || after[0].Token < before[0].Token):
			h := after[0]
			h.hash = h.digest(name)
			s.sum += h.hash
			s.tokens.Set(h.Token, name)
			s.expiries.Set(due{h.DeadlineMS, dueHolder, name, h.Token})
			after = after[1:]
		case len(after) == 0 || before[0].Token < after[0].Token:
			h := before[0]
			s.sum -= h.hash
			s.tokens.Delete(h.Token)
			s.expiries.Delete(due{h.DeadlineMS, dueHolder, name, h.Token})
			before = before[1:]
		default:
			if was, is := before[0], after[0]; was != is {
				s.replaceTimes(name, was, is)
			}
			before, after = before[1:], after[1:]
		}
	}
}

// setKey is the only way a key enters the state. Nil removes it, watermark and
// all, which only the floor allows (P5).
func (s *State) setKey(key string, k *Key) {
	if old, ok := replace(s.keys, key, k, k != nil); ok {
		s.keySum -= old.hash
		s.dataBytes -= old.bytes()
		if !old.Present {
			s.tombstones.Delete(due{at: old.Watermark, of: dueTombstone, key: key})
		}
	}
	if k == nil {
		return
	}
	k.hash = k.digest()
	s.keySum += k.hash
	s.dataBytes += k.bytes()
	if !k.Present {
		s.tombstones.Set(due{at: k.Watermark, of: dueTombstone, key: key})
	}
}

// raiseFloor follows the oldest token on record. Tokens leave the record or
// join it at the top, so the floor never falls (P5).
func (s *State) raiseFloor() {
	f := s.lastToken
	s.tokens.Ascend(s.restored+1, func(oldest uint64, _ string) bool {
		f = oldest - 1
		return false
	})
	s.floor = max(s.floor, f)
}
