package fsm

import "fencepost/fsm/fsmpb"

// acquire grants a lease that is free. The token is the entry's index, and the
// entry grants nobody else (P1, P2, P3).
func (s *State) acquire(c *fsmpb.Acquire) *fsmpb.Outcome {
	if field := badAcquire(c); field != "" {
		return invalid(field)
	}
	s.endIfDue(c.Name)
	if o := s.repeated(c.Principal, c.Request); o != nil {
		return s.acquiredBefore(c.Name, o)
	}
	l, ok := s.leases.Get(c.Name)
	if ok && l.Live {
		o := &fsmpb.Outcome{
			Code: fsmpb.Code_CODE_LEASE_HELD, Name: c.Name, Holder: l.Holder,
			Token: l.Token, ExpiresInMs: l.ExpiresInMS(s.clockMS),
		}
		s.remember(c.Principal, c.Request, o, false)
		return o
	}
	return s.grant(c, l)
}

// grant makes the requester the holder. before is the ended lease of the name,
// or nil.
func (s *State) grant(c *fsmpb.Acquire, before *Lease) *fsmpb.Outcome {
	l := &Lease{
		Name: c.Name, Holder: c.Holder, Principal: c.Principal, Token: s.index, Live: true,
		TTLMS: c.TtlMs, DeadlineMS: s.clockMS + c.TtlMs, Metadata: c.Metadata,
	}
	e := Event{Kind: EventGranted, Name: c.Name, Holder: c.Holder, Token: s.index}
	if before != nil && before.onRecord(s.clockMS) {
		l.Previous = before.Token
		e.PreviousToken, e.PreviousHolder = before.Token, before.Holder
	}
	if remembered(c.Request) {
		l.requestKey = requestKey(c.Principal, c.Request)
	}
	s.lastToken = s.index
	s.setLease(c.Name, l)
	s.totals.Grants++
	s.event(e)
	o := &fsmpb.Outcome{
		Name: l.Name, Holder: l.Holder, Token: l.Token, PreviousToken: l.Previous,
		TtlMs: l.TTLMS, ExpiresInMs: l.TTLMS, Metadata: l.Metadata,
	}
	s.remember(c.Principal, c.Request, o, true)
	return o
}

// acquiredBefore answers a repeated acquire: what it got, with the time that is
// left now; and never a lease that has ended as if it were live.
func (s *State) acquiredBefore(name string, o *fsmpb.Outcome) *fsmpb.Outcome {
	switch o.Code {
	case fsmpb.Code_CODE_OK:
		l, ok := s.leases.Get(name)
		left := uint64(0)
		if ok && l.Token == o.Token {
			left = l.ExpiresInMS(s.clockMS)
		}
		if left == 0 {
			return s.lost(name, o.Token)
		}
		return &fsmpb.Outcome{
			Index: o.Index, Name: o.Name, Holder: o.Holder, Token: o.Token, PreviousToken: o.PreviousToken,
			TtlMs: l.TTLMS, ExpiresInMs: left, Metadata: o.Metadata,
		}
	case fsmpb.Code_CODE_LEASE_HELD:
		fresh := &fsmpb.Outcome{Index: o.Index, Code: o.Code, Name: o.Name, Holder: o.Holder, Token: o.Token}
		if l, ok := s.leases.Get(name); ok && l.Token == o.Token {
			fresh.ExpiresInMs = l.ExpiresInMS(s.clockMS)
		}
		return fresh
	}
	return o
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
	if !ok || l.Token != r.Token || l.ExpiresInMS(s.clockMS) == 0 {
		return s.lost(r.GetName(), r.GetToken())
	}
	if l.Principal != r.Principal {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: l.Name}
	}
	next := *l
	if r.TtlMs != 0 {
		next.TTLMS = r.TtlMs
	}
	next.DeadlineMS = max(l.DeadlineMS, s.clockMS+next.TTLMS) // never shortened (P7)
	next.Renewals++
	s.setLease(l.Name, &next)
	s.totals.Renewals++
	return &fsmpb.Outcome{
		Name: l.Name, Token: l.Token, TtlMs: next.TTLMS, ExpiresInMs: next.DeadlineMS - s.clockMS,
	}
}

// release frees a lease. A token that holds nothing any more is no error: the
// caller wanted it gone, and it is.
func (s *State) release(c *fsmpb.Release) *fsmpb.Outcome {
	if !nameOK(c.Name) {
		return invalid("name")
	}
	if c.Token == 0 {
		return invalid("token")
	}
	s.endIfDue(c.Name)
	if o := s.repeated(c.Principal, c.Request); o != nil {
		return o
	}
	o := &fsmpb.Outcome{Name: c.Name, Token: c.Token}
	if l, ok := s.leases.Get(c.Name); ok && l.Live && l.Token == c.Token {
		if l.Principal != c.Principal {
			return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: c.Name}
		}
		s.end(l, fsmpb.Reason_REASON_RELEASED, s.clockMS)
		o.Released = true
	}
	s.remember(c.Principal, c.Request, o, false)
	return o
}

// endIfDue ends the lease of that name as expired if its time is up.
func (s *State) endIfDue(name string) {
	if l, ok := s.leases.Get(name); ok && l.Live && l.DeadlineMS <= s.clockMS {
		s.end(l, fsmpb.Reason_REASON_EXPIRED, l.DeadlineMS)
	}
}

// end moves a live lease to the ended ones, where its token stays on record.
// atMS is the cluster time at which it ended.
func (s *State) end(l *Lease, why fsmpb.Reason, atMS uint64) {
	ended := *l
	ended.Live, ended.Ended, ended.GoneMS = false, why, atMS+KeepEndedMS
	s.setLease(l.Name, &ended)
	if l.requestKey != "" {
		s.finish(l.requestKey, atMS+KeepRequestMS)
	}
	e := Event{Kind: EventReleased, Name: l.Name, PreviousHolder: l.Holder, PreviousToken: l.Token, Reason: why}
	if why == fsmpb.Reason_REASON_EXPIRED {
		e.Kind = EventExpired
		s.totals.Expirations++
	} else {
		s.totals.Releases++
	}
	s.event(e)
}

// lost says why a token no longer holds the lease.
func (s *State) lost(name string, token uint64) *fsmpb.Outcome {
	o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_LEASE_LOST, Name: name, Token: token, Reason: fsmpb.Reason_REASON_ENDED}
	l, ok := s.leases.Get(name)
	if !ok {
		return o
	}
	o.LastToken = l.Token
	switch {
	case l.Token == token && l.Live:
		o.Reason = fsmpb.Reason_REASON_EXPIRED
	case l.Token == token:
		o.Reason = l.Ended
	case l.Token > token:
		o.Reason = fsmpb.Reason_REASON_SUPERSEDED
	}
	return o
}
