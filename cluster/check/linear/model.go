package linear

import (
	"fmt"
	"slices"
	"strings"

	"fencepost/httpapi/wire"
)

// linState is the state of a group. It is never changed: a step copies what it
// changes.
type linState struct {
	names []linNameState
	keys  []linKeyState
	sum   uint64 // hash of all
}

// linNameState is a lease with one slot.
type linNameState struct {
	holder uint64 // token; 0: nobody
	newest uint64 // token; 0: it was never granted
	// passed: it was granted again, to an acquire without an answer, whose token
	// nobody was told and whose lease is over.
	passed bool
	used   int // grants of acquires without an answer
}

// linKeyState is a guarded key.
type linKeyState struct {
	present   bool
	version   uint64 // 0 while it is not known
	author    int32  // the write without an answer that put it; else 0
	token     uint64
	value     uint64
	watermark uint64
}

// linModel is the service as its contract tells it, for leases with one slot, runs
// of less than ten minutes, and one principal.
type linModel struct {
	taken map[uint64]bool
}

func newLinState(names, keys int) *linState {
	return &linState{names: make([]linNameState, names), keys: make([]linKeyState, keys)}
}

func (s *linState) equal(t *linState) bool {
	return s == t || s.sum == t.sum && slices.Equal(s.names, t.names) && slices.Equal(s.keys, t.keys)
}

func mixed(numbers ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, n := range numbers {
		h ^= n
		h *= 0xff51afd7ed558ccd
		h ^= h >> 32
	}
	return h
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (n *linNameState) hash(at int) uint64 {
	return mixed(uint64(at), n.holder, n.newest, bit(n.passed), uint64(n.used))
}

func (k *linKeyState) hash(at int) uint64 {
	return mixed(^uint64(at), bit(k.present), k.version, uint64(k.author), k.token, k.value, k.watermark)
}

// withName is the state with another state of one lease.
func (s *linState) withName(at int, n linNameState) *linState {
	if s.names[at] == n {
		return s
	}
	next := *s
	next.sum ^= s.names[at].hash(at) ^ n.hash(at)
	next.names = slices.Clone(s.names)
	next.names[at] = n
	return &next
}

func (s *linState) withKey(at int, k linKeyState) *linState {
	if s.keys[at] == k {
		return s
	}
	next := *s
	next.sum ^= s.keys[at].hash(at) ^ k.hash(at)
	next.keys = slices.Clone(s.keys)
	next.keys[at] = k
	return &next
}

func (s *linState) describe(g *linGroup) string {
	var parts []string
	for i, n := range s.names {
		parts = append(parts, fmt.Sprintf("%s: held by %d, newest %d", g.names[i], n.holder, n.newest))
	}
	for i, k := range s.keys {
		parts = append(parts, fmt.Sprintf("%s: %v version %d by %d, watermark %d", g.keys[i], k.present, k.version, k.token, k.watermark))
	}
	return strings.Join(parts, "; ")
}

// step is the states that can follow an operation; none: it cannot have happened so.
func (m *linModel) step(s *linState, op *linOp) []*linState {
	switch op.kind {
	case linWrite:
		return m.write(s, op)
	case linSeeKey:
		return m.seeKey(s, op)
	case linTokenRefused:
		return one(s.refusedToken(op))
	case linMarkTold:
		return one(s.told(op.read.at, &op.read.watermark))
	}
	n := s.names[op.at]
	legal := false
	switch op.kind {
	case linAcquire:
		legal = n.holder == 0 && op.token > n.newest && (op.last == nil || n.isNewest(*op.last))
		n.holder, n.newest, n.passed = op.token, op.token, false
	case linGrantSeen:
		legal = n.holder == 0 && op.token > n.newest && n.used < op.limit
		n.holder, n.newest, n.passed = op.token, op.token, false
		n.used++
	case linExpire:
		legal = n.newest >= op.token
		n.end(op.token)
	case linIsHeld:
		legal = n.holder == op.token
	case linIsLost:
		legal = n.lost(op)
	case linIsTaken:
		legal = n.taken(op)
	case linRelease:
		legal = n.holder == op.token
		n.holder = 0
	case linEndMaybe:
		if n.holder == op.token {
			n.holder = 0
			return []*linState{s, s.withName(op.at, n)}
		}
		legal = true
	case linCancel:
		legal = n.newest >= op.token && (n.holder == op.token) == op.ok || op.again && op.ok && n.newest >= op.token
		n.end(op.token)
	case linSeeLease:
		legal = n.read(op)
	}
	if !legal {
		return nil
	}
	return []*linState{s.withName(op.at, n)}
}

// one is the states that can follow if only this one can; nil: none can.
func one(s *linState) []*linState {
	if s == nil {
		return nil
	}
	return []*linState{s}
}

func (n *linNameState) end(token uint64) {
	if n.holder == token {
		n.holder = 0
	}
}

// isNewest says whether this is the token that was granted last; 0: none was.
func (n *linNameState) isNewest(token uint64) bool { return n.newest == token && !n.passed }

// lost says whether the token can be told as lost, for the reason that is told.
func (n *linNameState) lost(op *linOp) bool {
	switch {
	case n.holder == op.token || op.was && n.newest < op.token || op.last != nil && !n.isNewest(*op.last):
		return false
	case op.reason == wire.ReasonSuperseded:
		return n.newest > op.token || n.passed
	case op.reason == wire.ReasonExpired || op.reason == wire.ReasonReleased:
		return n.isNewest(op.token)
	}
	return true
}

// taken says whether an acquire can be refused as held. Without a holder it is only
// if a grace runs or others come first.
func (n *linNameState) taken(op *linOp) bool {
	if op.token == 0 {
		return n.holder == 0 && op.ok
	}
	return n.holds(op)
}

// holds says whether the token is told as the holder's rightly: also when its time
// is up, and no entry has ended it yet.
func (n *linNameState) holds(op *linOp) bool {
	return n.holder == op.token || op.due && n.holder == 0 && n.isNewest(op.token)
}

func (n *linNameState) read(op *linOp) bool {
	switch {
	case op.absent:
		return n.isNewest(0)
	case !n.isNewest(*op.last):
		return false
	case op.ok:
		return n.holds(op)
	}
	return n.holder == 0
}
