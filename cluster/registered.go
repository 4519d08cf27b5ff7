package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	pause := tendEvery / 4 // until it is known, others wait for it
	for {
		switch err := n.registerOnce(ctx, mb); {
		case errors.Is(err, ErrRemoved):
			n.leave(mb)
			return
		case err == nil:
			pause = tendEvery
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// registered says that the state has this node as it is.
func (n *Node) registered() (right bool) {
	n.machine.view(func(s *fsm.State) { right = recorded(s, n.self()) })
	return right
}

func (n *Node) registerOnce(ctx context.Context, mb *member) error {
	self := n.self()
	server, member := mb.server(self.Id)
	right := n.registered() && member && string(server.Address) == self.RaftAddr
	leads := n.Status().IsLeader
	switch {
	case right && n.inTouch(mb):
		n.rememberOthers()
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

// rememberOthers notes on disk where the others are.
func (n *Node) rememberOthers() {
	id := n.identity()
	var known []string
	for _, m := range n.machine.members() {
		if m.Id != id.ID {
			known = append(known, n.cfg.url(m.HttpAddr))
		}
	}
	if n.dir == nil || len(known) == 0 || slices.Equal(id.Known, known) {
		return
	}
	id.Known = known
	if err := n.become(id); err != nil {
		n.log.Warn("note where the other members are", "error", err)
	}
}

// wasMember says that the cluster has had this node: entries come from leaders that
// have, and stay. Its configuration does not tell, since the last one that a removed
// node gets is without it.
func (n *Node) wasMember() bool {
	mb := n.member.Load()
	return mb != nil && mb.raft.LastIndex() > 0
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
