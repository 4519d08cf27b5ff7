package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// enqueueBound is how long a proposal waits for its turn at the gate, and then
// for Raft to take it. One that was not taken is surely not applied.
const enqueueBound = 2 * time.Second

// Release proposes a release. received is when the request came in.
func (n *Node) Release(ctx context.Context, received time.Time, c *fsmpb.Release) (Reply[*fsmpb.Outcome], error) {
	return n.mutate(ctx, received, &fsmpb.Command{Op: &fsmpb.Command_Release{Release: c}})
}

// Write proposes a guarded write.
func (n *Node) Write(ctx context.Context, received time.Time, c *fsmpb.Write) (Reply[*fsmpb.Outcome], error) {
	return n.mutate(ctx, received, &fsmpb.Command{Op: &fsmpb.Command_Write{Write: c}})
}

func (n *Node) mutate(ctx context.Context, received time.Time, c *fsmpb.Command) (Reply[*fsmpb.Outcome], error) {
	if err := n.checkQuota(c); err != nil {
		return Reply[*fsmpb.Outcome]{}, err
	}
	return n.propose(ctx, received, c)
}

// stampBytes is how much the stamp can add to a command: two tags and two
// numbers.
const stampBytes = 2 * (1 + 10)

// propose waits for the command's turn (see gate), stamps it with the cluster
// clock, hands it to Raft and waits for the outcome. The command must not be
// used again.
func (n *Node) propose(ctx context.Context, received time.Time, c *fsmpb.Command) (Reply[*fsmpb.Outcome], error) {
	var none Reply[*fsmpb.Outcome]
	if n.closing.Load() {
		return none, ErrShuttingDown
	}
	mb := n.member.Load()
	if mb == nil || n.reading.Load() == nil {
		return none, ErrNoLeader
	}
	if err := n.understoodByAll(mb, c); err != nil {
		return none, err
	}
	// What waits at the gate counts as well, or it would grow without a limit.
	size := int64(proto.Size(c)) + stampBytes
	// Renewals, Advances and Ticks are few in flight, and writes must not crowd
	// them out.
	if n.inFlight.Add(size) > n.cfg.MaxInFlightBytes && c.GetRenew() == nil && c.GetAdvance() == nil && c.GetTick() == nil {
		n.inFlight.Add(-size)
		return none, ErrOverloaded
	}
	if err := n.gate.enter(ctx, classOf(c), enqueueBound); err != nil {
		n.inFlight.Add(-size)
		return none, err
	}
	ended := func() {
		n.inFlight.Add(-size)
		n.gate.leave()
	}
	r := n.reading.Load() // only now: the wait may have been long
	if r == nil {
		ended()
		return none, ErrNoLeader
	}
	stamped := time.Now() // first: what was waited must not count time after the stamp
	c.NowMs, c.Term = r.nowMS(), r.term
	data, err := fsm.Encode(c)
	if err != nil {
		ended()
		return none, err
	}
	f := mb.raft.Apply(data, enqueueBound)
	// The future is waited for in a goroutine of its own, because nothing
	// bounds it: a hung disk may keep it for as long as it hangs.
	done := make(chan error, 1)
	go func() {
		err := f.Error()
		ended() // not when the caller gives up: Raft still has it
		if a, ok := f.Response().(applied); err == nil && ok && len(a.decided) > 0 {
			n.waits.deliver(a.decided, a.index, stamped)
		}
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		return none, fmt.Errorf("%w: %w", ErrOutcomeUnknown, context.Cause(ctx))
	case <-n.closed.Done():
		return none, fmt.Errorf("%w: the node is going down", ErrOutcomeUnknown)
	}
	if err != nil {
		return none, proposalError(err)
	}
	a, ok := f.Response().(applied)
	if !ok {
		return none, fmt.Errorf("%w: the entry is committed, but this node could not apply it", ErrOutcomeUnknown)
	}
	n.metrics.commit.Observe(time.Since(stamped).Seconds())
	return Reply[*fsmpb.Outcome]{Outcome: a.outcome, Index: a.index, Waited: max(0, stamped.Sub(received))}, nil
}

// proposalError sorts Raft's verdicts. The first three come before the entry is
// in any log; everything else, shutdown and storage errors too, may have left
// it in one (P10).
func proposalError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return ErrNoLeader
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return ErrOverloaded
	}
	return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
}
