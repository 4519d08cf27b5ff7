package model

import (
	"cmp"
	"slices"

	"fencepost/fsm/fsmpb"
)

// share is how many slots the lease is to have, and how many of them are
// asked for; one, unless it says otherwise.
func share(c *fsmpb.Acquire) (slots, take uint64) {
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
func (m *Machine) room(c *fsmpb.Acquire) bool {
	l := m.Leases[c.Name]
	if l == nil || !l.Held() && l.GraceUntilMS == 0 {
		return true
	}
	if m.GraceUntil(l) != 0 {
		return false
	}
	slots, free := share(c)
	for _, h := range l.Holders {
		free += h.Take
	}
	return slots == l.Slots && free <= l.Slots
}

// Ready are the heads of queues for whom there is room, by their tickets.
func (m *Machine) Ready() (heads []*Waiter) {
	for _, queue := range m.Queues {
		if m.room(queue[0].Acquire) && !m.old(queue[0].Ticket) {
			heads = append(heads, queue[0])
		}
	}
	slices.SortFunc(heads, func(a, b *Waiter) int { return cmp.Compare(a.Ticket, b.Ticket) })
	return heads
}

// dropLate drops waiters whose wait is over, until a head is left whose is not.
func (m *Machine) dropLate(name string) {
	for ws := m.Queues[name]; len(ws) > 0 && (ws[0].UntilMS <= m.Clock || m.old(ws[0].Ticket)); ws = ws[1:] {
		m.leave(ws[0], m.whyLate(ws[0]))
	}
}

// grantHead grants the head of a name's queue, if there is room for it.
func (m *Machine) grantHead(name string) {
	m.dropLate(name)
	ws := m.Queues[name]
	if len(ws) == 0 || !m.room(ws[0].Acquire) {
		return
	}
	m.remove(ws[0])
	o := m.grant(ws[0].Acquire, ws[0].Ticket)
	m.decide(ws[0].ID, o, 0)
	m.events[len(m.events)-1].Decided = &Decision{ws[0].ID, o}
}

func (m *Machine) remove(w *Waiter) {
	name := w.Acquire.Name
	left := slices.DeleteFunc(slices.Clone(m.Queues[name]), func(other *Waiter) bool { return other == w })
	if m.Queues[name] = left; len(left) == 0 {
		delete(m.Queues, name)
	}
}

// leave takes a waiter out of the queue, with the refusal that it gets.
func (m *Machine) leave(w *Waiter, why fsmpb.Reason) *fsmpb.Outcome {
	m.remove(w)
	o := m.whoHas(w.Acquire.Name)
	if why != fsmpb.Reason_REASON_TIMEOUT {
		o = &fsmpb.Outcome{Code: fsmpb.Code_CODE_CANCELLED, Name: w.Acquire.Name}
	}
	if why == fsmpb.Reason_REASON_RESTORED {
		o.Reason = why
	}
	m.decide(w.ID, o, m.Clock+keepRequestMS)
	m.queueEvent(Dequeued, w, why, &Decision{w.ID, o})
	return o
}

func (m *Machine) queueEvent(kind Kind, w *Waiter, why fsmpb.Reason, d *Decision) {
	slots, take := share(w.Acquire)
	m.events = append(m.events, Event{
		Kind: kind, Index: m.Index, Name: w.Acquire.Name, Holder: w.Acquire.Holder, Ticket: w.Ticket, Reason: why,
		Slots: slots, Take: take, QueueLength: len(m.Queues[w.Acquire.Name]), Decided: d,
	})
}

func (m *Machine) cancel(c *fsmpb.Cancel) *fsmpb.Outcome {
	if !nameOK(c.Name) {
		return invalid("name")
	}
	if c.Request.GetKey() == "" {
		return invalid("request")
	}
	m.endIfOver(c.Name)
	o := &fsmpb.Outcome{Name: c.Name, Cancelled: m.cancelled(c)}
	m.grantHead(c.Name)
	return o
}

// cancelled ends what the request has, and says whether the request is
// cancelled now.
func (m *Machine) cancelled(c *fsmpb.Cancel) bool {
	id := ID{c.Principal, c.Request.Path, c.Request.Key}
	r, leaders := m.Requests[id], c.Attempt != 0
	if r == nil {
		if !leaders { // remembered for the acquire that it has overtaken
			done := &fsmpb.Outcome{Code: fsmpb.Code_CODE_CANCELLED, Name: c.Name}
			m.remember(&id, c.Request, done, m.Clock+keepRequestMS)
			m.Requests[id].digest, m.Requests[id].anyDigest = "", true
		}
		return !leaders
	}
	if leaders && r.Attempt > c.Attempt {
		return false
	}
	for _, w := range m.Queues[c.Name] {
		if w.ID == id {
			m.leave(w, fsmpb.Reason_REASON_CANCELLED)
			return true
		}
	}
	l := m.Leases[c.Name]
	if h := m.holder(l, r.Outcome.Token); h != nil && r.Outcome.Code == fsmpb.Code_CODE_OK && h.request != nil && *h.request == id {
		m.end(l, h, fsmpb.Reason_REASON_RELEASED, m.Clock)
		m.decide(id, &fsmpb.Outcome{Code: fsmpb.Code_CODE_CANCELLED, Name: c.Name, Token: h.Token}, m.Clock+keepRequestMS)
		return true
	}
	return r.Outcome.Code == fsmpb.Code_CODE_CANCELLED
}
