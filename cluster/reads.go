package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// readBound is how long a linearizable read goes on trying to prove itself.
const readBound = 2 * time.Second

var errNotProven = errors.New("leadership could not be confirmed")

// Read runs see on the applied state. see must not block; records that it takes
// from the state are immutable and may be kept. It may be called several times:
// only the last one counts.
//
// A linearizable read first reads and then proves, with a quorum that answers
// to a question asked after the read, that this node was still the leader. A
// stale read proves nothing and says how old it may be.
func (n *Node) Read(ctx context.Context, stale bool, see func(*fsm.State)) (ReadInfo, error) {
	if stale && n.removed.Load() {
		return ReadInfo{}, errGone
	}
	if stale {
		info := n.look(see)
		info.Lag = n.Status().LastContact
		return info, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	for {
		info, err := n.tryRead(ctx, see)
		if err == nil || !errors.Is(err, errNotProven) {
			return info, err
		}
		if ctx.Err() != nil {
			return info, ErrNoLeader // a read changes nothing, so this is no lie
		}
	}
}

func (n *Node) look(see func(*fsm.State)) ReadInfo {
	var info ReadInfo
	n.machine.view(func(s *fsm.State) {
		info.Index = s.Index()
		see(s)
	})
	return info
}

// tryRead makes one attempt; errNotProven says that another may succeed.
func (n *Node) tryRead(ctx context.Context, see func(*fsm.State)) (ReadInfo, error) {
	if n.closing.Load() {
		return ReadInfo{}, ErrShuttingDown
	}
	mb := n.member.Load()
	if mb == nil || mb.raft.State() != raft.Leader {
		return ReadInfo{}, ErrNoLeader
	}
	term, err := n.awaitReady(ctx)
	if err != nil {
		return ReadInfo{}, err
	}
	if mb.hasNonvoters() || n.doubted.Load() == term {
		// Raft counts their answers when it confirms leadership, so the read
		// goes through the log; also after a transfer, see handOverTo.
		if _, err := n.propose(ctx, time.Now(), n.tick()); err != nil {
			if errors.Is(err, ErrOutcomeUnknown) {
				err = errNotProven
			}
			return ReadInfo{}, err
		}
		return n.look(see), nil
	}
	info := n.look(see)
	if err := n.confirms.confirm(ctx, n.closed); err != nil {
		return ReadInfo{}, err
	}
	if !n.pauses.running() {
		// The answers may have been on their way before a pause in which
		// others elected a leader.
		n.dropReady()
		return ReadInfo{}, errNotProven
	}
	if n.ready.term() != term || mb.raft.CurrentTerm() != term || mb.hasNonvoters() || n.doubted.Load() == term {
		return ReadInfo{}, errNotProven
	}
	return info, nil
}

// awaitReady waits until this leader has caught up in its term.
func (n *Node) awaitReady(ctx context.Context) (term uint64, err error) {
	for {
		term, changed := n.ready.get()
		if term != 0 {
			return term, nil
		}
		mb := n.member.Load()
		if mb.raft.State() != raft.Leader {
			return 0, ErrNoLeader
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, errNotProven
		case <-n.closed.Done():
			return 0, ErrShuttingDown
		}
	}
}

// readiness is the term in which this leader's state is known to hold all that
// was committed before; 0: none.
type readiness struct {
	mu      sync.Mutex // guards all
	current uint64
	held    int           // holds: it stays 0
	changed chan struct{} // closed at each change
}

func newReadiness() *readiness { return &readiness{changed: make(chan struct{})} }

func (r *readiness) get() (uint64, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current, r.changed
}

func (r *readiness) term() uint64 {
	t, _ := r.get()
	return t
}

// hold drops readiness and keeps it down until letGo.
func (r *readiness) hold() {
	r.mu.Lock()
	r.held++
	r.mu.Unlock()
	r.set(0)
}

func (r *readiness) letGo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held--
}

// set says whether it could: not while readiness is held down.
func (r *readiness) set(term uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held > 0 && term != 0 {
		return false
	}
	if r.current != term {
		r.current = term
		close(r.changed)
		r.changed = make(chan struct{})
	}
	return true
}

// confirms lets all reads that wait at one moment share one confirmation of
// leadership, which begins after each of them has read.
type confirms struct {
	mu   sync.Mutex // guards next
	next *confirmation
	wake chan struct{} // buffer of one
}

type confirmation struct {
	done chan struct{}
	err  error // set before done is closed
}

func newConfirms() *confirms { return &confirms{wake: make(chan struct{}, 1)} }

func (c *confirms) confirm(ctx, closed context.Context) error {
	c.mu.Lock()
	if c.next == nil {
		c.next = &confirmation{done: make(chan struct{})}
	}
	mine := c.next
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return errNotProven
	case <-closed.Done():
		return ErrShuttingDown
	}
}

func (c *confirms) take() *confirmation {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.next
	c.next = nil
	return next
}

// runConfirms serves confirmations until the node closes.
func (n *Node) runConfirms(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.confirms.wake:
		}
		if c := n.confirms.take(); c != nil {
			c.err = n.verifyLeader(ctx)
			close(c.done)
		}
	}
}

// verifyLeader asks a quorum whether this node leads. Raft may never answer
// while the disk hangs, so the answer is not waited for longer than a read.
func (n *Node) verifyLeader(ctx context.Context) error {
	mb := n.member.Load()
	if mb == nil {
		return ErrNoLeader
	}
	answer := make(chan error, 1)
	go func() { answer <- mb.raft.VerifyLeader().Error() }()
	t := time.NewTimer(readBound)
	defer t.Stop()
	select {
	case err := <-answer:
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoLeader, err)
		}
		return nil
	case <-t.C:
		return errNotProven
	case <-ctx.Done():
		return ErrShuttingDown
	}
}

// tick is an entry that only moves the clock and carries a digest to compare.
func (n *Node) tick() *fsmpb.Command {
	t := &fsmpb.Tick{DigestVersion: fsm.DigestVersion}
	n.machine.view(func(s *fsm.State) {
		if digest, ok := n.machine.digests.last(s.Index()); ok {
			t.Digest, t.DigestIndex = digest, s.Index()
		}
	})
	return &fsmpb.Command{Op: &fsmpb.Command_Tick{Tick: t}}
}
