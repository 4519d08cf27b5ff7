package fsm

import (
	"cmp"

	"github.com/tidwall/btree"

	"fencepost/fsm/fsmpb"
)

// A Waiter has a place in the queue of a lease: its ticket, which is the index
// of the entry that queued it (P12). It is never changed once it is in a State.
type Waiter struct {
	Ticket uint64
	// UntilMS is the cluster time at which its wait is over.
	UntilMS uint64
	Acquire *fsmpb.Acquire // what it asked for

	hash uint64
}

func (w *Waiter) requestKey() string { return requestKey(w.Acquire.Principal, w.Acquire.Request) }

// queue is what is known of all the waiters of one name.
type queue struct {
	length int
	ready  uint64 // the ticket under which its head stands in State.ready; 0: it does not
}

func newWaiterTree() *btree.BTreeG[*Waiter] {
	before := func(a, b *Waiter) bool {
		return cmp.Or(cmp.Compare(a.Acquire.Name, b.Acquire.Name), cmp.Compare(a.Ticket, b.Ticket)) < 0
	}
	return btree.NewBTreeGOptions(before, btree.Options{NoLocks: true})
}

// Waiters lists those of a name in the order in which they will be granted, at
// most limit.
func (s *State) Waiters(name string, limit int) (ws []*Waiter) {
	s.waiters.Ascend(waiterAt(name, 0), func(w *Waiter) bool {
		if w.Acquire.Name != name || len(ws) == limit {
			return false
		}
		ws = append(ws, w)
		return true
	})
	return ws
}

// AllWaiters walks all waiters until see returns false.
func (s *State) AllWaiters(see func(*Waiter) bool) { s.waiters.Scan(see) }

// QueueLength is how many wait for the name.
func (s *State) QueueLength(name string) int {
	q, _ := s.queues.Get(name)
	return q.length
}

// Ready is how many names have a waiter that an Advance can grant.
func (s *State) Ready() int { return s.ready.Len() }

func waiterAt(name string, ticket uint64) *Waiter {
	return &Waiter{Ticket: ticket, Acquire: &fsmpb.Acquire{Name: name}}
}

// setWaiter is the only way a waiter enters the state.
func (s *State) setWaiter(w *Waiter) {
	name := w.Acquire.Name
	old, existed := s.waiters.Set(w)
	if existed {
		s.sum -= old.hash
		s.expiries.Delete(due{old.UntilMS, dueWait, name, old.Ticket})
	} else {
		s.tickets.Set(w.Ticket, name)
		q, _ := s.queues.Get(name)
		q.length++
		s.queues.Set(name, q)
	}
	w.hash = w.digest()
	s.sum += w.hash
	s.expiries.Set(due{w.UntilMS, dueWait, name, w.Ticket})
	s.touch(name)
}

// removeWaiter takes one out of its queue.
func (s *State) removeWaiter(w *Waiter) {
	name := w.Acquire.Name
	s.waiters.Delete(w)
	s.tickets.Delete(w.Ticket)
	s.sum -= w.hash
	s.expiries.Delete(due{w.UntilMS, dueWait, name, w.Ticket})
	q, _ := s.queues.Get(name)
	q.length--
	s.queues.Set(name, q)
	s.touch(name)
}

// touch notes that something about a name has changed that may let the head of
// its queue in, or keep it out.
func (s *State) touch(name string) {
	if _, ok := s.queues.Get(name); ok {
		s.touched = append(s.touched, name)
	}
}

// settle brings ready up to date with the names that were touched. It changes
// nothing that replicas could see: what it finds follows from the rest.
func (s *State) settle() {
	for _, name := range s.touched {
		q, ok := s.queues.Get(name)
		if !ok {
			continue
		}
		was := q.ready
		q.ready = 0
		if w := s.head(name); w != nil && !s.before(w.Ticket) && s.fits(name, w.Acquire) {
			q.ready = w.Ticket
		}
		if was != q.ready && was != 0 {
			s.ready.Delete(due{was, dueGrant, name, 0})
		}
		if was != q.ready && q.ready != 0 {
			s.ready.Set(due{q.ready, dueGrant, name, 0})
		}
		if q.length == 0 {
			s.queues.Delete(name)
		} else {
			s.queues.Set(name, q)
		}
	}
	s.touched = s.touched[:0]
}

// head is the waiter with the lowest ticket.
func (s *State) head(name string) (w *Waiter) {
	if _, ok := s.queues.Get(name); !ok {
		return nil
	}
	s.waiters.Ascend(waiterAt(name, 0), func(first *Waiter) bool {
		if first.Acquire.Name == name {
			w = first
		}
		return false
	})
	return w
}

// fits says whether the lease has room for the request, whoever waits.
func (s *State) fits(name string, c *fsmpb.Acquire) bool {
	l, ok := s.leases.Get(name)
	switch {
	case !ok:
		return true
	case l.GraceUntilMS != 0 || s.before(l.firstToken()):
		return false
	case !l.Live():
		return true
	}
	return l.Slots == slotsOf(c) && l.Used()+takeOf(c) <= l.Slots
}

// Free says whether the request would be granted at once.
func (s *State) Free(c *fsmpb.Acquire) bool { return s.QueueLength(c.Name) == 0 && s.fits(c.Name, c) }

