package fsm

import "fencepost/fsm/fsmpb"

// acquire grants a lease that is free, or queues the request. The token is the
// entry's index, and the entry grants nobody else (P1, P2, P3).
func (s *State) acquire(c *fsmpb.Acquire) *fsmpb.Outcome {
	if field := badAcquire(c); field != "" {
		return invalid(field)
	}
	s.endDue(c.Name)
	s.dropOverdue(c.Name)
	if o, attempt := s.repeated(c.Principal, c.Request); o != nil {
		return s.acquiredBefore(c, o, attempt)
	}
	l, ok := s.leases.Get(c.Name)
	switch {
	case s.Free(c):
		return s.grant(c, nil)
	case c.WaitMs > 0:
		return s.enqueue(c)
	case ok && (l.Live() || l.GraceUntilMS != 0) && l.Slots != slotsOf(c):
		o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_SLOTS_DIFFER, Name: c.Name, Slots: l.Slots}
		s.remember(c.Principal, c.Request, o, false)
		return o
	}
	o := s.taken(c.Name)
	s.remember(c.Principal, c.Request, o, false)
	return o
}

// taken is the refusal of a request for a name that is not free: who holds it
// first of all, or the grace that runs, and how many wait.
func (s *State) taken(name string) *fsmpb.Outcome {
	o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_LEASE_HELD, Name: name, QueueLength: uint64(s.QueueLength(name))}
	l, ok := s.leases.Get(name)
	if !ok {
		return o
	}
	if until := s.graceUntil(l); until != 0 {
		o.GraceMs = left(until, s.clockMS)
	} else if h := l.First(); h != nil {
		o.Holder, o.Token, o.ExpiresInMs = h.Holder, h.Token, h.ExpiresInMS(s.clockMS)
	}
	return o
}

// grant makes the requester a holder. w is nil if it did not wait; else it has
// left the queue.
func (s *State) grant(c *fsmpb.Acquire, w *Waiter) *fsmpb.Outcome {
	h := &Holder{
		Holder: c.Holder, Principal: c.Principal, Token: s.index, Take: takeOf(c), TTLMS: c.TtlMs,
		DeadlineMS: s.clockMS + c.TtlMs, GraceMS: c.GraceMs, Metadata: c.Metadata,
	}
	if remembered(c.Request) {
		h.requestKey = requestKey(c.Principal, c.Request)
	}
	e := Event{
		Kind: EventGranted, Name: c.Name, Holder: c.Holder, Token: h.Token, Slots: slotsOf(c), Take: h.Take,
		TTLMS: h.TTLMS, Metadata: h.Metadata, QueueLength: s.QueueLength(c.Name),
	}
	l, ok := s.leases.Get(c.Name)
	if ok {
		if h.Previous = l.previous(s.clockMS); s.before(h.Previous) {
			h.Previous = 0 // not on record
		}
		e.PreviousToken, e.PreviousHolder = h.Previous, l.holderOf(h.Previous)
	}
	if !ok || !l.Live() {
		l = &Lease{Name: c.Name, Slots: slotsOf(c)}
	}
	l = l.withHolder(h)
	s.lastToken = s.index
	s.setLease(c.Name, l)
	s.totals.Grants++
	o := &fsmpb.Outcome{
		Name: l.Name, Holder: h.Holder, Token: h.Token, PreviousToken: h.Previous, OldestToken: l.oldest(s.clockMS),
		Slots: l.Slots, Take: h.Take, TtlMs: h.TTLMS, ExpiresInMs: h.TTLMS, Metadata: h.Metadata,
	}
	if w == nil {
		s.remember(c.Principal, c.Request, o, true)
	} else {
		e.Ticket = w.Ticket
		e.Decided = &Decision{h.requestKey, s.decide(h.requestKey, o, 0), c}
	}
	s.event(e)
	return o
}

// holderOf is the label of the holder that has, or had last, this token.
func (l *Lease) holderOf(token uint64) string {
	if h := l.holder(token); h != nil {
		return h.Holder
	}
	if l.former != nil && l.former.Token == token {
		return l.former.Holder
	}
	return ""
}

// acquiredBefore answers a repeated acquire: what it got, with the time that is
// left now; and never a lease that has ended as if it were live.
func (s *State) acquiredBefore(c *fsmpb.Acquire, o *fsmpb.Outcome, attempt uint64) *fsmpb.Outcome {
	fresh := &fsmpb.Outcome{Index: o.Index, Code: o.Code, Name: o.Name, Holder: o.Holder, Token: o.Token, Attempt: attempt}
	l, ok := s.leases.Get(c.Name)
	var h *Holder
	if ok {
		h = s.holder(l, o.Token)
	}
	switch o.Code {
	case fsmpb.Code_CODE_OK:
		if h == nil || h.ExpiresInMS(s.clockMS) == 0 {
			return s.lost(c.Name, o.Token)
		}
		fresh.PreviousToken, fresh.OldestToken, fresh.Slots, fresh.Take = o.PreviousToken, l.oldest(s.clockMS), l.Slots, h.Take
		fresh.TtlMs, fresh.ExpiresInMs, fresh.Metadata = h.TTLMS, h.ExpiresInMS(s.clockMS), o.Metadata
	case fsmpb.Code_CODE_LEASE_HELD:
		fresh.QueueLength = uint64(s.QueueLength(c.Name))
		if h != nil {
			fresh.ExpiresInMs = h.ExpiresInMS(s.clockMS)
		} else if o.Token == 0 && ok {
			fresh.GraceMs = left(s.graceUntil(l), s.clockMS)
		}
	case fsmpb.Code_CODE_QUEUED:
		again := s.requeue(c, o)
		fresh.Code, fresh.Ticket = again.Code, again.Ticket
		if again != o {
			return again
		}
	default:
		return o
	}
	return fresh
}

