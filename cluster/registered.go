package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// errGone is what a node answers that was removed; the others have a leader.
var errGone = fmt.Errorf("%w: this node was removed from its cluster: wipe its data directory, and it joins again as a new member", ErrNoLeader)

// register sees to it that the others have this node as it is: its addresses, and what
// it understands. While it hears no leader it asks whether it is a member at all. The
// log cannot tell it: what removes it is the last entry that it gets, and it is not
// told that this was committed; or it was away, and gets nothing.
func (n *Node) register(ctx context.Context, mb *member) {
	for {
		pause := tendEvery
		err := n.registerOnce(ctx, mb)
		if errors.Is(err, ErrRemoved) {
			n.leave(mb)
			return
		}
		if err != nil && !n.identity().Member {
			pause = tendEvery / 4 // others wait for it
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

func (n *Node) registerOnce(ctx context.Context, mb *member) error {
	self := n.self()
	right := false
	n.machine.view(func(s *fsm.State) { right = recorded(s, self) })
	server, member := mb.server(self.Id)
	right = right && member && string(server.Address) == self.RaftAddr
	leads := n.Status().IsLeader
	switch {
	case right && n.inTouch(mb):
		n.rememberMember()
		return nil
	case leads:
		err := n.Join(ctx, self)
		if err != nil {
			n.log.Debug("register with myself", "error", err)
		}
		return err
	}
	return n.askToJoin(ctx)
}

// rememberMember notes on disk that the cluster has had this node.
func (n *Node) rememberMember() {
	id := n.identity()
	if id.Member || n.dir == nil {
		return
	}
	id.Member = true
	if err := n.become(id); err != nil {
		n.log.Warn("note that this node is a member", "error", err)
	}
}

// leave ends the part in the cluster of a node that was removed, for good: it keeps
// its data and answers nothing from it, but why. Raft is stopped, so that it stands
// for no election and votes in none.
func (n *Node) leave(mb *member) {
	n.removed.Store(true)
	n.ready.hold()
	if n.dir != nil {
		id := n.identity()
		id.Removed = true
		if err := n.become(id); err != nil {
			n.log.Error("note that this node was removed; it will ask again when it is restarted", "error", err)
		}
	}
	n.sayGone()
	n.machine.feed.End(ErrNoLeader)
	if err := mb.raft.Shutdown().Error(); err != nil {
		n.log.Error("stop raft", "error", err)
	}
}

func (n *Node) sayGone() {
	id := n.identity()
	n.log.Error("this node was removed from its cluster and takes no part in it any more: "+
		"stop it, or wipe its data directory, and it joins again as a new member", "cluster", id.ClusterID, "name", id.Name, "id", id.ID)
}

// Correct is Join for a node that has been a member before. It is not made one again:
// ErrRemoved if it is none any more, which is certain then.
func (n *Node) Correct(ctx context.Context, node *fsmpb.Node) error {
	done, err := n.changingMembers(ctx)
	if err != nil {
		return err
	}
	defer done()
	mb := n.member.Load()
	if mb == nil || !n.Status().IsLeader {
		return ErrNoLeader
	}
	if _, ok := mb.server(node.Id); ok {
		return n.joinNow(ctx, mb, node)
	}
	// An entry that is committed after this look proves that this node led, and that
	// the removal it saw is committed. The second look is for a leader that lost a
	// removal with its leadership and led again.
	if _, err := n.propose(ctx, time.Now(), n.tick()); err != nil {
		return ErrNoLeader // a Tick changes nothing, so this is no lie
	}
	if _, ok := mb.server(node.Id); ok {
		return ErrNoLeader
	}
	return ErrRemoved
}
