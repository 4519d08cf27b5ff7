package fsm

import (
	"errors"
	"fmt"

	"fencepost/fsm/fsmpb"
)

// JumpEpochUnix is 2020-01-01 UTC in seconds of Unix time: what Jump counts
// from. 2^22 for each second since reaches MaxToken after 68 years.
const JumpEpochUnix = 1577836800

const (
	jumpAtLeast   = 1 << 32 // above every index that is known
	jumpPerSecond = 1 << 22 // far more than any cluster commits
	// maxJump leaves room for as many indexes again.
	maxJump = MaxToken - jumpAtLeast
	// maxAbove leaves room for a thousand restores more, or decades of entries: a
	// number that was mistyped must not be the last one.
	maxAbove = maxJump - 1<<42
)

// ErrJumpTooFar is of a jump that would leave no room below MaxToken. Nothing
// has changed.
var ErrJumpTooFar = errors.New("the index cannot jump so far")

// A Jump says where the public index must go, so that no token from before is
// issued again (P1): neither one that this cluster or the backup knows of, nor
// one that a cluster issued which was restored from the same backup elsewhere.
// The last is what the time is for.
type Jump struct {
	// SinceMS is the milliseconds since JumpEpochUnix by the wall clock of whoever
	// proposes the jump.
	SinceMS uint64
	// BackupIndex is the newest index of the backup that is restored; 0: none is.
	BackupIndex uint64
	// Above is at most the index after the jump, by the operator's word; 0: no word.
	Above uint64
}

// SinceJumpEpochMS is Jump.SinceMS of an instant in Unix milliseconds; 0 if the
// clock is not set.
func SinceJumpEpochMS(unixMS int64) uint64 { return uint64(max(0, unixMS-JumpEpochUnix*1000)) }

// To is the index to which the entry or state at that index jumps. Its error
// wraps ErrJumpTooFar.
func (j Jump) To(index uint64) (uint64, error) {
	if j.SinceMS > MaxToken/jumpPerSecond*1000 || index > maxJump || j.BackupIndex > maxJump {
		return 0, fmt.Errorf("%w: from index %d, over the backup's %d, %d ms after 2020", ErrJumpTooFar, index, j.BackupIndex, j.SinceMS)
	}
	if j.Above > maxAbove {
		return 0, fmt.Errorf("%w: above %d, the greatest is %d", ErrJumpTooFar, j.Above, uint64(maxAbove))
	}
	to := max(max(index, j.BackupIndex)+jumpAtLeast, j.SinceMS*jumpPerSecond/1000, j.Above)
	if to > maxJump {
		return 0, fmt.Errorf("%w: to %d, the greatest is %d", ErrJumpTooFar, to, uint64(maxJump))
	}
	return to, nil
}

// Jump moves the index of the entry that was applied last, or is being applied,
// and all that follow, and makes that index the floor: every token from before
// is below every token after (P1), and refused on every key (P5). It costs
// the same however many leases there are: none is rewritten. A lease from before
// is from now on a grace, until its holder's deadline plus the grace that it asked for, so that what
// checks no token gets no second holder; a grace that runs goes on;
// and a wait from before is over. Advance clears them.
//
// It is for entries that restore a backup, and for recovery from a stopped node's
// directory, between two calls of Apply. After an error nothing has changed.
func (s *State) Jump(j Jump) error {
	to, err := j.To(s.index)
	if err != nil {
		return err
	}
	s.base += to - s.index
	s.index, s.floor, s.restored = to, to, to
	s.ready.Scan(func(d due) bool { // none of them can be granted any more
		s.touch(d.key)
		return true
	})
	s.settle()
	return nil
}

// RestoreFloor is the floor that the newest jump has set: what has a token or
// ticket at or below it is from before. 0: the index has never jumped.
func (s *State) RestoreFloor() uint64 { return s.restored }

// before says that a token or ticket is from before the newest jump.
func (s *State) before(number uint64) bool { return number != 0 && number <= s.restored }

// holder finds a holder who still is one: not from before a jump.
func (s *State) holder(l *Lease, token uint64) *Holder {
	if s.before(token) {
		return nil
	}
	return l.holder(token)
}

// graceUntil is the cluster time until which nobody is granted the name; 0: no
// grace runs. A lease has holders from before a jump or from after it, never
// both, since the former keep the latter out.
func (s *State) graceUntil(l *Lease) uint64 {
	until := l.GraceUntilMS
	if s.before(l.firstToken()) {
		for _, h := range l.Holders {
			until = max(until, h.DeadlineMS+h.GraceMS)
		}
	}
	return until
}

// asGrace is the lease as others see it: one from before a jump has no holders.
func (s *State) asGrace(l *Lease) *Lease {
	if !s.before(l.firstToken()) {
		return l
	}
	shown := *l
	shown.Holders, shown.GraceUntilMS = nil, s.graceUntil(l)
	return &shown
}

// whyOver is why a wait is over: that it is has been found already.
func (s *State) whyOver(w *Waiter) fsmpb.Reason {
	if s.before(w.Ticket) {
		return fsmpb.Reason_REASON_RESTORED
	}
	return fsmpb.Reason_REASON_TIMEOUT
}

// waitsRestored says that there are waiters from before a jump.
func (s *State) waitsRestored() bool {
	ticket, _, ok := s.tickets.Min()
	return ok && s.before(ticket)
}

// dropRestored ends waits from before a jump in the order of their tickets, so
// many at most, and says how many more it could have ended.
func (s *State) dropRestored(most int) (left int) {
	for left = most; left > 0 && s.waitsRestored(); left-- {
		ticket, name, _ := s.tickets.Min()
		w, _ := s.waiters.Get(waiterAt(name, ticket))
		s.leave(w, fsmpb.Reason_REASON_RESTORED)
	}
	return left
}
