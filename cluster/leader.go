package cluster

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

const (
	// tickEvery keeps the clock moving while anything has a deadline: well
	// within the second that the promises allow.
	tickEvery = 800 * time.Millisecond
	// digestEvery is how often a Tick goes out whatever else commits.
	digestEvery = 10 * time.Second
	// removeEvery spaces the removal of old records, which nobody waits for; but
	// not when they are late by removeLate: then there are many.
	removeEvery = time.Second
	removeLate  = 2 * time.Second
	// renewIntake is how long after a pause renewals may come in before
	// anything is ended: they were on their way while the leader stood still.
	renewIntake = 100 * time.Millisecond
	// advancesAtOnce is how many Advances may be in flight.
	advancesAtOnce = 16
	// leaderRetry spaces attempts at leader's work that failed.
	leaderRetry = 50 * time.Millisecond
)

// followLeadership starts and ends the leader's work. Raft's channel is always
// drained: it blocks Raft otherwise.
func (n *Node) followLeadership(ctx context.Context, mb *member) {
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case leads := <-mb.notify:
			// Two "true" in a row mean that it was lost and regained.
			stop()
			n.ready.set(0)
			n.reading.Store(nil)
			n.gate.turnAway(ErrNoLeader)
			n.waits.reset()
			if !leads {
				stop = func() {}
				continue
			}
			term, cancel := context.WithCancel(ctx)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				n.lead(term, mb)
			}()
			stop = func() { cancel(); <-ended }
		}
	}
}

// lead does a leader's work until its term ends.
func (n *Node) lead(ctx context.Context, mb *member) {
	select {
	case <-n.reprove: // of a time when it did not lead
	default:
	}
	for !n.takeOffice(ctx, mb) {
		if !sleep(ctx, leaderRetry) || mb.raft.State() != raft.Leader {
			return
		}
	}
	n.log.Info("leading", "term", n.ready.term())
	n.waits.begin()
	var wg sync.WaitGroup
	wg.Go(func() { n.tendMembers(ctx, mb) })
	wg.Go(func() { n.tendWaits(ctx) })
	n.keepTime(ctx, mb)
	wg.Wait()
}

// takeOffice makes the leader ready in its term: everything committed before is
// applied here, so that the clock goes on from where the log left it (P8) and
// reads miss nothing.
func (n *Node) takeOffice(ctx context.Context, mb *member) bool {
	pausesBefore := n.pauses.count.Load()
	term := mb.raft.CurrentTerm()
	if !await(ctx, mb.raft.Barrier(enqueueBound)) || mb.raft.CurrentTerm() != term {
		return false
	}
	if r := n.reading.Load(); r == nil || r.term != term {
		var clockMS uint64
		n.machine.view(func(s *fsm.State) { clockMS = s.ClockMS() })
		n.reading.Store(&reading{ns: int64(clockMS) * int64(time.Millisecond), at: n.clock(), term: term, clock: n.clock})
		if _, err := n.propose(ctx, time.Now(), n.tick()); err != nil {
			return false
		}
	}
	if n.pauses.count.Load() != pausesBefore || n.closing.Load() {
		return false
	}
	if !n.ready.set(term) {
		return false
	}
	mb.log.lead(term)
	return true
}

// dropReady makes the leader prove itself again before it answers reads.
func (n *Node) dropReady() {
	n.ready.set(0)
	select {
	case n.reprove <- struct{}{}:
	default:
	}
}

// committed is called by the state machine after each entry.
func (n *Node) committed(term uint64, decided []fsm.Decision) {
	for {
		r := n.reading.Load()
		if r == nil || r.term != term {
			return
		}
		if n.reading.CompareAndSwap(r, r.rebase()) {
			break
		}
	}
	if len(decided) > 0 {
		n.waits.note(decided, n.cfg.WaiterGrace)
	}
}

