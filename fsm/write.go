package fsm

import "fencepost/fsm/fsmpb"

// write is the fence: the check of the token and the change of the keys are one
// entry (P4). The order of the checks is part of the contract.
func (s *State) write(c *fsmpb.Write) *fsmpb.Outcome {
	if field := badWrite(c); field != "" {
		return invalid(field)
	}
	if o, _ := s.repeated(c.Principal, c.Request); o != nil {
		return o
	}
	w := s.writer(c.Token)
	o := s.refusal(c, w)
	if o == nil {
		o = s.accept(c, w)
	} else if o.Code == fsmpb.Code_CODE_STALE_TOKEN || o.Code == fsmpb.Code_CODE_TOKEN_NOT_ISSUED {
		s.countRefusal(o)
		e := Event{Kind: EventRefused, Name: o.Key, Principal: c.Principal, Token: c.Token, Watermark: o.Watermark, Reason: o.Reason}
		if w.holder != nil {
			e.Holder = w.holder.Holder
		}
		s.event(e)
	}
	s.remember(c.Principal, c.Request, o, false)
	return o
}

// refusal is why the write may not happen; nil if it may.
func (s *State) refusal(c *fsmpb.Write, w writer) *fsmpb.Outcome {
	first := c.Ops[0].Key
	refuse := func(code fsmpb.Code, why fsmpb.Reason, i int) *fsmpb.Outcome {
		return &fsmpb.Outcome{
			Code: code, Reason: why, Token: c.Token, OpIndex: uint32(i), Key: c.Ops[i].Key, Watermark: s.watermark(c.Ops[i].Key),
		}
	}
	if c.Token >= s.index {
		o := refuse(fsmpb.Code_CODE_TOKEN_NOT_ISSUED, fsmpb.Reason_REASON_NONE, 0)
		o.Watermark = s.watermark(first)
		return o
	}
	l, h := w.lease, w.holder
	if h == nil {
		why := fsmpb.Reason_REASON_NOT_ON_RECORD
		if named, ok := s.leases.Get(c.Lease); ok && named.LastToken > c.Token {
			why = fsmpb.Reason_REASON_NEWER_ISSUED
		}
		return refuse(fsmpb.Code_CODE_STALE_TOKEN, why, 0)
	}
	if h.Principal != c.Principal {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN}
	}
	if c.Lease != "" && l.Name != c.Lease {
		return refuse(fsmpb.Code_CODE_STALE_TOKEN, fsmpb.Reason_REASON_WRONG_LEASE, 0)
	}
	if l.Slots > 1 && c.Guard != fsmpb.Guard_GUARD_HELD {
		return invalid("guard")
	}
	for i, op := range c.Ops {
		if w.fence < s.watermark(op.Key) {
			return refuse(fsmpb.Code_CODE_STALE_TOKEN, fsmpb.Reason_REASON_BELOW_WATERMARK, i)
		}
	}
	if c.Guard == fsmpb.Guard_GUARD_HELD && (l.holder(c.Token) == nil || h.ExpiresInMS(s.clockMS) == 0) {
		return refuse(fsmpb.Code_CODE_STALE_TOKEN, fsmpb.Reason_REASON_NOT_HELD, 0)
	}
	for i, op := range c.Ops {
		if op.IfVersion == nil {
			continue
		}
		if version := s.version(op.Key); version != *op.IfVersion {
			return &fsmpb.Outcome{Code: fsmpb.Code_CODE_VERSION_MISMATCH, Version: version, OpIndex: uint32(i), Key: op.Key}
		}
	}
	return nil
}

// writer is who writes: the holder that a token names, if the token may write,
// and its lease.
type writer struct {
	lease  *Lease
	holder *Holder
	// fence is the number that the writes are compared by, and leave as the
	// watermark: the token, or, where the lease is shared, the oldest live one, so
	// that holders beside each other do not fence each other off. A holder whose
	// own time is over is refused whatever this says.
	fence uint64
}

func (s *State) writer(token uint64) (w writer) {
	name, ok := s.tokens.Get(token)
	if !ok || token <= s.floor {
		return w
	}
	w.lease, _ = s.leases.Get(name)
	w.holder, w.fence = w.lease.onRecord(token, s.clockMS), token
	if oldest := w.lease.oldest(s.clockMS); w.lease.Slots > 1 && oldest != 0 {
		w.fence = oldest
	}
	return w
}

func (s *State) watermark(key string) uint64 {
	if k, ok := s.keys.Get(key); ok {
		return k.Watermark
	}
	return 0
}

func (s *State) version(key string) uint64 {
	if k, ok := s.keys.Get(key); ok {
		return k.Version
	}
	return 0
}

// accept makes the changes; every check has passed. The fence is at or above
// every watermark that it touches, so no watermark falls (P5).
func (s *State) accept(c *fsmpb.Write, w writer) *fsmpb.Outcome {
	o := &fsmpb.Outcome{Token: c.Token, Version: s.index, Ops: make([]*fsmpb.OpOutcome, len(c.Ops))}
	for i, op := range c.Ops {
		old, _ := s.keys.Get(op.Key)
		done := &fsmpb.OpOutcome{Kind: op.Kind, Key: op.Key, Watermark: w.fence}
		o.Ops[i] = done
		next := &Key{Key: op.Key, Watermark: w.fence}
		switch op.Kind {
		case fsmpb.WriteOp_KIND_PUT:
			next.Present, next.Value, next.ContentType = true, op.Value, op.ContentType
			next.Version, next.Token = s.index, c.Token
			done.Version = s.index
			s.keyEvent(EventPut, w, next, old)
		case fsmpb.WriteOp_KIND_DELETE:
			done.Deleted = old != nil && old.Present
			s.keyEvent(EventDeleted, w, next, old)
		case fsmpb.WriteOp_KIND_FENCE:
			if old != nil {
				*next = *old
				next.Watermark = w.fence
				done.Version = old.Version
			}
			s.keyEvent(EventFenced, w, next, old)
		case fsmpb.WriteOp_KIND_CHECK:
			done.Version = s.version(op.Key)
			done.Watermark = s.watermark(op.Key)
			continue
		}
		s.setKey(op.Key, next)
	}
	return o
}

func (s *State) keyEvent(kind EventKind, w writer, next, old *Key) {
	e := Event{
		Kind: kind, Name: next.Key, Holder: w.holder.Holder, Token: w.holder.Token,
		Watermark: next.Watermark, Version: next.Version,
	}
	if old != nil {
		e.PreviousToken = old.Token
	}
	s.event(e)
}

func (s *State) countRefusal(o *fsmpb.Outcome) {
	switch {
	case o.Code == fsmpb.Code_CODE_TOKEN_NOT_ISSUED:
		s.totals.NotIssued++
	case o.Reason == fsmpb.Reason_REASON_BELOW_WATERMARK:
		s.totals.BelowWatermark++
	case o.Reason == fsmpb.Reason_REASON_NEWER_ISSUED:
		s.totals.NewerIssued++
	case o.Reason == fsmpb.Reason_REASON_NOT_ON_RECORD:
		s.totals.NotOnRecord++
	case o.Reason == fsmpb.Reason_REASON_WRONG_LEASE:
		s.totals.WrongLease++
	case o.Reason == fsmpb.Reason_REASON_NOT_HELD:
		s.totals.NotHeld++
	}
}