func slotsOf(c *fsmpb.Acquire) uint64 { return max(c.Slots, 1) }
func takeOf(c *fsmpb.Acquire) uint64  { return max(c.Take, 1) }

// enqueue puts the requester at the end of the queue.
func (s *State) enqueue(c *fsmpb.Acquire) *fsmpb.Outcome {
	w := &Waiter{Ticket: s.index, UntilMS: s.clockMS + c.WaitMs, Acquire: c}
	s.setWaiter(w)
	s.queueEvent(EventQueued, w, fsmpb.Reason_REASON_NONE, nil)
	o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_QUEUED, Name: c.Name, Ticket: w.Ticket}
	s.remember(c.Principal, c.Request, o, true)
	return o
}

// requeue is for a waiter that came back: it stands where it stood, and waits
// for as long as it says now.
func (s *State) requeue(c *fsmpb.Acquire, o *fsmpb.Outcome) *fsmpb.Outcome {
	w, ok := s.waiters.Get(waiterAt(c.Name, o.Ticket))
	if !ok {
		return o
	}
	next := *w
	next.UntilMS = s.clockMS + c.WaitMs
	s.setWaiter(&next)
	if c.WaitMs == 0 {
		return s.leave(&next, fsmpb.Reason_REASON_TIMEOUT)
	}
	return o
}

// dropOverdue takes those out of a queue whose wait is over, up to the first
// whose is not: a head is looked at only after this.
func (s *State) dropOverdue(name string) {
	for {
		w := s.head(name)
		if w == nil || w.UntilMS > s.clockMS && !s.before(w.Ticket) {
			return
		}
		s.leave(w, s.whyOver(w))
	}
}

// leave takes a waiter out of its queue without a grant, and decides its request.
func (s *State) leave(w *Waiter, why fsmpb.Reason) *fsmpb.Outcome {
	s.removeWaiter(w)
	o := &fsmpb.Outcome{Code: fsmpb.Code_CODE_CANCELLED, Name: w.Acquire.Name}
	switch why {
	case fsmpb.Reason_REASON_TIMEOUT:
		o = s.taken(w.Acquire.Name)
	case fsmpb.Reason_REASON_RESTORED:
		o.Reason = why
	}
	s.decide(w.requestKey(), o, s.clockMS+KeepRequestMS)
	s.queueEvent(EventDequeued, w, why, o)
	return o
}

func (s *State) queueEvent(kind EventKind, w *Waiter, why fsmpb.Reason, o *fsmpb.Outcome) {
	c := w.Acquire
	e := Event{
		Kind: kind, Name: c.Name, Holder: c.Holder, Ticket: w.Ticket, Reason: why,
		Slots: slotsOf(c), Take: takeOf(c), QueueLength: s.QueueLength(c.Name),
	}
	if o != nil {
		e.Decided = &Decision{w.requestKey(), o, c}
	}
	s.event(e)
}

// grantHead grants the head of a queue if there is room for it, and nobody else:
// an entry grants one (P2, P12).
func (s *State) grantHead(name string) {
	s.dropOverdue(name)
	w := s.head(name)
	if w == nil || !s.fits(name, w.Acquire) {
		return
	}
	s.removeWaiter(w)
	s.grant(w.Acquire, w)
}

// cancel ends a wait, or a grant that nobody picked up.
func (s *State) cancel(c *fsmpb.Cancel) *fsmpb.Outcome {
	switch {
	case !nameOK(c.Name):
		return invalid("name")
	case !remembered(c.Request):
		return invalid("request")
	}
	s.endDue(c.Name)
	defer s.grantHead(c.Name)
	o := &fsmpb.Outcome{Name: c.Name}
	key := requestKey(c.Principal, c.Request)
	r, ok := s.requests.Get(key)
	switch {
	case !ok && c.Attempt != 0:
		return o // the leader's own, of what is forgotten
	case !ok:
		// It has overtaken its acquire, which will find this.
		done := &fsmpb.Outcome{Code: fsmpb.Code_CODE_CANCELLED, Name: c.Name}
		s.remember(c.Principal, &fsmpb.Request{Key: c.Request.Key, Path: c.Request.Path, ServerMade: c.Request.ServerMade}, done, false)
		o.Cancelled = true
		return o
	case c.Attempt != 0 && r.attempt > c.Attempt:
		return o
	}
	switch r.outcome.Code {
	case fsmpb.Code_CODE_CANCELLED:
		o.Cancelled = true
	case fsmpb.Code_CODE_QUEUED:
		if w, ok := s.waiters.Get(waiterAt(c.Name, r.outcome.Ticket)); ok {
			s.leave(w, fsmpb.Reason_REASON_CANCELLED)
			o.Cancelled = true
		}
	case fsmpb.Code_CODE_OK:
		l, ok := s.leases.Get(c.Name)
		if !ok {
			break
		}
		// A write's outcome has a token, too.
		if h := s.holder(l, r.outcome.Token); h != nil && h.requestKey == key {
			s.end(l, h, fsmpb.Reason_REASON_RELEASED, s.clockMS)
			done := &fsmpb.Outcome{Code: fsmpb.Code_CODE_CANCELLED, Name: c.Name, Token: h.Token}
			s.decide(key, done, s.clockMS+KeepRequestMS)
			o.Cancelled = true
		}
	}
	return o
}
