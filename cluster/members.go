package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

const (
	// tendEvery is how often the leader looks for members to promote, and a
	// node whether its own record is right.
	tendEvery = time.Second
	// caughtUp is how many entries a new member may lack when it is promoted.
	caughtUp = 100
	// askBound bounds one question to another node's HTTP API.
	askBound = 500 * time.Millisecond
)

// ErrNameInUse says that another member has this name or Raft address and is
// alive.
var ErrNameInUse = errors.New("another member has this name or Raft address")

func (m *member) configuration() raft.Configuration {
	f := m.raft.GetConfiguration() // answered from memory, at once
	if f.Error() != nil {
		return raft.Configuration{}
	}
	return f.Configuration()
}

func (m *member) hasNonvoters() bool {
	for _, s := range m.configuration().Servers {
		if s.Suffrage != raft.Voter {
			return true
		}
	}
	return false
}

func (m *member) votes(id string) bool {
	s, ok := m.server(id)
	return ok && s.Suffrage == raft.Voter
}

func (m *member) server(id string) (raft.Server, bool) {
	for _, s := range m.configuration().Servers {
		if string(s.ID) == id {
			return s, true
		}
	}
	return raft.Server{}, false
}

// self is this node as it wants to be recorded.
func (n *Node) self() *fsmpb.Node {
	id := n.identity()
	return &fsmpb.Node{
		Name: id.Name, Id: id.ID, RaftAddr: n.cfg.advertiseRaft(), HttpAddr: n.cfg.HTTPAddr,
		Voter: true, Version: n.cfg.Version, Understands: fsm.Understands,
	}
}

func recorded(s *fsm.State, want *fsmpb.Node) bool {
	have, ok := s.Node(want.Name)
	return ok && have.Id == want.Id && have.RaftAddr == want.RaftAddr && have.HttpAddr == want.HttpAddr &&
		have.Voter == want.Voter && have.Version == want.Version && have.Understands == want.Understands
}

// Join makes a node a member, or corrects its record. It is called on the
// leader. A node that comes back wiped replaces its former self, which is known
// by its name or its Raft address, but only if that is not alive (ErrNameInUse).
func (n *Node) Join(ctx context.Context, node *fsmpb.Node) error {
	done, err := n.changingMembers(ctx)
	if err != nil {
		return err
	}
	defer done()
	mb := n.member.Load()
	if mb == nil || mb.raft.State() != raft.Leader {
		return ErrNoLeader
	}
	return n.joinNow(ctx, mb, node)
}

func (n *Node) joinNow(ctx context.Context, mb *member, node *fsmpb.Node) error {
	formers := n.formerSelves(mb, node)
	for _, id := range formers {
		// Nobody sends heartbeats to what is not in the configuration any more.
		if _, member := mb.server(id); member && mb.health.healthy(id) {
			return ErrNameInUse
		}
	}
	steps := 0 // that have committed: from the first on, "surely nothing happened" is over (P10)
	err := n.joinSteps(ctx, mb, node, formers, &steps)
	if err != nil && steps > 0 && !errors.Is(err, ErrOutcomeUnknown) {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return err
}

// formerSelves are the ids that this node had before it was wiped.
func (n *Node) formerSelves(mb *member, node *fsmpb.Node) (ids []string) {
	for _, m := range n.machine.members() {
		if m.Name == node.Name && m.Id != node.Id {
			ids = append(ids, m.Id)
		}
	}
	for _, s := range mb.configuration().Servers {
		id := string(s.ID)
		if string(s.Address) == node.RaftAddr && id != node.Id && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (n *Node) joinSteps(ctx context.Context, mb *member, node *fsmpb.Node, formers []string, steps *int) error {
	for _, id := range formers {
		n.log.Info("a member came back wiped: its former identity is removed", "name", node.Name, "former", id, "new", node.Id)
		if err := change(ctx, mb.raft.RemoveServer(raft.ServerID(id), 0, enqueueBound)); err != nil {
			return err
		}
		*steps++
	}
	var commands []*fsmpb.Command
	for _, m := range n.machine.members() {
		if slices.Contains(formers, m.Id) && m.Name != node.Name { // it had another name
			commands = append(commands, &fsmpb.Command{Op: &fsmpb.Command_RemoveNode{RemoveNode: &fsmpb.RemoveNode{Name: m.Name, Id: m.Id}}})
		}
	}
	right := false
	n.machine.view(func(s *fsm.State) { right = recorded(s, node) })
	if !right {
		commands = append(commands, &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{Node: node, ClusterId: n.identity().ClusterID}}})
	}
	for _, c := range commands {
		r, err := n.propose(ctx, time.Now(), c)
		if err != nil {
			return err
		}
		if r.Outcome.Code != fsmpb.Code_CODE_OK {
			return fmt.Errorf("the record of node %q was refused: %s %s", node.Name, r.Outcome.Code, r.Outcome.Field)
		}
		*steps++
	}
	if s, ok := mb.server(node.Id); ok && string(s.Address) == node.RaftAddr {
		if *steps > 0 {
			return nil
		}
		// The change that made it so may be an earlier attempt's, and is committed
		// only if an entry after it is.
		_, err := n.propose(ctx, time.Now(), n.tick())
		return err
	} else if ok && s.Suffrage == raft.Voter {
		return change(ctx, mb.raft.AddVoter(s.ID, raft.ServerAddress(node.RaftAddr), 0, enqueueBound))
	}
	return change(ctx, mb.raft.AddNonvoter(raft.ServerID(node.Id), raft.ServerAddress(node.RaftAddr), 0, enqueueBound))
}

// change waits for a change of the configuration.
func change(ctx context.Context, f raft.IndexFuture) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		if err != nil {
			return proposalError(err)
		}
		return nil
	case <-ctx.Done():
		return ErrOutcomeUnknown
	}
}

