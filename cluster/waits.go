package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// newLeaderGrace is how long after its readiness a leader waits for the clients
// of the waiters that it found in the log to come back. They are told of the
// failover by a broken connection, and then have to find the new leader.
const newLeaderGrace = 5 * time.Second

// cancelsAtOnce bounds how many Cancels are under way.
const cancelsAtOnce = 64

// waits are the acquisitions whose clients this leader answers: attached while a
// client waits for the answer, and given up when none has been for the waiter
// grace. It belongs to one term of leadership; the queue itself is replicated,
// and the next leader begins with new ones.
type waits struct {
	mu    sync.Mutex // guards what follows
	of    map[string]*wait
	gone  []departure   // requests that nobody was attached to any more, in order
	spare time.Time     // nothing is given up before this
	ended chan struct{} // closed when the term is over
	wake  chan struct{} // buffer of one: gone is no longer empty
}

// wait is one acquisition, and all the attempts at it that came to this leader.
// The mutex of waits guards it.
type wait struct {
	key      string        // see waitKey
	cancel   *fsmpb.Cancel // of it
	attached int           // attempts that wait here now
	left     bool          // nobody is attached, and it will be given up
	until    time.Time     // then
	decided  *decision     // the latest
	changed  chan struct{} // closed at the next decision
	open     bool          // an attempt left without an answer
	answered bool          // an attempt was answered with a lease: it is never cancelled
	granted  bool          // the lease was granted under these eyes
}

// departure is a request that was left, and when to give it up; it is void if
// somebody came back since.
type departure struct {
	w     *wait
	until time.Time
}

// decision is the outcome of a waiter's request that another entry has made.
type decision struct {
	outcome *fsmpb.Outcome
	index   uint64    // public, of that entry
	stamped time.Time // when the entry was
}

func newWaits() *waits {
	return &waits{of: map[string]*wait{}, ended: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// reset ends the waiting of a term: those attached learn that the outcome is
// unknown here, and repeat their request at the next leader.
func (q *waits) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.ended)
	q.of, q.gone, q.ended = map[string]*wait{}, nil, make(chan struct{})
	q.spare = time.Now().Add(newLeaderGrace)
}

// begin is called when the leader of a new term is ready: the clients of those
// who wait have to find it first.
func (q *waits) begin() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spare = time.Now().Add(newLeaderGrace)
}

// waitKey tells requests apart as the state machine does: by their key, and by
// what they ask for, since the same key with something else is another request,
// and refused.
func waitKey(principal string, r *fsmpb.Request) string {
	return fsm.RequestKey(principal, r) + "\x00" + string(r.Digest)
}

// attach begins an attempt, before its entry is proposed: from then on nobody
// gives the request up.
func (q *waits) attach(c *fsmpb.Acquire) (*wait, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.of[waitKey(c.Principal, c.Request)]
	if w == nil {
		w = q.add(&fsmpb.Cancel{Name: c.Name, Principal: c.Principal, Request: c.Request})
	}
	w.attached++
	w.left = false
	return w, q.ended
}

func (q *waits) add(c *fsmpb.Cancel) *wait {
	w := &wait{key: waitKey(c.Principal, c.Request), cancel: c, changed: make(chan struct{})}
	q.of[w.key] = w
	return w
}

// leaving is how an attempt ended.
type leaving uint8

const (
	refused    leaving = iota // or not accepted: there is nothing to cancel, as far as it knows
	answered                  // with a lease
	unanswered                // its client has gone, or the outcome is not known
)

// detach ends an attempt. If its client has gone without an answer, and no other
// attempt is or soon will be there, what the request has is to be cancelled.
func (q *waits) detach(w *wait, how leaving, grace time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.attached--
	w.open = w.open || how == unanswered
	w.answered = w.answered || how == answered
	switch {
	case w.attached > 0 || q.of[w.key] != w: // others wait, or the term is over
	case w.open && !w.answered:
		q.leave(w, grace)
	default:
		delete(q.of, w.key)
	}
}