// renew moves the deadlines of the leases that are still held. It ends none:
// one that is over is refused here and ended by the next Advance.
func (s *State) renew(c *fsmpb.Renew) *fsmpb.Outcome {
	o := &fsmpb.Outcome{Renewals: make([]*fsmpb.Outcome, len(c.Renewals))}
	for i, r := range c.Renewals {
		o.Renewals[i] = s.renewOne(r)
	}
	return o
}

func (s *State) renewOne(r *fsmpb.Renewal) *fsmpb.Outcome {
	if r.GetTtlMs() > maxTTLMS {
		return invalid("ttl_ms")
	}
	l, ok := s.leases.Get(r.GetName())
	if !ok {
		return s.lost(r.GetName(), r.GetToken())
	}
	h := s.holder(l, r.Token)
	if h == nil || h.ExpiresInMS(s.clockMS) == 0 {
		return s.lost(r.GetName(), r.GetToken())
	}
	if h.Principal != r.Principal {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: l.Name}
	}
	next := *h
	if r.TtlMs != 0 {
		next.TTLMS = r.TtlMs
	}
	next.DeadlineMS = max(h.DeadlineMS, s.clockMS+next.TTLMS) // never shortened (P7)
	next.Renewals++
	s.replaceHolder(l, h, &next)
	s.totals.Renewals++
	s.event(Event{
		Kind: EventRenewed, Name: l.Name, Holder: h.Holder, Token: h.Token,
		PreviousHolder: h.Holder, PreviousToken: h.Token, TTLMS: next.TTLMS,
	})
	return &fsmpb.Outcome{
		Name: l.Name, Token: h.Token, TtlMs: next.TTLMS, ExpiresInMs: next.DeadlineMS - s.clockMS,
	}
}

// release frees a lease and lets the head of its queue in. A token that holds
// nothing any more is no error: the caller wanted it gone, and it is.
func (s *State) release(c *fsmpb.Release) *fsmpb.Outcome {
	if !nameOK(c.Name) {
		return invalid("name")
	}
	if c.Token == 0 {
		return invalid("token")
	}
	s.endDue(c.Name)
	defer s.grantHead(c.Name)
	if o, _ := s.repeated(c.Principal, c.Request); o != nil {
		return o
	}
	o := &fsmpb.Outcome{Name: c.Name, Token: c.Token}
	if l, ok := s.leases.Get(c.Name); ok {
		if h := s.holder(l, c.Token); h != nil && h.Principal != c.Principal {
			return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: c.Name}
		} else if h != nil {
			s.end(l, h, fsmpb.Reason_REASON_RELEASED, s.clockMS)
			o.Released = true
		}
	}
	s.remember(c.Principal, c.Request, o, false)
	return o
}

// endDue ends what is over of the name: holders, as expired, and then a grace.
func (s *State) endDue(name string) {
	l, ok := s.leases.Get(name)
	if !ok {
		return
	}
	for h := l.First(); h != nil && h.DeadlineMS <= s.clockMS; h = l.First() {
		l = s.end(l, h, fsmpb.Reason_REASON_EXPIRED, h.DeadlineMS)
	}
	s.endGrace(l)
}

func (s *State) endGrace(l *Lease) {
	if l.GraceUntilMS != 0 && l.GraceUntilMS <= s.clockMS {
		next := *l
		next.GraceUntilMS = 0
		s.setLease(l.Name, &next)
	}
}

// end takes a holder from its lease. Under one slot its token stays on record.
// atMS is the cluster time at which it ended.
func (s *State) end(l *Lease, h *Holder, why fsmpb.Reason, atMS uint64) *Lease {
	expired := why == fsmpb.Reason_REASON_EXPIRED
	if expired && s.before(h.Token) {
		why = fsmpb.Reason_REASON_RESTORED
	}
	next := l.without(h, why, atMS+KeepEndedMS)
	e := Event{
		Kind: EventReleased, Name: l.Name, PreviousHolder: h.Holder, PreviousToken: h.Token, Reason: why,
		Slots: l.Slots, Take: h.Take, QueueLength: s.QueueLength(l.Name),
	}
	if expired {
		e.Kind = EventExpired
		s.totals.Expirations++
		if h.GraceMS > 0 {
			next.GraceUntilMS = max(l.GraceUntilMS, atMS+h.GraceMS)
			e.GraceMS = left(next.GraceUntilMS, s.clockMS)
		}
	} else {
		s.totals.Releases++
	}
	s.setLease(l.Name, next)
	if h.requestKey != "" {
		s.finish(h.requestKey, h.Token, atMS+KeepRequestMS)
	}
	s.event(e)
	return next
}

// lost says why a token no longer holds the lease.
func (s *State) lost(name string, token uint64) *fsmpb.Outcome {
	o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_LEASE_LOST, Name: name, Token: token, Reason: fsmpb.Reason_REASON_ENDED}
	l, ok := s.leases.Get(name)
	if ok {
		o.LastToken = l.LastToken
	}
	switch {
	case s.before(token):
		o.Reason = fsmpb.Reason_REASON_RESTORED // also where there is no record
	case !ok:
	case l.holder(token) != nil:
		o.Reason = fsmpb.Reason_REASON_EXPIRED
	case l.former != nil && l.former.Token == token:
		o.Reason = l.ended
	case l.Slots == 1 && l.LastToken > token:
		o.Reason = fsmpb.Reason_REASON_SUPERSEDED
	}
	return o
}
