package fsm

import "fencepost/fsm/fsmpb"

func (m *model) write(c *fsmpb.Write) *fsmpb.Outcome {
	if field := modelBadWrite(c); field != "" {
		return modelInvalid(field)
	}
	id, seen, reused := m.seen(c.Principal, c.Request)
	if reused {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_KEY_REUSED}
	}
	if seen != nil {
		return seen.outcome
	}
	o, count := m.check(c)
	if count != nil {
		*count++
		e := Event{
			Kind: EventRefused, Index: m.index, Name: o.Key, Principal: c.Principal,
			Token: c.Token, Watermark: o.Watermark, Reason: o.Reason,
		}
		if _, h := m.onRecord(c.Token); h != nil {
			e.Holder = h.holder
		}
		m.events = append(m.events, e)
	}
	if o == nil {
		o = m.change(c)
	}
	if o.Code != fsmpb.Code_CODE_FORBIDDEN && o.Code != fsmpb.Code_CODE_INVALID_REQUEST {
		m.remember(id, c.Request, o, m.clock+KeepRequestMS)
	}
	return o
}

func modelBadWrite(c *fsmpb.Write) string {
	if c.Token == 0 {
		return "token"
	}
	if c.Lease != "" && !modelName(c.Lease) {
		return "lease"
	}
	if len(c.Ops) == 0 {
		return "ops"
	}
	for i, op := range c.Ops {
		if !modelName(op.Key) {
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
func (m *model) key(name string) modelKey {
	if k := m.keys[name]; k != nil {
		return *k
	}
	return modelKey{}
}

// check is the five checks, in their order. count is what counts this refusal;
// those that the fence has no part in are counted nowhere.
func (m *model) check(c *fsmpb.Write) (o *fsmpb.Outcome, count *uint64) {
	refused := func(i int, why fsmpb.Reason) *fsmpb.Outcome {
		key := c.Ops[i].Key
		return &fsmpb.Outcome{
			Code: fsmpb.Code_CODE_STALE_TOKEN, Reason: why, Token: c.Token,
			OpIndex: uint32(i), Key: key, Watermark: m.key(key).watermark,
		}
	}
	// 1. below the entry's own index
	if c.Token >= m.index {
		o = refused(0, fsmpb.Reason_REASON_NONE)
		o.Code = fsmpb.Code_CODE_TOKEN_NOT_ISSUED
		return o, &m.totals.NotIssued
	}
	// 2. on record, the writer's, of the lease that it names
	l, h := m.onRecord(c.Token)
	if h == nil {
		if named := m.leases[c.Lease]; named != nil && named.last > c.Token {
			return refused(0, fsmpb.Reason_REASON_NEWER_ISSUED), &m.totals.NewerIssued
		}
		return refused(0, fsmpb.Reason_REASON_NOT_ON_RECORD), &m.totals.NotOnRecord
	}
	if h.principal != c.Principal {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN}, nil
	}
	if c.Lease != "" && c.Lease != l.name {
		return refused(0, fsmpb.Reason_REASON_WRONG_LEASE), &m.totals.WrongLease
	}
	if l.slots > 1 && c.Guard != fsmpb.Guard_GUARD_HELD {
		return modelInvalid("guard"), nil
	}
	// 3. at or above the watermark of every key
	for i, op := range c.Ops {
		if m.compared(l, h) < m.key(op.Key).watermark {
			return refused(i, fsmpb.Reason_REASON_BELOW_WATERMARK), &m.totals.BelowWatermark
		}
	}
	// 4. live, if the guard is held
	if c.Guard == fsmpb.Guard_GUARD_HELD && (l.holder(c.Token) == nil || h.deadline <= m.clock) {
		return refused(0, fsmpb.Reason_REASON_NOT_HELD), &m.totals.NotHeld
	}
	// 5. every version
	for i, op := range c.Ops {
		if version := m.key(op.Key).version; op.IfVersion != nil && *op.IfVersion != version {
			return &fsmpb.Outcome{
				Code: fsmpb.Code_CODE_VERSION_MISMATCH, Version: version, OpIndex: uint32(i), Key: op.Key,
			}, nil
		}
	}
	return nil, nil
}

// onRecord: live, or of a lease with one slot the newest, if it is over for
// less than ten minutes; and above the floor.
func (m *model) onRecord(token uint64) (*modelLease, *modelHolder) {
	for _, l := range m.leases {
		h, over := l.holder(token), uint64(0)
		if h != nil {
			over = h.deadline
		} else if l.slots == 1 && !l.held() && l.gone.token == token {
			h, over = l.gone, l.endedAt
		}
		if h != nil && token > m.floor && (l.slots > 1 || m.clock < over+KeepEndedMS) {
			return l, h
		}
	}
	return nil, nil
}

// compared is the number that a write of this holder is compared by, and
// leaves: of a shared lease the oldest live token.
func (m *model) compared(l *modelLease, h *modelHolder) uint64 {
	if oldest := m.oldest(l); l.slots > 1 && oldest != 0 {
		return oldest
	}
	return h.token
}

// change does what was asked, after every check.
func (m *model) change(c *fsmpb.Write) *fsmpb.Outcome {
	l, h := m.onRecord(c.Token)
	fence := m.compared(l, h)
	o := &fsmpb.Outcome{Token: c.Token, Version: m.index}
	for _, op := range c.Ops {
		old := m.key(op.Key)
		next, done := old, &fsmpb.OpOutcome{Kind: op.Kind, Key: op.Key}
		e := Event{Index: m.index, Name: op.Key, Holder: h.holder, Token: c.Token, Watermark: fence, PreviousToken: old.token}
		switch op.Kind {
		case fsmpb.WriteOp_KIND_PUT:
			next = modelKey{
				present: true, value: string(op.Value), contentType: op.ContentType, version: m.index, token: c.Token,
			}
			e.Kind = EventPut
		case fsmpb.WriteOp_KIND_DELETE:
			next = modelKey{}
			done.Deleted = old.present
			e.Kind = EventDeleted
		case fsmpb.WriteOp_KIND_FENCE:
			e.Kind = EventFenced
		}
		if op.Kind != fsmpb.WriteOp_KIND_CHECK {
			next.watermark = fence
			e.Version = next.version
			m.keys[op.Key] = &next
			m.events = append(m.events, e)
		}
		done.Version, done.Watermark = next.version, next.watermark
		o.Ops = append(o.Ops, done)
	}
	return o
}

// seen looks a request up, and counts the attempt if it is the same again.
func (m *model) seen(principal string, r *fsmpb.Request) (id *modelID, seen *modelRequest, reused bool) {
	if r.GetKey() == "" {
		return nil, nil, false
	}
	id = &modelID{principal, r.Path, r.Key}
	seen = m.requests[*id]
	if seen == nil {
		return id, nil, false
	}
	if seen.digest != string(r.Digest) && !seen.anyDigest {
		return id, nil, true
	}
	seen.attempt++
	return id, seen, false
}

// remember keeps what the entry decided about a new request until goneAt; for a
// grant or a waiter (0) as long as the lease and the wait last. If the server
// made the key, 30 s from when the outcome is final.
func (m *model) remember(id *modelID, r *fsmpb.Request, o *fsmpb.Outcome, goneAt uint64) {
	if id == nil {
		return
	}
	if r.ServerMade && o.Code != fsmpb.Code_CODE_QUEUED {
		goneAt = m.clock + KeepServerMadeMS
	}
	o.Index, o.Attempt = m.index, 1
	m.requests[*id] = &modelRequest{
		digest: string(r.Digest), serverMade: r.ServerMade, attempt: 1, outcome: o, goneAt: goneAt,
	}
}

// decide gives a request that is remembered another outcome.
func (m *model) decide(id modelID, o *fsmpb.Outcome, goneAt uint64) {
	r := m.requests[id]
	r.outcome, r.goneAt = o, goneAt
	if r.serverMade {
		r.goneAt = m.clock + KeepServerMadeMS
	}
	o.Index, o.Attempt = m.index, r.attempt
}

func (m *model) setNode(c *fsmpb.SetNode) *fsmpb.Outcome {
	if c.Node.GetName() == "" || c.Node.GetId() == "" {
		return modelInvalid("node")
	}
	if c.ClusterId == "" || m.cluster != "" && m.cluster != c.ClusterId {
		return modelInvalid("cluster_id")
	}
	m.cluster = c.ClusterId
	m.nodes[c.Node.Name] = c.Node.Id
	return &fsmpb.Outcome{}
}

func (m *model) removeNode(c *fsmpb.RemoveNode) *fsmpb.Outcome {
	if id, ok := m.nodes[c.Name]; !ok || id != c.Id {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_NOT_FOUND}
	}
	delete(m.nodes, c.Name)
	return &fsmpb.Outcome{}
}
