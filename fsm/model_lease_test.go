package fsm

import (
	"cmp"
	"slices"

	"fencepost/fsm/fsmpb"
)

func (m *model) acquire(c *fsmpb.Acquire) *fsmpb.Outcome {
	if field := modelBadAcquire(c); field != "" {
		return modelInvalid(field)
	}
	m.endIfOver(c.Name)
	m.dropLate(c.Name)
	id, seen, reused := m.seen(c.Principal, c.Request)
	if reused {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	if seen != nil {
		return m.acquiredBefore(c, *id, seen)
	}
	l := m.leases[c.Name]
	slots, _ := modelShare(c)
	if len(m.waiting(c.Name)) == 0 && m.room(c) {
		o := m.grant(c, 0)
		m.remember(id, c.Request, o, 0)
		return o
	}
	if c.WaitMs > 0 {
		m.queue = append(m.queue, &modelWaiter{ticket: m.index, until: m.clock + c.WaitMs, asked: c, id: *id})
		m.queueEvent(EventQueued, m.queue[len(m.queue)-1], fsmpb.Reason_REASON_NONE, nil)
		o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_QUEUED, Name: c.Name, Ticket: m.index}
		m.remember(id, c.Request, o, 0)
		return o
	}
	o := m.whoHas(c.Name)
	if l != nil && (l.held() || l.graceUntil > m.clock) && l.slots != slots {
		o = &fsmpb.Outcome{Code: fsmpb.Code_CODE_SLOTS_DIFFER, Name: c.Name, Slots: l.slots}
	}
	m.remember(id, c.Request, o, m.clock+KeepRequestMS)
	return o
}

func modelBadAcquire(c *fsmpb.Acquire) string {
	slots, take := modelShare(c)
	switch {
	case !modelName(c.Name):
		return "name"
	case c.Holder == "":
		return "holder"
	case c.TtlMs == 0:
		return "ttl_ms"
	case c.WaitMs > 1<<40:
		return "wait_ms"
	case c.GraceMs > KeepEndedMS:
		return "grace_ms"
	case slots > MaxSlots:
		return "slots"
	case take > slots:
		return "take"
	case c.WaitMs > 0 && c.Request.GetKey() == "":
		return "request"
	case !slices.IsSortedFunc(c.Metadata, func(a, b *fsmpb.Pair) int { return cmp.Compare(a.Key, b.Key) }):
		return "metadata"
	}
	return ""
}

// grant gives the lease to a requester for whom there is room.
func (m *model) grant(c *fsmpb.Acquire, ticket uint64) *fsmpb.Outcome {
	slots, take := modelShare(c)
	h := &modelHolder{
		holder: c.Holder, principal: c.Principal, token: m.index, take: take,
		ttl: c.TtlMs, deadline: m.clock + c.TtlMs, grace: c.GraceMs, metadata: c.Metadata,
	}
	if c.Request.GetKey() != "" {
		h.request = &modelID{c.Principal, c.Request.Path, c.Request.Key}
	}
	e := Event{
		Kind: EventGranted, Index: m.index, Name: c.Name, Holder: c.Holder, Token: m.index, Ticket: ticket,
		Slots: slots, Take: take, TTLMS: c.TtlMs, Metadata: c.Metadata, QueueLength: len(m.waiting(c.Name)),
	}
	l := m.leases[c.Name]
	if l != nil && (l.held() || m.clock-l.endedAt < KeepEndedMS) {
		h.previous = l.last
		e.PreviousToken = l.last
		if was := l.holder(l.last); was != nil {
			e.PreviousHolder = was.holder
		} else if l.gone != nil && l.gone.token == l.last {
			e.PreviousHolder = l.gone.holder
		}
	}
	if !l.held() {
		l = &modelLease{name: c.Name, slots: slots}
		m.leases[c.Name] = l
	}
	l.holders = append(l.holders, h)
	l.last, m.lastGranted = m.index, m.index
	m.totals.Grants++
	m.events = append(m.events, e)
	return &fsmpb.Outcome{
		Name: c.Name, Holder: c.Holder, Token: m.index, PreviousToken: h.previous, OldestToken: m.oldest(l),
		Slots: slots, Take: take, TtlMs: c.TtlMs, ExpiresInMs: c.TtlMs, Metadata: c.Metadata,
	}
}

// oldest is the lease's oldest token whose time is not over; 0: none.
func (m *model) oldest(l *modelLease) uint64 {
	for _, h := range l.holders {
		if h.deadline > m.clock {
			return h.token
		}
	}
	return 0
}

// whoHas is the refusal of one who asks for a name: it tells who holds it, the
// one that ends first if there are several, or the grace; and how many wait.
func (m *model) whoHas(name string) *fsmpb.Outcome {
	o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_LEASE_HELD, Name: name, QueueLength: uint64(len(m.waiting(name)))}
	l := m.leases[name]
	if l == nil {
		return o
	}
	if l.graceUntil != 0 {
		o.GraceMs = m.left(l.graceUntil)
	} else if l.held() {
		h := l.endsFirst()
		o.Holder, o.Token, o.ExpiresInMs = h.holder, h.token, m.left(h.deadline)
	}
	return o
}

func (l *modelLease) endsFirst() *modelHolder {
	return slices.MinFunc(l.holders, func(a, b *modelHolder) int {
		return cmp.Or(cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.token, b.token))
	})
}

