package model

import "fencepost/fsm/fsmpb"

func (m *Machine) write(c *fsmpb.Write) *fsmpb.Outcome {
	if field := badWrite(c); field != "" {
		return invalid(field)
	}
	id, seen, reused := m.seen(c.Principal, c.Request)
	if reused {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	if seen != nil {
		return seen.Outcome
	}
	o, count := m.check(c)
	if count != nil {
		*count++
		e := Event{
			Kind: Refused, Index: m.Index, Name: o.Key, Principal: c.Principal,
			Token: c.Token, Watermark: o.Watermark, Reason: o.Reason,
		}
		if _, h := m.onRecord(c.Token); h != nil {
			e.Holder = h.Holder
		}
		m.events = append(m.events, e)
	}
	if o == nil {
		o = m.change(c)
	}
	if o.Code != fsmpb.Code_CODE_FORBIDDEN && o.Code != fsmpb.Code_CODE_INVALID_REQUEST {
		m.remember(id, c.Request, o, m.Clock+keepRequestMS)
	}
	return o
}

func badWrite(c *fsmpb.Write) string {
	if c.Token == 0 {
		return "token"
	}
	if c.Lease != "" && !nameOK(c.Lease) {
		return "lease"
	}
	if len(c.Ops) == 0 {
		return "ops"
	}
	for i, op := range c.Ops {
		if !nameOK(op.Key) {
			return "key"
		}
		for _, other := range c.Ops[:i] {
			if other.Key == op.Key {
				return "key"
			}
		}
		if op.Kind == fsmpb.WriteOp_KIND_UNSPECIFIED {
			return "op"
		}
		if op.Kind == fsmpb.WriteOp_KIND_CHECK && op.IfVersion == nil {
			return "if_version"
		}
	}
	return ""
}

// key is the record of the key, or one that has nothing.
func (m *Machine) key(name string) Key {
	if k := m.Keys[name]; k != nil {
		return *k
	}
	return Key{}
}

// check is the five checks, in their order. count is what counts this refusal;
// those that the fence has no part in are counted nowhere.
func (m *Machine) check(c *fsmpb.Write) (o *fsmpb.Outcome, count *uint64) {
	refused := func(i int, why fsmpb.Reason) *fsmpb.Outcome {
		key := c.Ops[i].Key
		return &fsmpb.Outcome{
			Code: fsmpb.Code_CODE_STALE_TOKEN, Reason: why, Token: c.Token,
			OpIndex: uint32(i), Key: key, Watermark: m.key(key).Watermark,
		}
	}
	// 1. below the entry's own index
	if c.Token >= m.Index {
		o = refused(0, fsmpb.Reason_REASON_NONE)
		o.Code = fsmpb.Code_CODE_TOKEN_NOT_ISSUED
		return o, &m.Totals.NotIssued
	}
	// 2. on record, the writer's, of the lease that it names
	l, h := m.onRecord(c.Token)
	if h == nil {
		if named := m.Leases[c.Lease]; named != nil && named.LastToken > c.Token {
			return refused(0, fsmpb.Reason_REASON_NEWER_ISSUED), &m.Totals.NewerIssued
		}
		return refused(0, fsmpb.Reason_REASON_NOT_ON_RECORD), &m.Totals.NotOnRecord
	}
	if h.Principal != c.Principal {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN}, nil
	}
	if c.Lease != "" && c.Lease != l.Name {
		return refused(0, fsmpb.Reason_REASON_WRONG_LEASE), &m.Totals.WrongLease
	}
	if l.Slots > 1 && c.Guard != fsmpb.Guard_GUARD_HELD {
		return invalid("guard"), nil
	}
	// 3. at or above the watermark of every key
	for i, op := range c.Ops {
		if m.compared(l, h) < m.key(op.Key).Watermark {
			return refused(i, fsmpb.Reason_REASON_BELOW_WATERMARK), &m.Totals.BelowWatermark
		}
	}
	// 4. live, if the guard is held
	if c.Guard == fsmpb.Guard_GUARD_HELD && (l.holder(c.Token) == nil || h.DeadlineMS <= m.Clock) {
		return refused(0, fsmpb.Reason_REASON_NOT_HELD), &m.Totals.NotHeld
	}
	// 5. every version
	for i, op := range c.Ops {
		if version := m.key(op.Key).Version; op.IfVersion != nil && *op.IfVersion != version {
			return &fsmpb.Outcome{
				Code: fsmpb.Code_CODE_VERSION_MISMATCH, Version: version, OpIndex: uint32(i), Key: op.Key,
			}, nil
		}
	}
	return nil, nil
}

