package fsm

import "fencepost/fsm/fsmpb"

// maxAdvance bounds the work of one Advance, so that no entry holds up those
// behind it. The leader proposes another while something is due.
const maxAdvance = 1000

// advance ends waits from before a restore and leases, graces and waits whose time
// is up, then removes records
// that have been kept long enough, each in the order of their deadlines; and it
// grants one waiter, the one with the lowest ticket of those that can be. A staged
// backup that nobody completes goes, too.
func (s *State) advance() *fsmpb.Outcome {
	s.dropStaging()
	left := s.dropRestored(maxAdvance)
	for ; left > 0; left-- {
		d, ok := s.expiries.Min()
		if !ok || d.at > s.clockMS {
			break
		}
		s.over(d)
	}
	late := left == 0 // perhaps: then a queue may be full of waits that are over
	for ; left > 0; left-- {
		d, ok := s.removals.Min()
		if !ok || d.at > s.clockMS {
			break
		}
		if d.of == dueLease {
			s.setLease(d.key, nil)
		} else {
			s.setRequest(d.key, nil)
		}
	}
	s.raiseFloor()
	for ; left > 0; left-- {
		// At or below the floor a token is refused on every key anyway.
		d, ok := s.tombstones.Min()
		if !ok || d.at > s.floor {
			break
		}
		s.setKey(d.key, nil)
	}
	s.settle()
	if d, ok := s.ready.Min(); ok && !late {
		s.grantHead(d.key)
	}
	return &fsmpb.Outcome{}
}

// over ends one thing whose time is up.
func (s *State) over(d due) {
	switch d.of {
	case dueWait:
		if w, ok := s.waiters.Get(waiterAt(d.key, d.token)); ok {
			s.leave(w, s.whyOver(w))
		}
	case dueGrace:
		if l, ok := s.leases.Get(d.key); ok {
			s.endGrace(l)
		}
	case dueHolder:
		if l, ok := s.leases.Get(d.key); ok {
			s.end(l, l.holder(d.token), fsmpb.Reason_REASON_EXPIRED, d.at)
		}
	}
}

// NextExpiryMS is the cluster time from which an Advance has somebody to end or
// to grant, whom others wait for.
func (s *State) NextExpiryMS() (uint64, bool) {
	if s.ready.Len() > 0 || s.waitsRestored() {
		return s.clockMS, true
	}
	d, ok := s.expiries.Min()
	return d.at, ok
}

// NextRemovalMS is the cluster time from which an Advance has records to remove.
func (s *State) NextRemovalMS() (uint64, bool) {
	if d, ok := s.tombstones.Min(); ok && d.at <= s.floor {
		return s.clockMS, true
	}
	d, ok := s.removals.Min()
	if g := s.staging; g != nil && (!ok || g.deadlineMS < d.at) {
		return g.deadlineMS, true
	}
	return d.at, ok
}

// HasDeadline says whether the clock must be kept moving.
func (s *State) HasDeadline() bool {
	return s.expiries.Len() > 0 || s.removals.Len() > 0 || s.staging != nil
}
