package model

import (
	"cmp"
	"math"
	"slices"

	"fencepost/fsm/fsmpb"
)

// maxAdvance is how many things one Advance ends and removes.
const maxAdvance = 1000

// A due is something that is over at an instant.
type due struct {
	at     uint64
	kind   int // at one instant holders end first, then graces, then waits
	name   string
	number uint64
	end    func()
	starts bool // a grace, perhaps, which is over at an instant of its own
}

// dues are all deadlines up to an instant, the earliest first.
func (m *Machine) dues(upTo uint64) (all []due) {
	for name, l := range m.Leases {
		for _, h := range l.Holders {
			all = append(all, due{h.DeadlineMS, 0, name, h.Token, func() {
				m.end(l, h, fsmpb.Reason_REASON_EXPIRED, h.DeadlineMS)
			}, h.GraceMS > 0})
		}
		if l.GraceUntilMS != 0 {
			all = append(all, due{l.GraceUntilMS, 1, name, 0, func() { l.GraceUntilMS = 0 }, false})
		}
	}
	for name, queue := range m.Queues {
		for _, w := range queue {
			all = append(all, due{w.UntilMS, 2, name, w.Ticket, func() {
				m.leave(w, fsmpb.Reason_REASON_TIMEOUT)
			}, false})
		}
	}
	all = slices.DeleteFunc(all, func(d due) bool { return d.at > upTo })
	slices.SortFunc(all, func(a, b due) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name), cmp.Compare(a.number, b.number))
	})
	return all
}

// NextDue is the cluster time at which an Advance has somebody to end or to grant.
func (m *Machine) NextDue() (at uint64, ok bool) {
	if len(m.Ready()) > 0 || len(m.oldWaiters()) > 0 {
		return m.Clock, true
	}
	if all := m.dues(math.MaxUint64); len(all) > 0 {
		return all[0].at, true
	}
	return 0, false
}

func (m *Machine) advance() *fsmpb.Outcome {
	if m.Staging != nil && m.Staging.DeadlineMS <= m.Clock {
		m.Staging = nil
	}
	left := m.endDue(m.endOldWaits(maxAdvance))
	late := left == 0
	left = m.forget(left)
	m.setFloor()
	m.dropBare(left)
	if ready := m.Ready(); len(ready) > 0 && !late {
		m.grantHead(ready[0].Acquire.Name)
	}
	return &fsmpb.Outcome{}
}

// endDue ends what is due, and says how much more this Advance may do.
func (m *Machine) endDue(left int) int {
	for all := m.dues(m.Clock); len(all) > 0 && left > 0; left-- {
		all[0].end()
		if all[0].starts {
			all = m.dues(m.Clock)
		} else {
			all = all[1:]
		}
	}
	return left
}

// forget removes the leases and requests that have been kept for long enough.
func (m *Machine) forget(left int) int {
	var all []due
	for name, l := range m.Leases {
		if !l.Held() && m.Clock-l.EndedMS >= keepEndedMS {
			all = append(all, due{at: l.EndedMS + keepEndedMS, kind: 0, name: name, end: func() {
				delete(m.Leases, name)
				m.holdersChanged = true
			}})
		}
	}
	if m.firstGone <= m.Clock {
		for id, r := range m.Requests {
			if r.GoneMS != 0 && r.GoneMS <= m.Clock {
				all = append(all, due{at: r.GoneMS, kind: 1, name: id.Key + "\x00" + id.Path + "\x00" + id.Principal, end: func() { delete(m.Requests, id) }})
			}
		}
	}
	slices.SortFunc(all, func(a, b due) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	for ; len(all) > 0 && left > 0; left-- {
		all[0].end()
		all = all[1:]
	}
	if m.firstGone <= m.Clock {
		m.firstGone = math.MaxUint64
		for _, r := range m.Requests {
			m.goes(r)
		}
	}
	return left
}

// goes notes when a request goes.
func (m *Machine) goes(r *Request) {
	if r.GoneMS != 0 {
		m.firstGone = min(m.firstGone, r.GoneMS)
	}
}

// dropBare removes the keys without a value whose watermark the floor has reached.
func (m *Machine) dropBare(left int) {
	if m.firstBare > m.Floor {
		return
	}
	var all []due
	m.firstBare = math.MaxUint64
	for key, k := range m.Keys {
		switch {
		case k.Present:
		case k.Watermark <= m.Floor:
			all = append(all, due{at: k.Watermark, name: key})
		default:
			m.firstBare = min(m.firstBare, k.Watermark)
		}
	}
	slices.SortFunc(all, func(a, b due) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) })
	for _, d := range all {
		if left--; left < 0 {
			m.firstBare = min(m.firstBare, d.at)
			continue
		}
		delete(m.Keys, d.name)
	}
}

// FirstDue is whose deadline comes first, of a holder, a grace or a wait, and when.
func (m *Machine) FirstDue() (name string, at uint64, ok bool) {
	at = math.MaxUint64
	note := func(whose string, until uint64) {
		if until < at || until == at && whose < name {
			name, at, ok = whose, until, true
		}
	}
	for whose, l := range m.Leases {
		for _, h := range l.Holders {
			note(whose, h.DeadlineMS)
		}
		if l.GraceUntilMS != 0 {
			note(whose, l.GraceUntilMS)
		}
	}
	for whose, queue := range m.Queues {
		for _, w := range queue {
			note(whose, w.UntilMS)
		}
	}
	return name, at, ok
}
