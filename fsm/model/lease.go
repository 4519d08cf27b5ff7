package model

import (
	"cmp"
	"slices"

	"fencepost/fsm/fsmpb"
)

func (m *Machine) acquire(c *fsmpb.Acquire) *fsmpb.Outcome {
	if field := badAcquire(c); field != "" {
		return invalid(field)
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
	l := m.Leases[c.Name]
	slots, _ := share(c)
	if len(m.Queues[c.Name]) == 0 && m.room(c) {
		o := m.grant(c, 0)
		m.remember(id, c.Request, o, 0)
		return o
	}
	if c.WaitMs > 0 {
		w := &Waiter{Ticket: m.Index, UntilMS: m.Clock + c.WaitMs, Acquire: c, ID: *id}
		m.Queues[c.Name] = append(m.Queues[c.Name], w)
		m.queueEvent(Queued, w, fsmpb.Reason_REASON_NONE, nil)
		o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_QUEUED, Name: c.Name, Ticket: m.Index}
		m.remember(id, c.Request, o, 0)
		return o
	}
	o := m.whoHas(c.Name)
	if l != nil && (l.Held() || l.GraceUntilMS > m.Clock) && l.Slots != slots {
		o = &fsmpb.Outcome{Code: fsmpb.Code_CODE_SLOTS_DIFFER, Name: c.Name, Slots: l.Slots}
	}
	m.remember(id, c.Request, o, m.Clock+keepRequestMS)
	return o
}

