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

// keyOverheadBytes is what a key counts against the data quota beside its name
// and value: the record and its place in the trees.
const keyOverheadBytes = 64

// A Lease is live, or ended and kept on record. It is never changed once it is
// in a State; a change replaces it.
type Lease struct {
	Name      string
	Holder    string
	Principal string
	Token     uint64
	Previous  uint64 // the token on record for this name before; 0: none
	Live      bool
	Ended     fsmpb.Reason // why it ended, if it is not live
	TTLMS     uint64
	// DeadlineMS is the cluster time at which a live lease is over.
	DeadlineMS uint64
	// GoneMS is the cluster time at which an ended lease leaves the record.
	GoneMS   uint64
	Renewals uint64
	Metadata []*fsmpb.Pair // sorted by key
	// requestKey finds the remembered request that acquired it; "": none.
	requestKey string
	hash       uint64
}

// ExpiresInMS is what is left of the lease at a cluster time; 0 if it is over.
func (l *Lease) ExpiresInMS(clockMS uint64) uint64 {
	if !l.Live || l.DeadlineMS <= clockMS {
		return 0
	}
	return l.DeadlineMS - clockMS
}

// onRecord says whether the lease's token may still write under guard latest.
func (l *Lease) onRecord(clockMS uint64) bool {
	if l.Live {
		return clockMS < l.DeadlineMS+KeepEndedMS
	}
	return clockMS < l.GoneMS
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

// due is an item of the trees that are ordered by a number.
type due struct {
	at  uint64
	of  dueKind
	key string
}

type dueKind uint8

const (
	dueLease dueKind = iota
	dueRequest
	dueTombstone
)

func dueBefore(a, b due) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	if a.of != b.of {
		return a.of < b.of
	}
	return a.key < b.key
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
	lastToken uint64 // newest token ever granted
	totals    Totals

	leases   *btree.Map[string, *Lease]
	keys     *btree.Map[string, *Key]
	requests *btree.Map[string, *request]
	nodes    *btree.Map[string, *fsmpb.Node]

	// Derived from the above, and rebuilt when a snapshot is read.
	tokens     *btree.Map[uint64, string] // on record, with the lease's name
	expiries   *btree.BTreeG[due]         // deadlines of live leases
	removals   *btree.BTreeG[due]         // when ended leases and requests leave
	tombstones *btree.BTreeG[due]         // watermarks of keys without a value
	held       int
	dataBytes  uint64
	sum        uint64 // of the hashes of all records; see digest.go

	events []Event // of the entry being applied
}

// New is the state before the first entry.
func New() *State {
	return &State{
		leases:     btree.NewMap[string, *Lease](0),
		keys:       btree.NewMap[string, *Key](0),
		requests:   btree.NewMap[string, *request](0),
		nodes:      btree.NewMap[string, *fsmpb.Node](0),
		tokens:     btree.NewMap[uint64, string](0),
		expiries:   newDueTree(),
		removals:   newDueTree(),
		tombstones: newDueTree(),
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
		Keys:      s.keys.Len() - s.tombstones.Len(),
		Records:   s.keys.Len(),
		Requests:  s.requests.Len(),
		DataBytes: s.dataBytes,
	}
}

// Lease is the lease of that name, live or ended and on record. The caller
// must not change it.
func (s *State) Lease(name string) (*Lease, bool) { return s.leases.Get(name) }

// Key is the record of that key, which may be only a watermark. The caller
// must not change it.
func (s *State) Key(key string) (*Key, bool) { return s.keys.Get(key) }

// Leases lists those whose name has the prefix and comes after "after", in
// name order, at most limit. more says that others follow.
func (s *State) Leases(prefix, after string, limit int) (page []*Lease, more bool) {
	return scan(s.leases, prefix, after, limit, func(*Lease) bool { return true })
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
	if old, ok := replace(s.leases, name, l, l != nil); ok {
		s.sum -= old.hash
		s.tokens.Delete(old.Token)
		if old.Live {
			s.held--
			s.expiries.Delete(due{old.DeadlineMS, dueLease, name})
		} else {
			s.removals.Delete(due{old.GoneMS, dueLease, name})
		}
	}
	if l == nil {
		return
	}
	l.hash = l.digest()
	s.sum += l.hash
	s.tokens.Set(l.Token, name)
	if l.Live {
		s.held++
		s.expiries.Set(due{l.DeadlineMS, dueLease, name})
	} else {
		s.removals.Set(due{l.GoneMS, dueLease, name})
	}
}

// setKey is the only way a key enters the state. Nil removes it, watermark and
// all, which only the floor allows (P5).
func (s *State) setKey(key string, k *Key) {
	if old, ok := replace(s.keys, key, k, k != nil); ok {
		s.sum -= old.hash
		s.dataBytes -= old.bytes()
		if !old.Present {
			s.tombstones.Delete(due{old.Watermark, dueTombstone, key})
		}
	}
	if k == nil {
		return
	}
	k.hash = k.digest()
	s.sum += k.hash
	s.dataBytes += k.bytes()
	if !k.Present {
		s.tombstones.Set(due{k.Watermark, dueTombstone, key})
	}
}

// raiseFloor follows the oldest token on record. Tokens leave the record or
// join it at the top, so the floor never falls (P5).
func (s *State) raiseFloor() {
	f := s.lastToken
	if oldest, _, ok := s.tokens.Min(); ok {
		f = oldest - 1
	}
	s.floor = max(s.floor, f)
}