// leave starts the grace of a request that nobody is attached to.
func (q *waits) leave(w *wait, grace time.Duration) {
	w.left, w.until = true, time.Now().Add(grace)
	if w.until.Before(q.spare) {
		w.until = q.spare
	}
	q.gone = append(q.gone, departure{w, w.until})
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// note is called in the order of the log: no attempt whose entry comes later has
// been answered yet, and forgotten. A grant that nobody is there to be told of is
// given up after the grace.
func (q *waits) note(decided []fsm.Decision, grace time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range decided {
		if d.Outcome.Code != fsmpb.Code_CODE_OK {
			continue
		}
		c := d.Cancel()
		w := q.of[waitKey(c.Principal, c.Request)]
		if w == nil {
			w = q.add(c)
			q.leave(w, grace)
		}
		w.granted = true
	}
}

// deliver tells the attempts at the requests that an entry has decided. That may
// be later than note, and come out of order.
func (q *waits) deliver(decided []fsm.Decision, index uint64, stamped time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range decided {
		c := d.Cancel()
		w := q.of[waitKey(c.Principal, c.Request)]
		if w == nil {
			continue
		}
		w.decided = &decision{d.Outcome, index, stamped}
		close(w.changed)
		w.changed = make(chan struct{})
	}
}

// after is the decision of an entry after this index, if there is one yet.
func (q *waits) after(w *wait, index uint64) (*decision, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.decided != nil && w.decided.index > index {
		return w.decided, nil
	}
	return nil, w.changed
}

// givenUp takes out of gone those whose time is over, and says in how long there
// may be more.
func (q *waits) givenUp() (up []*wait, next time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.gone) > 0 {
		d := q.gone[0]
		if left := time.Until(d.until); left > 0 {
			return up, left
		}
		q.gone = q.gone[1:]
		if d.w.left && d.w.until.Equal(d.until) {
			d.w.left = false
			up = append(up, d.w)
		}
	}
	return up, newLeaderGrace
}

// adopt gives up a waiter that an earlier leader left, unless a client has come;
// if that one is turned away, then later.
func (q *waits) adopt(c *fsmpb.Acquire) *wait {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.of[waitKey(c.Principal, c.Request)]; w != nil {
		w.open = true
		return nil
	}
	return q.add(&fsmpb.Cancel{Name: c.Name, Principal: c.Principal, Request: c.Request})
}

// mayCancel says whether nobody can have been answered with what the request had
// at this attempt: a place in a queue; or a lease that this leader saw granted to
// a waiter; or one that the request's first attempt got, which came here and
// left. Any other lease may have been answered to an attempt that is forgotten,
// here or at an earlier leader.
func (q *waits) mayCancel(w *wait, attempt uint64, queued bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of[w.key] == w && w.attached == 0 && !w.answered && (queued || w.granted || w.open && attempt == 1)
}

// forget removes a request that has been given up, unless it has come back.
func (q *waits) forget(w *wait) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.attached == 0 && !w.left && q.of[w.key] == w {
		delete(q.of, w.key)
	}
}

// Acquire proposes an acquisition; one that is queued is waited for until it is
// granted, refused or cancelled, or ctx ends. received is when the request came
// in. When ctx ends before the answer, what the request has, a place in the
// queue or a lease, is cancelled after the waiter grace unless it was repeated.
func (n *Node) Acquire(ctx context.Context, received time.Time, c *fsmpb.Acquire) (Reply[*fsmpb.Outcome], error) {
	command := &fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: c}}
	if c.Request == nil {
		return n.mutate(ctx, received, command)
	}
	w, ended := n.waits.attach(c)
	reply, err := n.mutate(ctx, received, command)
	if err == nil && reply.Outcome.Code == fsmpb.Code_CODE_QUEUED {
		reply, err = n.awaitGrant(ctx, ended, w, reply.Index, received)
	}
	how := howLeft(ctx, reply.Outcome, err)
	n.waits.detach(w, how, n.cfg.WaiterGrace)
	if how == unanswered && err == nil {
		// It will be cancelled, so it must not be answered either, should the
		// client still be there to read.
		return Reply[*fsmpb.Outcome]{}, fmt.Errorf("%w: %w", ErrOutcomeUnknown, context.Cause(ctx))
	}
	return reply, err
}