func badAcquire(c *fsmpb.Acquire) string {
	slots, take := share(c)
	switch {
	case !nameOK(c.Name):
		return "name"
	case c.Holder == "":
		return "holder"
	case c.TtlMs == 0:
		return "ttl_ms"
	case c.WaitMs > 1<<40:
		return "wait_ms"
	case c.GraceMs > keepEndedMS:
		return "grace_ms"
	case slots > maxSlots:
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
func (m *Machine) grant(c *fsmpb.Acquire, ticket uint64) *fsmpb.Outcome {
	slots, take := share(c)
	h := &Holder{
		Holder: c.Holder, Principal: c.Principal, Token: m.Index, Take: take,
		TTLMS: c.TtlMs, DeadlineMS: m.Clock + c.TtlMs, GraceMS: c.GraceMs, Metadata: c.Metadata,
	}
	if c.Request.GetKey() != "" {
		h.request = &ID{c.Principal, c.Request.Path, c.Request.Key}
	}
	e := Event{
		Kind: Granted, Index: m.Index, Name: c.Name, Holder: c.Holder, Token: m.Index, Ticket: ticket,
		Slots: slots, Take: take, TTLMS: c.TtlMs, Metadata: c.Metadata, QueueLength: len(m.Queues[c.Name]),
	}
	l := m.Leases[c.Name]
	if l != nil && (l.Held() || m.Clock-l.EndedMS < keepEndedMS) {
		if !m.old(l.LastToken) {
			h.Previous = l.LastToken
		}
		e.PreviousToken = h.Previous
		if h.Previous == 0 {
		} else if was := l.holder(l.LastToken); was != nil {
			e.PreviousHolder = was.Holder
		} else if l.Gone != nil && l.Gone.Token == l.LastToken {
			e.PreviousHolder = l.Gone.Holder
		}
	}
	if !l.Held() {
		l = &Lease{Name: c.Name, Slots: slots}
		m.Leases[c.Name] = l
	}
	l.Holders = append(l.Holders, h)
	l.LastToken, m.LastGranted = m.Index, m.Index
	m.nameOf[m.Index], m.holdersChanged = c.Name, true
	m.Totals.Grants++
	m.events = append(m.events, e)
	return &fsmpb.Outcome{
		Name: c.Name, Holder: c.Holder, Token: m.Index, PreviousToken: h.Previous, OldestToken: m.oldest(l),
		Slots: slots, Take: take, TtlMs: c.TtlMs, ExpiresInMs: c.TtlMs, Metadata: c.Metadata,
	}
}

// oldest is the lease's oldest token whose time is not over; 0: none.
func (m *Machine) oldest(l *Lease) uint64 {
	for _, h := range l.Holders {
		if h.DeadlineMS > m.Clock {
			return h.Token
		}
	}
	return 0
}

// whoHas is the refusal of one who asks for a name: it tells who holds it, the
// one that ends first if there are several, or the grace; and how many wait.
func (m *Machine) whoHas(name string) *fsmpb.Outcome {
	o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_LEASE_HELD, Name: name, QueueLength: uint64(len(m.Queues[name]))}
	l := m.Leases[name]
	if l == nil {
		return o
	}
	if until := m.GraceUntil(l); until != 0 {
		o.GraceMs = m.Left(until)
	} else if l.Held() {
		h := l.endsFirst()
		o.Holder, o.Token, o.ExpiresInMs = h.Holder, h.Token, m.Left(h.DeadlineMS)
	}
	return o
}

func (l *Lease) endsFirst() *Holder {
	return slices.MinFunc(l.Holders, func(a, b *Holder) int {
		return cmp.Or(cmp.Compare(a.DeadlineMS, b.DeadlineMS), cmp.Compare(a.Token, b.Token))
	})
}

// acquiredBefore: the repetition gets what the request got, with the times of now.
func (m *Machine) acquiredBefore(c *fsmpb.Acquire, id ID, seen *Request) *fsmpb.Outcome {
	was, l := seen.Outcome, m.Leases[c.Name]
	o := &fsmpb.Outcome{Index: was.Index, Code: was.Code, Name: was.Name, Attempt: seen.Attempt}
	switch was.Code {
	case fsmpb.Code_CODE_QUEUED:
		queue := m.Queues[c.Name]
		w := queue[slices.IndexFunc(queue, func(w *Waiter) bool { return w.Ticket == was.Ticket })]
		if c.WaitMs == 0 {
			return m.leave(w, fsmpb.Reason_REASON_TIMEOUT)
		}
		w.UntilMS = m.Clock + c.WaitMs
		o.Ticket = was.Ticket
	case fsmpb.Code_CODE_LEASE_HELD:
		o.Holder, o.Token, o.QueueLength = was.Holder, was.Token, uint64(len(m.Queues[c.Name]))
		if h := m.holder(l, was.Token); h != nil {
			o.ExpiresInMs = m.Left(h.DeadlineMS)
		}
		if was.Token == 0 && l != nil {
			o.GraceMs = m.Left(m.GraceUntil(l))
		}
	case fsmpb.Code_CODE_OK:
		h := m.holder(l, was.Token)
		if h == nil || h.DeadlineMS <= m.Clock {
			return m.lost(c.Name, was.Token)
		}
		o.Holder, o.Token, o.PreviousToken, o.OldestToken = was.Holder, was.Token, was.PreviousToken, m.oldest(l)
		o.Slots, o.Take, o.TtlMs, o.ExpiresInMs, o.Metadata = l.Slots, h.Take, h.TTLMS, m.Left(h.DeadlineMS), was.Metadata
	default:
		return was
	}
	return o
}

func (m *Machine) renew(r *fsmpb.Renewal) *fsmpb.Outcome {
	if r.TtlMs > maxTTLMS {
		return invalid("ttl_ms")
	}
	h := m.holder(m.Leases[r.Name], r.Token)
	if h == nil || h.DeadlineMS <= m.Clock {
		return m.lost(r.Name, r.Token)
	}
	if h.Principal != r.Principal {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: r.Name}
	}
	if r.TtlMs > 0 {
		h.TTLMS = r.TtlMs
	}
	h.DeadlineMS = max(h.DeadlineMS, m.Clock+h.TTLMS)
	h.Renewals++
	m.Totals.Renewals++
	m.events = append(m.events, Event{
		Kind: Renewed, Index: m.Index, Name: r.Name, Holder: h.Holder, Token: h.Token,
		PreviousHolder: h.Holder, PreviousToken: h.Token, TTLMS: h.TTLMS,
	})
	return &fsmpb.Outcome{Name: r.Name, Token: r.Token, TtlMs: h.TTLMS, ExpiresInMs: m.Left(h.DeadlineMS)}
}