// acquiredBefore: the repetition gets what the request got, with the times of now.
func (m *model) acquiredBefore(c *fsmpb.Acquire, id modelID, seen *modelRequest) *fsmpb.Outcome {
	was, l := seen.outcome, m.leases[c.Name]
	o := &fsmpb.Outcome{Index: was.Index, Code: was.Code, Name: was.Name, Attempt: seen.attempt}
	switch was.Code {
	case fsmpb.Code_CODE_QUEUED:
		i := slices.IndexFunc(m.queue, func(w *modelWaiter) bool { return w.ticket == was.Ticket })
		if c.WaitMs == 0 {
			return m.leave(m.queue[i], fsmpb.Reason_REASON_TIMEOUT)
		}
		m.queue[i].until = m.clock + c.WaitMs
		o.Ticket = was.Ticket
	case fsmpb.Code_CODE_LEASE_HELD:
		o.Holder, o.Token, o.QueueLength = was.Holder, was.Token, uint64(len(m.waiting(c.Name)))
		if h := l.holder(was.Token); h != nil {
			o.ExpiresInMs = m.left(h.deadline)
		}
		if was.Token == 0 && l != nil {
			o.GraceMs = m.left(l.graceUntil)
		}
	case fsmpb.Code_CODE_OK:
		h := l.holder(was.Token)
		if h == nil || h.deadline <= m.clock {
			return m.lost(c.Name, was.Token)
		}
		o.Holder, o.Token, o.PreviousToken, o.OldestToken = was.Holder, was.Token, was.PreviousToken, m.oldest(l)
		o.Slots, o.Take, o.TtlMs, o.ExpiresInMs, o.Metadata = l.slots, h.take, h.ttl, m.left(h.deadline), was.Metadata
	default:
		return was
	}
	return o
}

func (m *model) renew(r *fsmpb.Renewal) *fsmpb.Outcome {
	if r.TtlMs > maxTTLMS {
		return modelInvalid("ttl_ms")
	}
	h := m.leases[r.Name].holder(r.Token)
	if h == nil || h.deadline <= m.clock {
		return m.lost(r.Name, r.Token)
	}
	if h.principal != r.Principal {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: r.Name}
	}
	if r.TtlMs > 0 {
		h.ttl = r.TtlMs
	}
	h.deadline = max(h.deadline, m.clock+h.ttl)
	h.renewals++
	m.totals.Renewals++
	m.events = append(m.events, Event{
		Kind: EventRenewed, Index: m.index, Name: r.Name, Holder: h.holder, Token: h.token,
		PreviousHolder: h.holder, PreviousToken: h.token, TTLMS: h.ttl,
	})
	return &fsmpb.Outcome{Name: r.Name, Token: r.Token, TtlMs: h.ttl, ExpiresInMs: m.left(h.deadline)}
}

func (m *model) release(c *fsmpb.Release) *fsmpb.Outcome {
	if !modelName(c.Name) {
		return modelInvalid("name")
	}
	if c.Token == 0 {
		return modelInvalid("token")
	}
	m.endIfOver(c.Name)
	o := m.releaseOne(c)
	m.grantHead(c.Name)
	return o
}

func (m *model) releaseOne(c *fsmpb.Release) *fsmpb.Outcome {
	id, seen, reused := m.seen(c.Principal, c.Request)
	if reused {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	if seen != nil {
		return seen.outcome
	}
	o := &fsmpb.Outcome{Name: c.Name, Token: c.Token}
	if h := m.leases[c.Name].holder(c.Token); h != nil {
		if h.principal != c.Principal {
			return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: c.Name}
		}
		m.end(m.leases[c.Name], h, fsmpb.Reason_REASON_RELEASED, m.clock)
		o.Released = true
	}
	m.remember(id, c.Request, o, m.clock+KeepRequestMS)
	return o
}

// lost: why that token holds the lease no longer.
func (m *model) lost(name string, token uint64) *fsmpb.Outcome {
	o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_LEASE_LOST, Reason: fsmpb.Reason_REASON_ENDED, Name: name, Token: token}
	l := m.leases[name]
	if l == nil {
		return o
	}
	o.LastToken = l.last
	switch {
	case l.holder(token) != nil:
		o.Reason = fsmpb.Reason_REASON_EXPIRED // not ended yet: it is over by the clock
	case l.gone != nil && l.gone.token == token:
		o.Reason = l.ended
	case l.slots == 1 && token < l.last:
		o.Reason = fsmpb.Reason_REASON_SUPERSEDED
	}
	return o
}

// endIfOver ends what is over of a name, in the order of the deadlines.
func (m *model) endIfOver(name string) {
	l := m.leases[name]
	if l == nil {
		return
	}
	for l.held() && l.endsFirst().deadline <= m.clock {
		h := l.endsFirst()
		m.end(l, h, fsmpb.Reason_REASON_EXPIRED, h.deadline)
	}
	if l.graceUntil <= m.clock {
		l.graceUntil = 0
	}
}

func (m *model) end(l *modelLease, h *modelHolder, why fsmpb.Reason, at uint64) {
	l.holders = slices.DeleteFunc(l.holders, func(other *modelHolder) bool { return other == h })
	l.gone, l.ended, l.endedAt = h, why, at
	e := Event{
		Kind: EventReleased, Index: m.index, Name: l.name, PreviousToken: h.token, PreviousHolder: h.holder, Reason: why,
		Slots: l.slots, Take: h.take, QueueLength: len(m.waiting(l.name)),
	}
	if why == fsmpb.Reason_REASON_EXPIRED {
		e.Kind = EventExpired
		m.totals.Expirations++
		if h.grace > 0 {
			l.graceUntil = max(l.graceUntil, at+h.grace)
			e.GraceMS = m.left(l.graceUntil)
		}
	} else {
		m.totals.Releases++
	}
	m.events = append(m.events, e)
	if h.request == nil {
		return
	}
	// The record of the request that got this lease, if it still is that.
	r := m.requests[*h.request]
	if r != nil && r.goneAt == 0 && r.outcome.Code == fsmpb.Code_CODE_OK && r.outcome.Token == h.token {
		r.goneAt = at + KeepRequestMS
	}
}
