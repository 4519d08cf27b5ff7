package linear

import "fencepost/httpapi/wire"

// write is the fence rule of DESIGN, section 4, in its order: is the token issued, on
// record, of the right lease; is it below a watermark; is it live, where the guard
// asks for that; do the versions match.
func (m *linModel) write(s *linState, op *linOp) []*linState {
	w := op.write
	if w.maybe {
		if done := m.accept(s, op); done != nil && done != s {
			return []*linState{s, done}
		}
		return []*linState{s}
	}
	var next *linState
	switch w.code {
	case "":
		next = m.accept(s, op)
	case wire.CodeTokenNotIssued:
		if next = s.refusedToken(op); next != nil {
			next = next.told(w.ops[0].at, w.watermark)
		}
	case wire.CodeVersionMismatch:
		next = m.mismatch(s, op)
	default:
		next = m.stale(s, op)
	}
	return one(next)
}

// onRecord says whether the token may write at all, and under the lease it names.
func (s *linState) onRecord(op *linOp) bool {
	return op.at >= 0 && s.names[op.at].isNewest(op.token)
}

// passes says whether the fence lets the write through, up to the versions.
func (s *linState) passes(op *linOp) bool {
	w := op.write
	if !s.onRecord(op) || w.lease != "" && w.leaseAt != op.at {
		return false
	}
	for _, c := range w.ops {
		if op.token < s.keys[c.at].watermark {
			return false
		}
	}
	return !w.held || s.names[op.at].holder == op.token
}

// accept is the state after the write was accepted and told what it was; nil: it
// cannot have been.
func (m *linModel) accept(s *linState, op *linOp) *linState {
	w := op.write
	if !s.passes(op) {
		return nil
	}
	for i := range w.ops {
		if c := &w.ops[i]; c.ifVersion != nil {
			if s = m.bind(s, c.at, *c.ifVersion); s == nil {
				return nil
			}
		}
	}
	for i := range w.ops {
		if s = m.change(s, op, &w.ops[i]); s == nil {
			return nil
		}
	}
	return s
}

// change makes one of the changes.
func (m *linModel) change(s *linState, op *linOp, c *linChange) *linState {
	k := s.keys[c.at]
	if c.op == wire.OpCheck {
		if c.told {
			if s = s.told(c.at, c.watermark); s != nil && c.version != nil {
				s = m.bind(s, c.at, *c.version)
			}
		}
		return s
	}
	if c.watermark != nil && *c.watermark != op.token || c.deleted != nil && *c.deleted != k.present {
		return nil
	}
	switch c.op {
	case wire.OpPut:
		if c.version != nil && *c.version != op.write.version {
			return nil
		}
		k = linKeyState{present: true, version: op.write.version, author: op.write.id, token: op.token, value: c.value}
	case wire.OpDelete:
		k = linKeyState{}
		if value(c.version) != 0 {
			return nil
		}
	case wire.OpFence:
		if c.version != nil {
			if s = m.bind(s, c.at, *c.version); s == nil {
				return nil
			}
			k = s.keys[c.at]
		}
	}
	k.watermark = op.token
	return s.withKey(c.at, k)
}

// bind is the state in which the key has this version (0: no value); nil: it has not.
// A value whose version nobody was told yet may have any that is no other's.
func (m *linModel) bind(s *linState, at int, version uint64) *linState {
	k := s.keys[at]
	switch {
	case !k.present:
		if version != 0 {
			return nil
		}
		return s
	case k.author == 0 || k.version != 0:
		if k.version != version {
			return nil
		}
		return s
	case version == 0 || m.taken[version]:
		return nil
	}
	for i, other := range s.keys {
		if other.author == k.author && other.version == 0 { // one transaction put them all
			other.version = version
			s = s.withKey(i, other)
		} else if other.version == version {
			return nil
		}
	}
	return s
}