// keepTime proposes what time makes due: Advance when leases end, and Ticks
// that keep the clock moving. It is the leader's one timer.
func (n *Node) keepTime(ctx context.Context, mb *member) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var lastTick, lastRemoval time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.reprove:
			if !n.recover(ctx, mb) {
				return
			}
		case <-n.machine.wake:
		case <-timer.C:
		}
		next, wait := n.dueNext(lastTick, lastRemoval)
		for next != nil {
			if next.GetAdvance() != nil && !n.steady() {
				wait = leaderRetry // the pause is dealt with first
				break
			}
			if err := n.proposeDue(ctx, next); err != nil && !sleep(ctx, leaderRetry) {
				return
			}
			switch {
			case next.GetTick() != nil:
				lastTick = time.Now()
			case next.GetAdvance() != nil:
				lastRemoval = time.Now()
			}
			next, wait = n.dueNext(lastTick, lastRemoval)
		}
		timer.Reset(max(wait, time.Millisecond))
	}
}

// proposeDue proposes what is due. An Advance grants one waiter at the most, so
// while there are more that can be granted, several are in flight.
func (n *Node) proposeDue(ctx context.Context, c *fsmpb.Command) error {
	count := 1
	if c.GetAdvance() != nil {
		n.machine.view(func(s *fsm.State) { count = min(max(s.Ready(), 1), advancesAtOnce) })
	}
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := 1; i < count; i++ {
		wg.Go(func() { _, errs[i] = n.propose(ctx, time.Now(), advance()) })
	}
	_, errs[0] = n.propose(ctx, time.Now(), c)
	wg.Wait()
	return errors.Join(errs...)
}

func advance() *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_Advance{Advance: &fsmpb.Advance{}}}
}

// steady says that no pause is waiting to be dealt with.
func (n *Node) steady() bool { return n.pauses.running() && n.ready.term() != 0 }

// dueNext is what the leader has to propose next, and in how long.
func (n *Node) dueNext(lastTick, lastRemoval time.Time) (*fsmpb.Command, time.Duration) {
	r := n.reading.Load()
	if r == nil {
		return nil, leaderRetry
	}
	expiry, removal, deadlines := uint64(math.MaxUint64), uint64(math.MaxUint64), false
	n.machine.view(func(s *fsm.State) {
		if at, ok := s.NextExpiryMS(); ok {
			expiry = at
		}
		if at, ok := s.NextRemovalMS(); ok {
			removal = at
		}
		deadlines = s.HasDeadline()
	})
	now := r.now()
	until := func(ms uint64) time.Duration {
		if ms > math.MaxInt64/uint64(time.Millisecond) {
			return digestEvery
		}
		return time.Duration(int64(ms)*int64(time.Millisecond) - now)
	}
	if d := until(expiry); d <= 0 {
		return advance(), 0
	}
	if late := -until(removal); late >= removeLate || late >= 0 && time.Since(lastRemoval) >= removeEvery {
		return advance(), 0
	}
	if deadlines && r.age() >= tickEvery || time.Since(lastTick) >= digestEvery {
		return n.tick(), 0
	}
	wait := min(until(expiry), digestEvery-time.Since(lastTick))
	if deadlines {
		wait = min(wait, tickEvery-r.age())
	}
	if removal != math.MaxUint64 {
		wait = min(wait, max(until(removal), removeEvery-time.Since(lastRemoval)))
	}
	return nil, wait
}

// recover is what a leader does after a pause before it goes on: prove that it
// still leads, then let a round of renewals through, so that what came in while
// it stood still counts before anything is ended.
func (n *Node) recover(ctx context.Context, mb *member) bool {
	n.log.Warn("leadership must be proved again: this process stood still for longer than the leader lease, or could not give leadership away")
	for !n.takeOffice(ctx, mb) {
		if !sleep(ctx, leaderRetry) || mb.raft.State() != raft.Leader {
			return false
		}
	}
	return sleep(ctx, renewIntake)
}

// await waits for a future, but not beyond ctx.
func await(ctx context.Context, f raft.Future) bool {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err == nil
	case <-ctx.Done():
		return false
	}
}

// sleep waits, and says whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
