package fsm

import (
	"cmp"
	"slices"

	"fencepost/fsm/fsmpb"
)

func (m *model) acquire(c *fsmpb.Acquire) *fsmpb.Outcome {
	switch {
	case !modelName(c.Name):
		return modelInvalid("name")
	case c.Holder == "":
		return modelInvalid("holder")
	case c.TtlMs == 0:
		return modelInvalid("ttl_ms")
	case !slices.IsSortedFunc(c.Metadata, func(a, b *fsmpb.Pair) int { return cmp.Compare(a.Key, b.Key) }):
		return modelInvalid("metadata")
	}
	m.endIfOver(c.Name)
	id, seen, reused := m.seen(c.Principal, c.Request)
	if reused {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	l := m.leases[c.Name]
	if seen != nil {
		return m.acquiredBefore(seen, l)
	}
	if l != nil && m.left(l) > 0 {
		o := &fsmpb.Outcome{
			Code: fsmpb.Code_CODE_LEASE_HELD, Name: l.name, Holder: l.holder, Token: l.token, ExpiresInMs: m.left(l),
		}
		m.remember(id, c.Request, o, m.clock+KeepRequestMS)
		return o
	}
	granted := &modelLease{
		name: c.Name, holder: c.Holder, principal: c.Principal, token: m.index,
		ttl: c.TtlMs, deadline: m.clock + c.TtlMs, metadata: c.Metadata, request: id,
	}
	e := Event{Kind: EventGranted, Index: m.index, Name: c.Name, Holder: c.Holder, Token: m.index}
	if l != nil && m.onRecord(l) {
		granted.previous = l.token
		e.PreviousToken, e.PreviousHolder = l.token, l.holder
	}
	m.leases[c.Name] = granted
	m.lastGranted = m.index
	m.totals.Grants++
	m.events = append(m.events, e)
	o := &fsmpb.Outcome{
		Name: c.Name, Holder: c.Holder, Token: m.index, PreviousToken: granted.previous,
		TtlMs: c.TtlMs, ExpiresInMs: c.TtlMs, Metadata: c.Metadata,
	}
	m.remember(id, c.Request, o, 0)
	return o
}

// acquiredBefore: the outcome of the first attempt, with the times of now.
func (m *model) acquiredBefore(seen *modelRequest, l *modelLease) *fsmpb.Outcome {
	was := seen.outcome
	same := l != nil && l.token == was.Token
	if was.Code == fsmpb.Code_CODE_LEASE_HELD {
		o := &fsmpb.Outcome{Index: was.Index, Code: was.Code, Name: was.Name, Holder: was.Holder, Token: was.Token}
		if same {
			o.ExpiresInMs = m.left(l)
		}
		return o
	}
	if !same || m.left(l) == 0 {
		return m.lost(was.Name, was.Token)
	}
	return &fsmpb.Outcome{
		Index: was.Index, Name: was.Name, Holder: was.Holder, Token: was.Token, PreviousToken: was.PreviousToken,
		TtlMs: l.ttl, ExpiresInMs: m.left(l), Metadata: was.Metadata,
	}
}

func (m *model) renew(r *fsmpb.Renewal) *fsmpb.Outcome {
	if r.TtlMs > maxTTLMS {
		return modelInvalid("ttl_ms")
	}
	l := m.leases[r.Name]
	if l == nil || l.token != r.Token || m.left(l) == 0 {
		return m.lost(r.Name, r.Token)
	}
	if l.principal != r.Principal {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: r.Name}
	}
	if r.TtlMs > 0 {
		l.ttl = r.TtlMs
	}
	l.deadline = max(l.deadline, m.clock+l.ttl)
	l.renewals++
	m.totals.Renewals++
	return &fsmpb.Outcome{Name: r.Name, Token: r.Token, TtlMs: l.ttl, ExpiresInMs: m.left(l)}
}

func (m *model) release(c *fsmpb.Release) *fsmpb.Outcome {
	if !modelName(c.Name) {
		return modelInvalid("name")
	}
	if c.Token == 0 {
		return modelInvalid("token")
	}
	m.endIfOver(c.Name)
	id, seen, reused := m.seen(c.Principal, c.Request)
	if reused {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	if seen != nil {
		return seen.outcome
	}
	o := &fsmpb.Outcome{Name: c.Name, Token: c.Token}
	if l := m.leases[c.Name]; l != nil && l.token == c.Token && m.left(l) > 0 {
		if l.principal != c.Principal {
			return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN, Name: c.Name}
		}
		m.end(l, fsmpb.Reason_REASON_RELEASED, m.clock)
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
	o.LastToken = l.token
	if token < l.token {
		o.Reason = fsmpb.Reason_REASON_SUPERSEDED
	} else if token == l.token {
		o.Reason = max(l.ended, fsmpb.Reason_REASON_EXPIRED) // not ended yet: it is over by the clock
	}
	return o
}

func (m *model) endIfOver(name string) {
	if l := m.leases[name]; l != nil && l.ended == fsmpb.Reason_REASON_NONE && l.deadline <= m.clock {
		m.end(l, fsmpb.Reason_REASON_EXPIRED, l.deadline)
	}
}

func (m *model) end(l *modelLease, why fsmpb.Reason, at uint64) {
	l.ended, l.endedAt = why, at
	if l.request != nil {
		if r := m.requests[*l.request]; r != nil && r.goneAt == 0 {
			r.goneAt = at + KeepRequestMS
		}
	}
	e := Event{Kind: EventReleased, Index: m.index, Name: l.name, PreviousToken: l.token, PreviousHolder: l.holder, Reason: why}
	if why == fsmpb.Reason_REASON_EXPIRED {
		e.Kind = EventExpired
		m.totals.Expirations++
	} else {
		m.totals.Releases++
	}
	m.events = append(m.events, e)
}
