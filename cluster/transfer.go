package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
)

// ErrNotEligible says that leadership cannot be handed to a node now: it has no vote,
// or does not work. Nothing has changed.
var ErrNotEligible = errors.New("the node cannot lead now")

// Transfer hands leadership to the member with this name; "": to the healthy voter
// that is furthest. It is called on the leader, and returns the name of the node that
// leads then. If it is this one already, nothing is done. ErrOutcomeUnknown: it may
// have been handed over, or may be yet; ErrUnknownMember, ErrNotEligible, and all that
// a read fails with: nothing was done.
func (n *Node) Transfer(ctx context.Context, to string) (leader string, err error) {
	done, err := n.changingMembers(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	id := ""
	if _, err := n.Read(ctx, false, func(s *fsm.State) {
		id = ""
		if node, ok := s.Node(to); ok {
			id = node.Id
		}
	}); err != nil {
		return "", err
	}
	mb := n.member.Load()
	self := n.identity()
	switch {
	case to == "":
		if err := n.handOverToAny(ctx, mb); err != nil {
			return "", err
		}
		return n.leaderName(), nil
	case id == "":
		return "", ErrUnknownMember
	case id == self.ID:
		return self.Name, nil
	}
	alive, err := n.aliveVoters(ctx, mb)
	if err != nil {
		return "", err
	}
	target, ok := alive[id]
	if !ok {
		return "", fmt.Errorf("%w: %s has no vote, does not answer, or should not lead now", ErrNotEligible, to)
	}
	if err := n.handOverTo(ctx, mb, target); err != nil {
		return "", err
	}
	if now := n.leaderName(); now != to {
		return "", fmt.Errorf("%w: %q leads instead of %q", ErrOutcomeUnknown, now, to)
	}
	return to, nil
}

// handOverToAny makes the healthy voter that is furthest the leader.
func (n *Node) handOverToAny(ctx context.Context, mb *member) error {
	to, ok := n.successor(ctx, mb, nil)
	if !ok || !to.Healthy {
		return fmt.Errorf("%w: no other voter is up and fit to lead", ErrNotEligible)
	}
	return n.handOverTo(ctx, mb, to)
}

// successor is the voter that leadership is best given to: one that says it is healthy,
// of these one that was tried less often, and the furthest of these. Never one that should
// not lead, or would only give it back.
//
// If none is healthy it is one that does not answer, but takes heartbeats: where clients
// show certificates, a leader whose own is over can ask nobody. It is the next in the order
// of the configuration then, so that nodes which know nothing of each other pass
// leadership round until it comes to one that is fit.
func (n *Node) successor(ctx context.Context, mb *member, tried map[string]int) (to Member, ok bool) {
	list, err := n.Members(ctx)
	if err != nil {
		return Member{}, false
	}
	servers, self := mb.configuration().Servers, n.identity().ID
	at := func(id string) int {
		return slices.IndexFunc(servers, func(s raft.Server) bool { return string(s.ID) == id })
	}
	next := func(m Member) int { return (at(m.ID) - at(self) + len(servers)) % len(servers) }
	list = slices.DeleteFunc(list, func(m Member) bool {
		return !m.Voter || m.Unfit || m.ID == self || at(m.ID) < 0 || !mb.health.healthy(m.ID)
	})
	if len(list) == 0 {
		return Member{}, false
	}
	silent := func(m Member) int {
		if m.Healthy {
			return 0
		}
		return 1
	}
	return slices.MinFunc(list, func(a, b Member) int {
		return cmp.Or(cmp.Compare(silent(a), silent(b)), cmp.Compare(tried[a.ID], tried[b.ID]), cmp.Compare(b.AppliedIndex, a.AppliedIndex), cmp.Compare(next(a), next(b)))
	}), true
}

// handOverTo makes another voter the leader, and returns when this node knows whom it
// has now.
//
// A transfer makes the followers vote although they hear a leader, and the message
// that starts it can arrive late, after Raft has given up waiting for it. Until then
// a confirmation of leadership may rest on answers that were given before such a vote.
// So readiness is dropped before the transfer starts and held down until it is over;
// and if this node still leads then, its reads go through the log for the rest of
// its term.
func (n *Node) handOverTo(ctx context.Context, mb *member, to Member) error {
	n.doubted.Store(mb.raft.CurrentTerm())
	n.ready.hold()
	defer func() {
		n.ready.letGo()
		n.dropReady() // a leader that still is one proves itself anew
	}()
	n.log.Info("handing leadership over", "to", to.Name)
	err := n.awaitChange(ctx, mb.raft.LeadershipTransferToServer(raft.ServerID(to.ID), raft.ServerAddress(to.RaftAddr)))
	if err != nil {
		return err
	}
	known, cancel := context.WithTimeout(ctx, 4*n.cfg.Election)
	defer cancel()
	for {
		if _, id := mb.raft.LeaderWithID(); id != "" && string(id) != n.identity().ID {
			return nil
		}
		if !sleep(known, handOverLook) {
			return fmt.Errorf("%w: leadership was given up, and nobody is known to have it", ErrOutcomeUnknown)
		}
	}
}

// awaitChange waits for something that Raft was asked to do, but for a shutdown as
// well, which leaves some questions unanswered.
func (n *Node) awaitChange(ctx context.Context, f raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- f.Error() }()
	select {
	case err := <-answer:
		if err != nil {
			return proposalError(err)
		}
		return nil
	case <-ctx.Done():
		return ErrOutcomeUnknown
	case <-n.closed.Done():
		return fmt.Errorf("%w: the node is going down", ErrOutcomeUnknown)
	}
}

// leaderName is the name of the node that leads, as far as this one knows.
func (n *Node) leaderName() string {
	id := n.Status().LeaderID
	for _, m := range n.machine.members() {
		if m.Id == id {
			return m.Name
		}
	}
	return ""
}

// inTouch says that this node leads or has heard from the leader just now.
func (n *Node) inTouch(mb *member) bool {
	return mb.raft.State() == raft.Leader || time.Since(mb.raft.LastContact()) < tendEvery
}