// tendMembers finishes promotions and removals, also those that an earlier leader
// began.
func (n *Node) tendMembers(ctx context.Context, mb *member) {
	for sleep(ctx, tendEvery) {
		done, err := n.changingMembers(ctx)
		if err != nil {
			return
		}
		n.finishRemovals(ctx, mb)
		n.promote(ctx, mb)
		done()
	}
}

func (n *Node) promote(ctx context.Context, mb *member) {
	for _, s := range mb.configuration().Servers {
		if s.Suffrage != raft.Nonvoter {
			continue
		}
		var want *fsmpb.Node
		for _, m := range n.machine.members() {
			if m.Id == string(s.ID) {
				want = m
			}
		}
		if want == nil || !want.Voter {
			continue
		}
		f, err := n.ask(ctx, n.cfg.url(want.HttpAddr))
		if err != nil || f.ID != want.Id || f.Removed || f.Index+caughtUp < n.Status().Index {
			continue
		}
		if err := change(ctx, mb.raft.AddVoter(s.ID, s.Address, 0, enqueueBound)); err != nil {
			n.log.Warn("promote a member", "name", want.Name, "error", err)
			continue
		}
		n.log.Info("promoted a member that has caught up", "name", want.Name, "id", want.Id)
	}
}

// Members lists the nodes of the cluster. A leader asks each how far it is.
func (n *Node) Members(ctx context.Context) ([]Member, error) {
	mb := n.member.Load()
	if mb == nil {
		return nil, nil
	}
	status := n.Status()
	nodes := n.machine.members()
	list := make([]Member, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		s, _ := mb.server(node.Id)
		list[i] = Member{
			Name: node.Name, ID: node.Id, RaftAddr: node.RaftAddr, HTTPAddr: node.HttpAddr, Version: node.Version,
			Voter: s.Suffrage == raft.Voter && s.ID != "", Leader: node.Id == status.LeaderID,
		}
		if node.Id == status.ID {
			list[i].Healthy, list[i].AppliedIndex, list[i].LastContact = n.Ready() == nil, status.Index, status.LastContact
			continue
		}
		wg.Go(func() {
			f, err := n.ask(ctx, n.cfg.url(node.HttpAddr))
			if err != nil || f.ID != node.Id || f.Removed {
				var bad *tls.CertificateVerificationError
				list[i].Unfit = errors.As(err, &bad)
				return
			}
			list[i].AppliedIndex, list[i].LastContact = f.Index, time.Duration(f.LastContactMS)*time.Millisecond
			list[i].Unfit = f.Unfit
			list[i].Healthy = s.ID != "" && !f.Unfit && f.LastContactMS <= 3*n.cfg.Heartbeat.Milliseconds()
		})
	}
	wg.Wait()
	return list, nil
}
