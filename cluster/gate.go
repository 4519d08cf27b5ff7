package cluster

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"fencepost/fsm/fsmpb"
)

const (
	// maxProposals is how many proposals may be in flight at Raft, whose own
	// queue is first come, first served: what has gone through the gate can no
	// longer be overtaken. Four times what one disk write carries: one of these is
	// being written here, one by the followers, one is being applied and
	// answered, and one stands ready. Half as many cost over a third of the writes
	// at 256 clients, in simulation with a disk of 4 ms.
	maxProposals = 4 * maxAppendEntries
	// lowerTurn is which of the slots handed to waiters go to a lower class.
	lowerTurn = 16
)

// class orders the proposals that wait for Raft: overload must not cost a live
// holder its lease (P7). The lowest number goes first.
type class int

const (
	classLeader  class = iota // renewals and ticks, one of each at a time, and members
	classEnding               // releases, and Cancels of what waits
	classAdvance              // leases that are over, and the next in line: a few at a time
	classWrite
	classAcquire // what makes new work, and whatever is not named in classOf
	classes      // how many there are
)

func classOf(c *fsmpb.Command) class {
	switch c.Op.(type) {
	case *fsmpb.Command_Renew, *fsmpb.Command_Tick, *fsmpb.Command_SetNode, *fsmpb.Command_RemoveNode:
		return classLeader
	case *fsmpb.Command_Release, *fsmpb.Command_Cancel:
		return classEnding
	case *fsmpb.Command_Advance:
		return classAdvance
	case *fsmpb.Command_Write, *fsmpb.Command_RestoreBegin, *fsmpb.Command_RestoreChunk, *fsmpb.Command_RestoreCommit:
		return classWrite
	}
	return classAcquire
}

// gate admits proposals to Raft, so many at a time. Below that bound nobody
// waits. Above it a slot that becomes free goes to the highest class that waits,
// and in it to who came first; but every sixteenth goes to one of the lower
// classes that wait, the lowest first and then in turn, so that a steady stream
// of one class starves no other for ever.
//
// Its methods may be called from any goroutine. How many may wait is bounded by
// their bytes (Config.MaxInFlightBytes).
type gate struct {
	mu      sync.Mutex // guards what follows, and all waiters
	free    int        // slots; 0 while anybody waits
	closed  error      // what everybody is told from now on; nil: open
	waiting [classes]list.List
	handed  uint64 // slots that went to waiters
	lower   class  // which got the last slot of a lower class
}

// waiter is one proposal in a queue.
type waiter struct {
	class   class
	place   *list.Element // nil: decided
	err     error         // if decided: nil is a slot
	decided chan struct{} // closed then
}

func newGate(slots int) *gate { return &gate{free: slots, lower: classes} }

// enter waits for a slot, which leave gives back. After an error there is none
// to give back, and surely nothing was handed over: the error is one of the
// sentinels that say so (P10), ErrOverloaded if ctx or the bound came first.
func (g *gate) enter(ctx context.Context, c class, bound time.Duration) error {
	if ctx.Err() != nil {
		return givenUp(ctx)
	}
	w, err := g.queue(c)
	if w == nil {
		return err
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-w.decided:
		return w.err
	case <-ctx.Done():
		g.withdraw(w)
		return givenUp(ctx)
	case <-timer.C:
		g.withdraw(w)
		return fmt.Errorf("%w: no turn within %s", ErrOverloaded, bound)
	}
}

// givenUp names the cause without being it: a context that ended elsewhere means
// an unknown outcome, and here it does not.
func givenUp(ctx context.Context) error {
	return fmt.Errorf("%w: given up before its turn: %v", ErrOverloaded, context.Cause(ctx))
}

// queue takes a slot, or a place in the queue if there is none.
func (g *gate) queue(c class) (*waiter, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed != nil:
		return nil, g.closed
	case g.free > 0:
		g.free--
		return nil, nil
	}
	w := &waiter{class: c, decided: make(chan struct{})}
	w.place = g.waiting[c].PushBack(w)
	return w, nil
}

// withdraw ends a wait. A slot that came at the same moment goes to the next.
func (g *gate) withdraw(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case w.place != nil:
		g.decide(w, ErrOverloaded)
	case w.err == nil:
		g.pass()
	}
}

// leave gives a slot back.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass()
}

// turnAway ends all waits with the error.
func (g *gate) turnAway(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.waiting {
		for g.waiting[c].Len() > 0 {
			g.decide(g.first(class(c)), err)
		}
	}
}

// close ends all waits, and nobody enters from now on.
func (g *gate) close(err error) {
	g.mu.Lock()
	g.closed = err
	g.mu.Unlock()
	g.turnAway(err)
}

// The methods below are called with the lock held.

// pass hands a slot to whose turn it is.
func (g *gate) pass() {
	c := g.next()
	if c == classes {
		g.free++
		return
	}
	g.decide(g.first(c), nil)
}

// next is the class whose turn it is; classes: nobody waits.
func (g *gate) next() class {
	highest := class(0)
	for highest < classes && g.waiting[highest].Len() == 0 {
		highest++
	}
	if highest == classes {
		return classes
	}
	if g.handed++; g.handed%lowerTurn != 0 {
		return highest
	}
	for range classes { // upwards from below the last one, and around
		if g.lower--; g.lower <= highest {
			g.lower = classes - 1
		}
		if g.waiting[g.lower].Len() > 0 {
			return g.lower // the highest itself, if it is the lowest class
		}
	}
	return highest
}

func (g *gate) first(c class) *waiter { return g.waiting[c].Front().Value.(*waiter) }

func (g *gate) decide(w *waiter, err error) {
	g.waiting[w.class].Remove(w.place)
	w.place, w.err = nil, err
	close(w.decided)
}
