package fsm

import (
	"cmp"
	"slices"
	"strings"

	"fencepost/fsm/fsmpb"
)

// A model is the state machine as its design tells it, in the plainest way:
// maps, full scans, no index kept beside what it indexes. It shares with the
// package only the messages, the Event and Totals structs, and constants.
type model struct {
	cluster            string
	index, clock       uint64
	floor, lastGranted uint64
	leases             map[string]*modelLease
	keys               map[string]*modelKey
	requests           map[modelID]*modelRequest
	nodes              map[string]string // name to id
	totals             Totals
	events             []Event
}

type modelLease struct {
	name, holder, principal string
	token, previous         uint64
	ttl, deadline, renewals uint64
	ended                   fsmpb.Reason // none while it has not been ended
	endedAt                 uint64
	metadata                []*fsmpb.Pair
	request                 *modelID
}

type modelKey struct {
	present                   bool
	value, contentType        string
	version, token, watermark uint64
}

type modelID struct{ principal, path, key string }

type modelRequest struct {
	digest  string
	attempt uint64
	outcome *fsmpb.Outcome
	goneAt  uint64 // 0: its lease has not ended
}

func newModel() *model {
	return &model{
		leases: map[string]*modelLease{}, keys: map[string]*modelKey{},
		requests: map[modelID]*modelRequest{}, nodes: map[string]string{},
	}
}

// over is the instant at which the lease was or will be over.
func (l *modelLease) over() uint64 {
	if l.ended != fsmpb.Reason_REASON_NONE {
		return l.endedAt
	}
	return l.deadline
}

// left is how long the lease is still held.
func (m *model) left(l *modelLease) uint64 {
	if l.ended != fsmpb.Reason_REASON_NONE || l.deadline <= m.clock {
		return 0
	}
	return l.deadline - m.clock
}

// onRecord: live, or ended less than ten minutes ago. The newest of a name is
// the only one that the map has.
func (m *model) onRecord(l *modelLease) bool {
	return m.clock < l.over() || m.clock-l.over() < KeepEndedMS
}

func (m *model) apply(index, term uint64, c *fsmpb.Command) *fsmpb.Outcome {
	m.index, m.events = index, nil
	if c.Term == term && c.NowMs > m.clock {
		m.clock = c.NowMs
	}
	var o *fsmpb.Outcome
	switch {
	case c.GetAcquire() != nil:
		o = m.acquire(c.GetAcquire())
	case c.GetRenew() != nil:
		o = &fsmpb.Outcome{}
		for _, r := range c.GetRenew().Renewals {
			o.Renewals = append(o.Renewals, m.renew(r))
		}
	case c.GetRelease() != nil:
		o = m.release(c.GetRelease())
	case c.GetAdvance() != nil:
		o = m.advance()
	case c.GetWrite() != nil:
		o = m.write(c.GetWrite())
	case c.GetSetNode() != nil:
		o = m.setNode(c.GetSetNode())
	case c.GetRemoveNode() != nil:
		o = m.removeNode(c.GetRemoveNode())
	case c.GetTick() != nil:
		o = &fsmpb.Outcome{}
	}
	if o.Index == 0 {
		o.Index = index
	}
	m.setFloor()
	return o
}

// setFloor: one below the oldest token that has a record; never falling.
func (m *model) setFloor() {
	floor := m.lastGranted
	for _, l := range m.leases {
		floor = min(floor, l.token-1)
	}
	m.floor = max(m.floor, floor)
}

func modelInvalid(field string) *fsmpb.Outcome {
	return &fsmpb.Outcome{Code: fsmpb.Code_CODE_INVALID_REQUEST, Field: field}
}

// modelName: the names of the tests are ASCII, so that the form is simple.
func modelName(name string) bool {
	for _, part := range strings.Split(name, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

// advance has no bound: the tests never have a thousand things due.
func (m *model) advance() *fsmpb.Outcome {
	var due []*modelLease
	for _, l := range m.leases {
		if l.ended == fsmpb.Reason_REASON_NONE && l.deadline <= m.clock {
			due = append(due, l)
		}
	}
	slices.SortFunc(due, func(a, b *modelLease) int {
		return cmp.Or(cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.name, b.name))
	})
	for _, l := range due {
		m.end(l, fsmpb.Reason_REASON_EXPIRED, l.deadline)
	}
	for name, l := range m.leases {
		if !m.onRecord(l) {
			delete(m.leases, name)
		}
	}
	for id, r := range m.requests {
		if r.goneAt != 0 && r.goneAt <= m.clock {
			delete(m.requests, id)
		}
	}
	m.setFloor()
	for key, k := range m.keys {
		if !k.present && k.watermark <= m.floor {
			delete(m.keys, key)
		}
	}
	return &fsmpb.Outcome{}
}