// told is the state in which the key's watermark is what was told; nil: it is not. The
// watermark of a key without a value may go once no token up to it is on record.
func (s *linState) told(at int, watermark *uint64) *linState {
	k := s.keys[at]
	if watermark == nil || k.watermark == *watermark {
		return s
	}
	if k.present || *watermark != 0 {
		return nil
	}
	for _, n := range s.names {
		if !n.passed && n.newest != 0 && n.newest <= k.watermark {
			return nil
		}
	}
	k.watermark = 0
	return s.withKey(at, k)
}

// mismatch: the fence let it through, and one version was another.
func (m *linModel) mismatch(s *linState, op *linOp) *linState {
	w := op.write
	if !s.passes(op) || w.mismatch == nil {
		return nil
	}
	for i := range w.ops[:w.opIndex] {
		if c := &w.ops[i]; c.ifVersion != nil {
			if s = m.bind(s, c.at, *c.ifVersion); s == nil {
				return nil
			}
		}
	}
	c := &w.ops[w.opIndex]
	if c.ifVersion == nil || *c.ifVersion == *w.mismatch {
		return nil
	}
	return m.bind(s, c.at, *w.mismatch)
}

// stale is the state after the fence has refused the token for the reason told; nil:
// there was no such reason.
func (m *linModel) stale(s *linState, op *linOp) *linState {
	w := op.write
	at := w.ops[w.opIndex].at
	wrong := w.lease != "" && w.leaseAt != op.at
	switch w.refused {
	case wire.ReasonNotOnRecord, wire.ReasonNewerIssued:
		if s = s.refusedToken(op); s == nil {
			return nil
		}
	case wire.ReasonWrongLease:
		if !s.onRecord(op) || !wrong {
			return nil
		}
	case wire.ReasonBelowWatermark:
		if !s.onRecord(op) || wrong || op.token >= s.keys[at].watermark {
			return nil
		}
		for _, c := range w.ops[:w.opIndex] {
			if op.token < s.keys[c.at].watermark {
				return nil
			}
		}
	case wire.ReasonNotHeld:
		if !w.held || !s.onRecord(op) || wrong || s.names[op.at].holder == op.token {
			return nil
		}
		for _, c := range w.ops {
			if op.token < s.keys[c.at].watermark {
				return nil
			}
		}
	default:
		return nil
	}
	return s.told(at, w.watermark)
}

// refusedToken is the state after a write was refused for its token alone.
func (s *linState) refusedToken(op *linOp) *linState {
	if op.write.code != wire.CodeTokenNotIssued {
		return s.offRecord(op)
	}
	if op.at >= 0 && op.token <= s.names[op.at].newest {
		return nil // it must be granted later, if ever
	}
	return s
}

// offRecord is the state in which the token is not on record: it is no lease's, or the
// lease was granted again since. If nobody was told of such a grant, an acquire without
// an answer may have had it, and lost it again.
func (s *linState) offRecord(op *linOp) *linState {
	w := op.write
	if op.at >= 0 {
		n := s.names[op.at]
		switch {
		case n.newest < op.token || n.holder == op.token:
			return nil
		case n.isNewest(op.token):
			if n.used >= op.limit {
				return nil
			}
			n.passed = true
			n.used++
			s = s.withName(op.at, n)
		}
	}
	newer := false // of the lease that was named
	if w.lease != "" {
		n := s.names[w.leaseAt]
		newer = n.newest > op.token || w.leaseAt == op.at
		if !newer && w.refused == wire.ReasonNewerIssued && n.passed {
			newer = true
		}
	}
	if newer != (w.refused == wire.ReasonNewerIssued) {
		return nil
	}
	return s
}

func (m *linModel) seeKey(s *linState, op *linOp) []*linState {
	read := op.read
	if s = s.told(read.at, &read.watermark); s == nil {
		return nil
	}
	k := s.keys[read.at]
	if op.absent {
		if k.present {
			return nil
		}
		return one(s)
	}
	if !k.present || k.token != read.token || read.value != nil && k.value != *read.value {
		return nil
	}
	return one(m.bind(s, read.at, read.version))
}
