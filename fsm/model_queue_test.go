package fsm

import (
	"slices"

	"fencepost/fsm/fsmpb"
)

// waiting are the waiters of a name, first come first.
func (m *model) waiting(name string) (ws []*modelWaiter) {
	for _, w := range m.queue {
		if w.asked.Name == name {
			ws = append(ws, w)
		}
	}
	return ws
}

// modelShare is how many slots the lease is to have, and how many of them are
// asked for; one, unless it says otherwise.
func modelShare(c *fsmpb.Acquire) (slots, take uint64) {
	slots, take = c.Slots, c.Take
	if slots == 0 {
		slots = 1
	}
	if take == 0 {
		take = 1
	}
	return slots, take
}

// room: enough slots of as many as are asked for, and no grace; or nobody at all.
func (m *model) room(c *fsmpb.Acquire) bool {
	l := m.leases[c.Name]
	if l == nil || !l.held() && l.graceUntil == 0 {
		return true
	}
	slots, free := modelShare(c)
	for _, h := range l.holders {
		free += h.take
	}
	return l.graceUntil == 0 && slots == l.slots && free <= l.slots
}

// ready are the heads for whom there is room, by their tickets.
func (m *model) ready() (heads []*modelWaiter) {
	for _, w := range m.queue {
		if m.waiting(w.asked.Name)[0] == w && m.room(w.asked) {
			heads = append(heads, w)
		}
	}
	return heads
}

// dropLate drops waiters whose wait is over, until a head is left whose is not.
func (m *model) dropLate(name string) {
	for ws := m.waiting(name); len(ws) > 0 && ws[0].until <= m.clock; ws = ws[1:] {
		m.leave(ws[0], fsmpb.Reason_REASON_TIMEOUT)
	}
}

// grantHead grants the head of a name's queue, if there is room for it.
func (m *model) grantHead(name string) {
	m.dropLate(name)
	ws := m.waiting(name)
	if len(ws) == 0 || !m.room(ws[0].asked) {
		return
	}
	m.remove(ws[0])
	o := m.grant(ws[0].asked, ws[0].ticket)
	m.decide(ws[0].id, o, 0)
	m.events[len(m.events)-1].Decided = &Decision{RequestKey: modelKeyOf(ws[0].id), Outcome: o}
}

func (m *model) remove(w *modelWaiter) {
	m.queue = slices.DeleteFunc(m.queue, func(other *modelWaiter) bool { return other == w })
}

// leave takes a waiter out of the queue, with the refusal that it gets.
func (m *model) leave(w *modelWaiter, why fsmpb.Reason) *fsmpb.Outcome {
	m.remove(w)
	o := m.whoHas(w.asked.Name)
	if why == fsmpb.Reason_REASON_CANCELLED {
		o = &fsmpb.Outcome{Code: fsmpb.Code_CODE_CANCELLED, Name: w.asked.Name}
	}
	m.decide(w.id, o, m.clock+KeepRequestMS)
	m.queueEvent(EventDequeued, w, why, &Decision{RequestKey: modelKeyOf(w.id), Outcome: o})
	return o
}

func (m *model) queueEvent(kind EventKind, w *modelWaiter, why fsmpb.Reason, d *Decision) {
	slots, take := modelShare(w.asked)
	m.events = append(m.events, Event{
		Kind: kind, Index: m.index, Name: w.asked.Name, Holder: w.asked.Holder, Ticket: w.ticket, Reason: why,
		Slots: slots, Take: take, QueueLength: len(m.waiting(w.asked.Name)), Decided: d,
	})
}

func modelKeyOf(id modelID) string {
	return RequestKey(id.principal, &fsmpb.Request{Path: id.path, Key: id.key})
}

func (m *model) cancel(c *fsmpb.Cancel) *fsmpb.Outcome {
	if !modelName(c.Name) {
		return modelInvalid("name")
	}
	if c.Request.GetKey() == "" {
		return modelInvalid("request")
	}
	m.endIfOver(c.Name)
	o := &fsmpb.Outcome{Name: c.Name, Cancelled: m.cancelled(c)}
	m.grantHead(c.Name)
	return o
}

// cancelled ends what the request has, and says whether the request is
// cancelled now.
func (m *model) cancelled(c *fsmpb.Cancel) bool {
	id := modelID{c.Principal, c.Request.Path, c.Request.Key}
	r, leaders := m.requests[id], c.Attempt != 0
	if r == nil {
		if !leaders { // remembered for the acquire that it has overtaken
			done := &fsmpb.Outcome{Code: fsmpb.Code_CODE_CANCELLED, Name: c.Name}
			m.remember(&id, c.Request, done, m.clock+KeepRequestMS)
			m.requests[id].digest, m.requests[id].anyDigest = "", true
		}
		return !leaders
	}
	if leaders && r.attempt > c.Attempt {
		return false
	}
	for _, w := range m.waiting(c.Name) {
		if w.id == id {
			m.leave(w, fsmpb.Reason_REASON_CANCELLED)
			return true
		}
	}
	l := m.leases[c.Name]
	if h := l.holder(r.outcome.Token); h != nil && r.outcome.Code == fsmpb.Code_CODE_OK && h.request != nil && *h.request == id {
		m.end(l, h, fsmpb.Reason_REASON_RELEASED, m.clock)
		m.decide(id, &fsmpb.Outcome{Code: fsmpb.Code_CODE_CANCELLED, Name: c.Name, Token: h.token}, m.clock+KeepRequestMS)
		return true
	}
	return r.outcome.Code == fsmpb.Code_CODE_CANCELLED
}
