package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
)

// Status is what a node knows of itself and the cluster without asking anybody.
type Status struct {
	Name      string
	ID        string // Raft id, made with the data directory
	ClusterID string // "": not a member of a cluster yet
	IsLeader  bool   // by Raft's word on this node; a read is what proves it
	LeaderURL string // http(s)://host:port of the leader; "": unknown
	LeaderID  string
	Term      uint64
	Index     uint64 // public index of the last entry applied here
	// LastContact is how long ago this node heard from the leader; 0 on the leader.
	LastContact time.Duration
	Watchers    int // watches that are open on this node
	// Removed says that the cluster does not have this node any more. It answers
	// nothing from its data, and must be wiped to join again.
	Removed bool
}

// Member is a node of the cluster as the leader sees it.
type Member struct {
	Name, ID, RaftAddr, HTTPAddr, Version string
	Voter, Leader, Healthy                bool
	Unfit                                 bool   // it should not lead, as it says or its certificate shows; not healthy then
	AppliedIndex                          uint64 // public; 0: unknown
	LastContact                           time.Duration
}

// Reply is the outcome of a proposal.
type Reply[T any] struct {
	Outcome T
	// Index is the public index of the entry that this reply rests on.
	Index uint64
	// Waited is how long this node had held the request when it stamped that
	// entry with the cluster clock (P7).
	Waited time.Duration
}

// ReadInfo says what a read saw.
type ReadInfo struct {
	Index uint64        // public index that it reflects
	Lag   time.Duration // of a stale read: time since this node last heard from the leader
}

// Status is what this node knows without asking anybody. It is cheap: every
// request looks at it.
func (n *Node) Status() Status {
	id := n.identity()
	s := Status{Name: id.Name, ID: id.ID, ClusterID: id.ClusterID, Index: n.machine.index.Load(), Watchers: n.machine.feed.Watchers()}
	mb := n.member.Load()
	if s.Removed = n.removed.Load(); s.Removed {
		s.LastContact = time.Since(n.pauses.start)
		return s
	}
	if mb == nil {
		s.LastContact = time.Since(n.pauses.start)
		return s
	}
	s.IsLeader = mb.raft.State() == raft.Leader
	s.Term = mb.raft.CurrentTerm()
	if s.IsLeader {
		s.LeaderID, s.LeaderURL = s.ID, n.cfg.httpURL()
		return s
	}
	_, leader := mb.raft.LeaderWithID()
	s.LeaderID = string(leader)
	for _, m := range n.machine.members() {
		if m.Id == s.LeaderID {
			s.LeaderURL = n.cfg.url(m.HttpAddr)
		}
	}
	last := mb.raft.LastContact()
	if last.IsZero() {
		last = n.pauses.start // not heard of since this node started
	}
	s.LastContact = time.Since(last)
	return s
}

// Ready says why this node does not do its part yet, if so: it has no vote, or is
// not on record with the others, no leader is known, or it is far behind, or the leader has not caught up in its term.
func (n *Node) Ready() error {
	mb := n.member.Load()
	switch s := n.Status(); {
	case n.closing.Load():
		return ErrShuttingDown
	case s.Removed:
		return errGone
	case mb == nil:
		return errors.New("not a member of a cluster yet")
	case !mb.votes(n.identity().ID):
		// Whoever replaces nodes one after another by this must not lose the quorum.
		return errors.New("a member without a vote yet")
	case n.dir != nil && !n.registered(): // else another does it, see OpenOn
		return errors.New("not registered with the others yet")
	case n.disk.isFull() != nil:
		return fmt.Errorf("no room on the disk for the log: %w", n.disk.isFull())
	case n.lapsed() != nil:
		return n.lapsed()
	case s.LeaderURL == "":
		return errors.New("no leader is known")
	case s.IsLeader && n.ready.term() == 0:
		return errors.New("leading, but not caught up yet")
	case s.IsLeader && n.clockStands():
		return errors.New("the cluster clock stands still: nothing commits")
	case !s.IsLeader && s.LastContact > 3*n.cfg.Heartbeat:
		return fmt.Errorf("the leader was last heard of %s ago", s.LastContact.Round(time.Millisecond))
	}
	if behind := mb.raft.CommitIndex() - min(mb.raft.CommitIndex(), mb.raft.AppliedIndex()); behind > 10_000 {
		return fmt.Errorf("%d entries behind", behind)
	}
	return nil
}

// clockStands says that this leader has seen no commit for so long that it
// counts no further, though something has a deadline.
func (n *Node) clockStands() bool {
	r := n.reading.Load()
	needed := false
	n.machine.view(func(s *fsm.State) { needed = s.HasDeadline() })
	return needed && r != nil && r.age() > standstill
}

// Live says why this process should be restarted, if it should.
func (n *Node) Live() error {
	if n.machine.failed.Load() {
		return errors.New("an entry of the log could not be applied")
	}
	if n.removed.Load() {
		return errGone // by somebody: a restart alone changes nothing
	}
	return nil
}
