package fsm

import "fencepost/fsm/fsmpb"

// maxAdvance bounds the work of one Advance, so that no entry holds up those
// behind it. The leader proposes another while something is due.
const maxAdvance = 1000

// advance ends leases whose time is up, then removes records that have been
// kept long enough, each in the order of their deadlines.
func (s *State) advance() *fsmpb.Outcome {
	left := maxAdvance
	for ; left > 0; left-- {
		d, ok := s.expiries.Min()
		if !ok || d.at > s.clockMS {
			break
		}
		s.endIfDue(d.key)
	}
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
	return &fsmpb.Outcome{}
}

// NextExpiryMS is the cluster time at which the next lease is over.
func (s *State) NextExpiryMS() (uint64, bool) {
	d, ok := s.expiries.Min()
	return d.at, ok
}

// NextRemovalMS is the cluster time from which an Advance has records to remove.
func (s *State) NextRemovalMS() (uint64, bool) {
	if d, ok := s.tombstones.Min(); ok && d.at <= s.floor {
		return s.clockMS, true
	}
	d, ok := s.removals.Min()
	return d.at, ok
}

// HasDeadline says whether the clock must be kept moving.
func (s *State) HasDeadline() bool { return s.expiries.Len() > 0 || s.removals.Len() > 0 }
