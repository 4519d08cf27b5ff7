package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// What a change of members can be refused with. Nothing has changed then. Test with
// errors.Is.
var (
	ErrUnknownMember = errors.New("no member has this name")
	ErrLosesQuorum   = errors.New("the rest could not form a majority of live nodes")
	// ErrRemoved is what a node is told that asks about its membership and has none
	// any more: it must be wiped to join again.
	ErrRemoved = errors.New("this node was removed from the cluster")
	// ErrHandedOver says that the member which is to be removed led, and has handed
	// leadership over: the new leader is to be asked.
	ErrHandedOver = errors.New("leadership was handed over: the new leader can do it")
)

// changingMembers makes one change of the members follow the other on this leader,
// so that what was checked still holds when the change is made. Waiting for it
// changes nothing.
func (n *Node) changingMembers(ctx context.Context) (done func(), err error) {
	select {
	case n.changing <- struct{}{}:
		return func() { <-n.changing }, nil
	case <-ctx.Done():
		return nil, ErrOverloaded
	case <-n.closed.Done():
		return nil, ErrShuttingDown
	}
}

// Remove ends the membership of the node with this name. It is called on the leader;
// without force it is refused if the other voters could not go on without it
// (ErrLosesQuorum). It may be repeated: ErrUnknownMember then means that it is done.
//
// The leader does not remove itself: it hands leadership over and answers
// ErrHandedOver. Raft could commit its own removal and step down, but then nobody
// leads until an election timeout has passed, and the second step below is left to
// whoever wins.
//
// Raft forgets it first, and the state then, so that a removal which broke off in
// between still has the name that it is finished by: by a repetition, or by a leader
// that finds it so (tendMembers).
func (n *Node) Remove(ctx context.Context, name string, force bool) error {
	done, err := n.changingMembers(ctx)
	if err != nil {
		return err
	}
	defer done()
	var node *fsmpb.Node
	if _, err := n.Read(ctx, false, func(s *fsm.State) { node, _ = s.Node(name) }); err != nil {
		return err // a read: nothing has happened
	}
	mb := n.member.Load()
	if node == nil {
		return ErrUnknownMember
	}
	if err := n.mayRemove(ctx, mb, node.Id, force); err != nil {
		return err
	}
	if node.Id == n.identity().ID {
		switch err := n.handOverToAny(ctx, mb); {
		case errors.Is(err, ErrOutcomeUnknown):
			return ErrNoLeader // somebody leads or will, and nobody has been removed
		case err != nil:
			return err
		}
		return ErrHandedOver
	}
	if _, member := mb.server(node.Id); member {
		n.log.Info("removing a member", "name", name, "id", node.Id, "forced", force)
		if err := n.awaitChange(ctx, mb.raft.RemoveServer(raft.ServerID(node.Id), 0, enqueueBound)); err != nil {
			return err
		}
	}
	return n.removeRecord(ctx, node)
}

// removeRecord takes a node that Raft does not have any more out of the state.
func (n *Node) removeRecord(ctx context.Context, node *fsmpb.Node) error {
	c := &fsmpb.Command{Op: &fsmpb.Command_RemoveNode{RemoveNode: &fsmpb.RemoveNode{Name: node.Name, Id: node.Id}}}
	// Refused only if another incarnation has the name by now, so this one is gone.
	if _, err := n.propose(ctx, time.Now(), c); err != nil {
		return fmt.Errorf("%w: raft has removed it, its record is still there: %w", ErrOutcomeUnknown, err)
	}
	return nil
}

// mayRemove says whether the other voters can go on without a node, if it has a vote.
// What commits its removal is already the majority of the rest.
func (n *Node) mayRemove(ctx context.Context, mb *member, id string, force bool) error {
	if s, ok := mb.server(id); !ok || s.Suffrage != raft.Voter {
		return nil
	}
	alive, err := n.aliveVoters(ctx, mb)
	if err != nil {
		return err
	}
	voters, up := 0, 0
	for _, s := range mb.configuration().Servers {
		if s.Suffrage != raft.Voter || string(s.ID) == id {
			continue
		}
		voters++
		if _, ok := alive[string(s.ID)]; ok {
			up++
		}
	}
	switch {
	case voters == 0:
		return fmt.Errorf("%w: it is the last voter", ErrLosesQuorum)
	case up < voters/2+1 && !force:
		return fmt.Errorf("%w: of the %d other voters %d are up", ErrLosesQuorum, voters, up)
	}
	return nil
}

// aliveVoters are the voters that surely work, by id: heartbeats to them do not fail,
// and they say themselves that they hear the leader. The second notices at once what
// takes the first the time-out of a connection: a process that stands still.
func (n *Node) aliveVoters(ctx context.Context, mb *member) (map[string]Member, error) {
	list, err := n.Members(ctx)
	if err != nil {
		return nil, err
	}
	self := n.identity().ID
	alive := make(map[string]Member, len(list))
	for _, m := range list {
		if m.Voter && (m.ID == self || m.Healthy && mb.health.healthy(m.ID)) {
			alive[m.ID] = m
		}
	}
	return alive, nil
}

// finishRemovals takes nodes out of the state that Raft does not have: a removal broke
// off, or a join, and then the node asks again. No change of the members is under
// way, and all earlier ones have been committed, since this leader is ready.
func (n *Node) finishRemovals(ctx context.Context, mb *member) {
	for _, node := range n.machine.members() {
		if _, ok := mb.server(node.Id); ok {
			continue
		}
		if err := n.removeRecord(ctx, node); err != nil {
			n.log.Warn("finish the removal of a member", "name", node.Name, "error", err)
			return
		}
		n.log.Info("finished the removal of a member", "name", node.Name, "id", node.Id)
	}
}
