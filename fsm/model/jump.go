package model

import (
	"cmp"
	"slices"

	"fencepost/fsm/fsmpb"
)

// Jump moves the index of the last entry to where a restore or a recovery puts it.
// Everything from before is over, but nobody gets a name before its holder's time
// and grace are.
func (m *Machine) Jump(to uint64) {
	m.Base += to - m.Index
	m.Index, m.Floor, m.RestoreFloor = to, to, to
}

// old: from before the jump.
func (m *Machine) old(number uint64) bool { return number > 0 && number <= m.RestoreFloor }

func (m *Machine) holder(l *Lease, token uint64) *Holder {
	if m.old(token) {
		return nil
	}
	return l.holder(token)
}

// GraceUntil is when the grace of a name is over; 0: there is none.
func (m *Machine) GraceUntil(l *Lease) uint64 {
	until := l.GraceUntilMS
	for _, h := range l.Holders {
		if m.old(h.Token) {
			until = max(until, h.DeadlineMS+h.GraceMS)
		}
	}
	return until
}

// Shown is the lease as others see it: one from before a jump has no holders.
func (m *Machine) Shown(l *Lease) *Lease {
	if !l.Held() || !m.old(l.Holders[0].Token) {
		return l
	}
	shown := *l
	shown.Holders, shown.GraceUntilMS = nil, m.GraceUntil(l)
	return &shown
}

func (m *Machine) oldWaiters() (ws []*Waiter) {
	for _, queue := range m.Queues {
		for _, w := range queue {
			if m.old(w.Ticket) {
				ws = append(ws, w)
			}
		}
	}
	slices.SortFunc(ws, func(a, b *Waiter) int { return cmp.Compare(a.Ticket, b.Ticket) })
	return ws
}

func (m *Machine) endOldWaits(left int) int {
	for _, w := range m.oldWaiters() {
		if left == 0 {
			break
		}
		m.leave(w, fsmpb.Reason_REASON_RESTORED)
		left--
	}
	return left
}

func (m *Machine) whyLate(w *Waiter) fsmpb.Reason {
	if m.old(w.Ticket) {
		return fsmpb.Reason_REASON_RESTORED
	}
	return fsmpb.Reason_REASON_TIMEOUT
}
