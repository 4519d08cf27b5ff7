package cluster

import (
	"context"
	"sync"
	"time"

	"fencepost/fsm/fsmpb"
)

// maxRound bounds how many renewals one entry carries.
const maxRound = 4096

// renewals collects renewals while the entry of the round before is in flight,
// and puts them into the log as one entry: exact, replicated TTLs at a fraction
// of the writes. An idle cluster commits a lone renewal at once.
type renewals struct {
	mu      sync.Mutex // guards waiting
	waiting []*renewCall
	wake    chan struct{} // buffer of one
}

type renewCall struct {
	ctx      context.Context
	renewals []*fsmpb.Renewal
	done     chan renewResult // buffer of one
}

type renewResult struct {
	outcomes []*fsmpb.Outcome
	index    uint64
	err      error
}

func newRenewals() *renewals { return &renewals{wake: make(chan struct{}, 1)} }

// Renew extends leases; each is answered by itself, in the order given.
func (n *Node) Renew(ctx context.Context, rs []*fsmpb.Renewal) (Reply[[]*fsmpb.Outcome], error) {
	var none Reply[[]*fsmpb.Outcome]
	if n.closing.Load() {
		return none, ErrShuttingDown
	}
	if n.reading.Load() == nil {
		return none, ErrNoLeader
	}
	call := &renewCall{ctx: ctx, renewals: rs, done: make(chan renewResult, 1)}
	n.renewals.add(call)
	select {
	case r := <-call.done:
		return Reply[[]*fsmpb.Outcome]{Outcome: r.outcomes, Index: r.index}, r.err
	case <-ctx.Done():
		return none, ErrOutcomeUnknown
	case <-n.closed.Done():
		return none, ErrOutcomeUnknown
	}
}

func (q *renewals) add(c *renewCall) {
	q.mu.Lock()
	q.waiting = append(q.waiting, c)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take removes the calls of the next round.
func (q *renewals) take() []*renewCall {
	q.mu.Lock()
	defer q.mu.Unlock()
	count := 0
	for i, c := range q.waiting {
		if count += len(c.renewals); count > maxRound && i > 0 {
			round := q.waiting[:i:i]
			q.waiting = append([]*renewCall(nil), q.waiting[i:]...)
			return round
		}
	}
	round := q.waiting
	q.waiting = nil
	return round
}

// runRenewals proposes one round after another until the node closes.
func (n *Node) runRenewals(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.renewals.wake:
		}
		for round := n.renewals.take(); len(round) > 0; round = n.renewals.take() {
			n.renewRound(ctx, round)
		}
	}
}

func (n *Node) renewRound(ctx context.Context, round []*renewCall) {
	all := &fsmpb.Renew{}
	calls := round[:0]
	for _, c := range round {
		if c.ctx.Err() == nil { // nobody waits for the others
			calls = append(calls, c)
			all.Renewals = append(all.Renewals, c.renewals...)
		}
	}
	if len(calls) == 0 {
		return
	}
	reply, err := n.propose(ctx, time.Now(), &fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: all}})
	outcomes := reply.Outcome.GetRenewals()
	for _, c := range calls {
		r := renewResult{index: reply.Index, err: err}
		if err == nil {
			r.outcomes, outcomes = outcomes[:len(c.renewals)], outcomes[len(c.renewals):]
		}
		c.done <- r
	}
}