func howLeft(ctx context.Context, o *fsmpb.Outcome, err error) leaving {
	switch {
	case errors.Is(err, ErrOutcomeUnknown):
		return unanswered
	case err != nil || o.Code != fsmpb.Code_CODE_OK:
		return refused
	case ctx.Err() != nil:
		return unanswered
	}
	return answered
}

// awaitGrant waits for the entry that decides a request which the entry at
// queued has put into the queue, or found there. Decisions from before that
// entry are of no account: an answer rests on an entry of this very attempt, or
// a later one, so that no Cancel of an earlier attempt can undo it.
func (n *Node) awaitGrant(ctx context.Context, ended <-chan struct{}, w *wait, queued uint64, received time.Time) (Reply[*fsmpb.Outcome], error) {
	var none Reply[*fsmpb.Outcome]
	for {
		d, changed := n.waits.after(w, queued)
		if d != nil {
			return Reply[*fsmpb.Outcome]{Outcome: d.outcome, Index: d.index, Waited: max(0, d.stamped.Sub(received))}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return none, fmt.Errorf("%w: %w", ErrOutcomeUnknown, context.Cause(ctx))
		case <-ended:
			return none, fmt.Errorf("%w: this node leads no longer; the place in the queue is kept", ErrOutcomeUnknown)
		case <-n.closed.Done():
			return none, fmt.Errorf("%w: the node is going down; the place in the queue is kept", ErrOutcomeUnknown)
		}
	}
}

// Cancel proposes the end of a wait, or of a grant that nobody picked up.
func (n *Node) Cancel(ctx context.Context, received time.Time, c *fsmpb.Cancel) (Reply[*fsmpb.Outcome], error) {
	return n.mutate(ctx, received, &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: c}})
}

// tendWaits gives up, for a term of leadership, what nobody waits for any more.
func (n *Node) tendWaits(ctx context.Context) {
	inherited := time.NewTimer(max(newLeaderGrace, n.cfg.WaiterGrace))
	defer inherited.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.waits.wake:
		case <-timer.C:
		case <-inherited.C:
			n.cancelAll(ctx, n.orphans())
		}
		up, next := n.waits.givenUp()
		n.cancelAll(ctx, up)
		timer.Reset(max(next, time.Millisecond))
	}
}

// orphans are the waiters that no client has come back for.
func (n *Node) orphans() (ws []*wait) {
	n.machine.view(func(s *fsm.State) {
		s.AllWaiters(func(w *fsm.Waiter) bool {
			if w := n.waits.adopt(w.Acquire); w != nil {
				ws = append(ws, w)
			}
			return true
		})
	})
	return ws
}

// cancelAll cancels what was given up, and returns when that is committed or the
// term is over.
func (n *Node) cancelAll(ctx context.Context, up []*wait) {
	room := make(chan struct{}, cancelsAtOnce)
	var wg sync.WaitGroup
	for _, w := range up {
		room <- struct{}{}
		wg.Go(func() {
			n.giveUp(ctx, w)
			<-room
		})
	}
	wg.Wait()
}

// giveUp cancels what a request has as of its latest attempt. The attempt is
// read first and whether somebody is attached then: an attempt that comes after
// that is counted up by its entry, and the Cancel does nothing.
func (n *Node) giveUp(ctx context.Context, w *wait) {
	defer n.waits.forget(w)
	for {
		var attempt uint64
		var queued, ok bool
		n.machine.view(func(s *fsm.State) { attempt, queued, ok = s.Attempt(w.cancel.Principal, w.cancel.Request) })
		if !ok || !n.waits.mayCancel(w, attempt, queued) {
			return
		}
		c := &fsmpb.Cancel{Name: w.cancel.Name, Principal: w.cancel.Principal, Request: w.cancel.Request, Attempt: attempt}
		_, err := n.propose(ctx, time.Now(), &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: c}})
		if err == nil || !sleep(ctx, leaderRetry) {
			return
		}
	}
}