// onRecord: live, or of a lease with one slot the newest, if it is over for
// less than ten minutes; and above the floor.
func (m *Machine) onRecord(token uint64) (*Lease, *Holder) {
	l := m.Leases[m.nameOf[token]]
	if l == nil {
		return nil, nil
	}
	h, over := l.holder(token), uint64(0)
	if h != nil {
		over = h.DeadlineMS
	} else if l.Slots == 1 && !l.Held() && l.Gone.Token == token {
		h, over = l.Gone, l.EndedMS
	}
	if h != nil && token > m.Floor && (l.Slots > 1 || m.Clock < over+keepEndedMS) {
		return l, h
	}
	return nil, nil
}

// compared is the number that a write of this holder is compared by, and
// leaves: of a shared lease the oldest live token.
func (m *Machine) compared(l *Lease, h *Holder) uint64 {
	if oldest := m.oldest(l); l.Slots > 1 && oldest != 0 {
		return oldest
	}
	return h.Token
}

// change does what was asked, after every check.
func (m *Machine) change(c *fsmpb.Write) *fsmpb.Outcome {
	l, h := m.onRecord(c.Token)
	fence := m.compared(l, h)
	o := &fsmpb.Outcome{Token: c.Token, Version: m.Index}
	for _, op := range c.Ops {
		old := m.key(op.Key)
		next, done := old, &fsmpb.OpOutcome{Kind: op.Kind, Key: op.Key}
		e := Event{Index: m.Index, Name: op.Key, Holder: h.Holder, Token: c.Token, Watermark: fence, PreviousToken: old.Token}
		switch op.Kind {
		case fsmpb.WriteOp_KIND_PUT:
			next = Key{
				Present: true, Value: string(op.Value), ContentType: op.ContentType, Version: m.Index, Token: c.Token,
			}
			e.Kind = Put
		case fsmpb.WriteOp_KIND_DELETE:
			next = Key{}
			done.Deleted = old.Present
			e.Kind = Deleted
		case fsmpb.WriteOp_KIND_FENCE:
			e.Kind = Fenced
		}
		if op.Kind != fsmpb.WriteOp_KIND_CHECK {
			next.Watermark = fence
			e.Version = next.Version
			m.Keys[op.Key] = &next
			if !next.Present {
				m.firstBare = min(m.firstBare, fence)
			}
			m.events = append(m.events, e)
		}
		done.Version, done.Watermark = next.Version, next.Watermark
		o.Ops = append(o.Ops, done)
	}
	return o
}

// seen looks a request up, and counts the attempt if it is the same again.
func (m *Machine) seen(principal string, r *fsmpb.Request) (id *ID, seen *Request, reused bool) {
	if r.GetKey() == "" {
		return nil, nil, false
	}
	id = &ID{principal, r.Path, r.Key}
	seen = m.Requests[*id]
	if seen == nil {
		return id, nil, false
	}
	if seen.digest != string(r.Digest) && !seen.anyDigest {
		return id, nil, true
	}
	seen.Attempt++
	return id, seen, false
}

// remember keeps what the entry decided about a new request until goneAt; for a
// grant or a waiter (0) as long as the lease and the wait last. If the server
// made the key, 30 s from when the outcome is final.
func (m *Machine) remember(id *ID, r *fsmpb.Request, o *fsmpb.Outcome, goneAt uint64) {
	if id == nil {
		return
	}
	if r.ServerMade && o.Code != fsmpb.Code_CODE_QUEUED {
		goneAt = m.Clock + keepServerMadeMS
	}
	o.Index, o.Attempt = m.Index, 1
	seen := &Request{
		digest: string(r.Digest), serverMade: r.ServerMade, Attempt: 1, Outcome: o, GoneMS: goneAt,
	}
	m.Requests[*id] = seen
	m.goes(seen)
}

// decide gives a request that is remembered another outcome.
func (m *Machine) decide(id ID, o *fsmpb.Outcome, goneAt uint64) {
	r := m.Requests[id]
	r.Outcome, r.GoneMS = o, goneAt
	if r.serverMade {
		r.GoneMS = m.Clock + keepServerMadeMS
	}
	m.goes(r)
	o.Index, o.Attempt = m.Index, r.Attempt
}

func (m *Machine) setNode(c *fsmpb.SetNode) *fsmpb.Outcome {
	if c.Node.GetName() == "" || c.Node.GetId() == "" {
		return invalid("node")
	}
	if c.ClusterId == "" || m.ClusterID != "" && m.ClusterID != c.ClusterId {
		return invalid("cluster_id")
	}
	m.ClusterID = c.ClusterId
	m.Nodes[c.Node.Name] = c.Node.Id
	return &fsmpb.Outcome{}
}

func (m *Machine) removeNode(c *fsmpb.RemoveNode) *fsmpb.Outcome {
	if id, ok := m.Nodes[c.Name]; !ok || id != c.Id {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_NOT_FOUND}
	}
	delete(m.Nodes, c.Name)
	return &fsmpb.Outcome{}
}