func (m *Machine) release(c *fsmpb.Release) *fsmpb.Outcome {
	if !nameOK(c.Name) {
		return invalid("name")
	}
	if c.Token == 0 {
		return invalid("token")
	}
	m.endIfOver(c.Name)
	o := m.releaseOne(c)
	m.grantHead(c.Name)
	return o
}

func (m *Machine) releaseOne(c *fsmpb.Release) *fsmpb.Outcome {
	id, seen, reused := m.seen(c.Principal, c.Request)
	if reused {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	if seen != nil {
		return seen.Outcome
	}
	o := &fsmpb.Outcome{Name: c.Name, Token: c.Token}
	if h := m.holder(m.Leases[c.Name], c.Token); h != nil {
		if h.Principal != c.Principal {
			return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: c.Name}
		}
		m.end(m.Leases[c.Name], h, fsmpb.Reason_REASON_RELEASED, m.Clock)
		o.Released = true
	}
	m.remember(id, c.Request, o, m.Clock+keepRequestMS)
	return o
}

// lost: why that token holds the lease no longer.
func (m *Machine) lost(name string, token uint64) *fsmpb.Outcome {
	o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_LEASE_LOST, Reason: fsmpb.Reason_REASON_ENDED, Name: name, Token: token}
	l := m.Leases[name]
	if l != nil {
		o.LastToken = l.LastToken
	}
	if m.old(token) {
		o.Reason = fsmpb.Reason_REASON_RESTORED
		return o
	}
	if l == nil {
		return o
	}
	switch {
	case l.holder(token) != nil:
		o.Reason = fsmpb.Reason_REASON_EXPIRED // not ended yet: it is over by the clock
	case l.Gone != nil && l.Gone.Token == token:
		o.Reason = l.Ended
	case l.Slots == 1 && token < l.LastToken:
		o.Reason = fsmpb.Reason_REASON_SUPERSEDED
	}
	return o
}

// endIfOver ends what is over of a name, in the order of the deadlines.
func (m *Machine) endIfOver(name string) {
	l := m.Leases[name]
	if l == nil {
		return
	}
	for l.Held() && l.endsFirst().DeadlineMS <= m.Clock {
		h := l.endsFirst()
		m.end(l, h, fsmpb.Reason_REASON_EXPIRED, h.DeadlineMS)
	}
	if l.GraceUntilMS <= m.Clock {
		l.GraceUntilMS = 0
	}
}

func (m *Machine) end(l *Lease, h *Holder, why fsmpb.Reason, at uint64) {
	l.Holders = slices.DeleteFunc(l.Holders, func(other *Holder) bool { return other == h })
	l.Gone, l.Ended, l.EndedMS = h, why, at
	m.holdersChanged = true
	expired := why == fsmpb.Reason_REASON_EXPIRED
	if expired && m.old(h.Token) {
		why, l.Ended = fsmpb.Reason_REASON_RESTORED, fsmpb.Reason_REASON_RESTORED
	}
	e := Event{
		Kind: Released, Index: m.Index, Name: l.Name, PreviousToken: h.Token, PreviousHolder: h.Holder, Reason: why,
		Slots: l.Slots, Take: h.Take, QueueLength: len(m.Queues[l.Name]),
	}
	if expired {
		e.Kind = Expired
		m.Totals.Expirations++
		if h.GraceMS > 0 {
			l.GraceUntilMS = max(l.GraceUntilMS, at+h.GraceMS)
			e.GraceMS = m.Left(l.GraceUntilMS)
		}
	} else {
		m.Totals.Releases++
	}
	m.events = append(m.events, e)
	if h.request == nil {
		return
	}
	// The record of the request that got this lease, if it still is that.
	r := m.Requests[*h.request]
	if r != nil && r.GoneMS == 0 && r.Outcome.Code == fsmpb.Code_CODE_OK && r.Outcome.Token == h.Token {
		r.GoneMS = at + keepRequestMS
		m.goes(r)
	}
}
