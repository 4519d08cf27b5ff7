package fsm

import (
	"cmp"
	"slices"
	"strings"

	"fencepost/fsm/fsmpb"
)

// A model is the state machine as its design tells it, in the plainest way:
// maps and lists, full scans, no index kept beside what it indexes. It shares
// with the package only the messages, the Event and Totals structs, and
// constants.
type model struct {
	cluster            string
	index, clock       uint64
	floor, lastGranted uint64
	leases             map[string]*modelLease
	queue              []*modelWaiter // of all names, in ticket order
	keys               map[string]*modelKey
	requests           map[modelID]*modelRequest
	nodes              map[string]string // name to id
	totals             Totals
	events             []Event
}

// A modelLease is a name with those who have it, and the one who had it last.
type modelLease struct {
	name       string
	slots      uint64
	holders    []*modelHolder // not ended, in the order of their tokens
	last       uint64         // newest token
	graceUntil uint64         // 0: none, or it has been ended
	gone       *modelHolder   // ended last
	ended      fsmpb.Reason   // why
	endedAt    uint64
}

type modelHolder struct {
	holder, principal       string
	token, previous, take   uint64
	ttl, deadline, renewals uint64
	grace                   uint64
	metadata                []*fsmpb.Pair
	request                 *modelID
}

type modelWaiter struct {
	ticket, until uint64
	asked         *fsmpb.Acquire
	id            modelID
}

type modelKey struct {
	present                   bool
	value, contentType        string
	version, token, watermark uint64
}

type modelID struct{ principal, path, key string }

type modelRequest struct {
	digest     string
	anyDigest  bool // it was cancelled before it came
	serverMade bool
	attempt    uint64
	outcome    *fsmpb.Outcome
	goneAt     uint64 // 0: it waits, or its lease has not ended
}

func newModel() *model {
	return &model{
		leases: map[string]*modelLease{}, keys: map[string]*modelKey{},
		requests: map[modelID]*modelRequest{}, nodes: map[string]string{},
	}
}

// held: somebody has it, be it that an entry is yet to end them.
func (l *modelLease) held() bool { return l != nil && len(l.holders) > 0 }

func (l *modelLease) holder(token uint64) *modelHolder {
	if l != nil {
		for _, h := range l.holders {
			if h.token == token {
				return h
			}
		}
	}
	return nil
}

// left is how long is left until then.
func (m *model) left(until uint64) uint64 {
	if until <= m.clock {
		return 0
	}
	return until - m.clock
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
		for _, h := range l.holders {
			floor = min(floor, h.token-1)
		}
		if !l.held() && l.slots == 1 {
			floor = min(floor, l.gone.token-1)
		}
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

// A modelDue is something that is over at an instant.
type modelDue struct {
	at     uint64
	kind   int // at one instant holders end first, then graces, then waits
	name   string
	number uint64
	end    func()
}

// dues are all deadlines in the state, the earliest first.
func (m *model) dues() (all []modelDue) {
	for name, l := range m.leases {
		for _, h := range l.holders {
			all = append(all, modelDue{h.deadline, 0, name, h.token, func() {
				m.end(l, h, fsmpb.Reason_REASON_EXPIRED, h.deadline)
			}})
		}
		if l.graceUntil != 0 {
			all = append(all, modelDue{l.graceUntil, 1, name, 0, func() { l.graceUntil = 0 }})
		}
	}
	for _, w := range m.queue {
		all = append(all, modelDue{w.until, 2, w.asked.Name, w.ticket, func() {
			m.leave(w, fsmpb.Reason_REASON_TIMEOUT)
		}})
	}
	slices.SortFunc(all, func(a, b modelDue) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name), cmp.Compare(a.number, b.number))
	})
	return all
}

// nextDue is when an Advance has somebody to end or to grant.
func (m *model) nextDue() (at uint64, ok bool) {
	if len(m.ready()) > 0 {
		return m.clock, true
	}
	if all := m.dues(); len(all) > 0 {
		return all[0].at, true
	}
	return 0, false
}

// advance has no bound: the tests never have a thousand things due.
func (m *model) advance() *fsmpb.Outcome {
	for all := m.dues(); len(all) > 0 && all[0].at <= m.clock; all = m.dues() {
		all[0].end() // which may start a grace, with a deadline of its own
	}
	for name, l := range m.leases {
		if !l.held() && m.clock-l.endedAt >= KeepEndedMS {
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
	if ready := m.ready(); len(ready) > 0 {
		m.grantHead(ready[0].asked.Name)
	}
	return &fsmpb.Outcome{}
}
