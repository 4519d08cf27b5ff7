package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// simPeers answers one node what another is, which is all that nodes ask each other in
// these tests, as long as that is there and not cut off.
type simPeers struct{ asks *simNode }

func (p simPeers) RoundTrip(q *http.Request) (*http.Response, error) {
	s := p.asks.s
	for i, n := range s.nodes {
		if s.servers[i].Addr+":80" != q.URL.Host || n.isGone() || q.URL.Path != FormationPath {
			continue
		}
		if s.refuses != nil {
			if err := s.refuses(p.asks, n); err != nil {
				return nil, err
			}
		}
		b, err := json.Marshal(n.now.Load().Formation())
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(b)), Request: q}, err
	}
	return nil, fmt.Errorf("%s does not answer", q.URL.Host)
}

func (n *simNode) isGone() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.down || n.exited != ""
}

// followers are the nodes but the leader.
func (s *sim) followers(l *simNode) (list []*simNode) {
	for _, n := range s.nodes {
		if n != l {
			list = append(list, n)
		}
	}
	return list
}

// Leadership moves in milliseconds, to where it was sent, and what was acknowledged
// before is there at once.
func TestTransferMovesLeadership(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		for i := range 10 {
			l := s.leader()
			g := l.mustAcquire(fmt.Sprint(i), time.Minute)
			to := s.followers(l)[i%2]
			began := time.Now()
			if leader, err := l.Transfer(t.Context(), to.cfg.Name); err != nil || leader != to.cfg.Name {
				t.Fatalf("transfer to %s: %q %v", to.cfg.Name, leader, err)
			}
			now := s.leader(l)
			if took := time.Since(began); now != to || took > 200*time.Millisecond {
				t.Fatalf("%s leads after %s, want %s", now.cfg.Name, took, to.cfg.Name)
			}
			if lease, _, err := now.lease(fmt.Sprint(i)); err != nil || !lease.Live() || lease.LastToken != g.Token {
				t.Fatalf("the lease on the next leader: %+v %v", lease, err)
			}
		}
		l := s.leader()
		if leader, err := l.Transfer(t.Context(), l.cfg.Name); err != nil || leader != l.cfg.Name {
			t.Fatalf("to itself: %q %v", leader, err)
		}
		if _, err := l.Transfer(t.Context(), "n9"); !errors.Is(err, ErrUnknownMember) {
			t.Fatalf("to nobody: %v", err)
		}
		f := s.followers(l)[0]
		if _, err := f.Transfer(t.Context(), f.cfg.Name); !errors.Is(err, ErrNoLeader) {
			t.Fatalf("by a follower: %v", err)
		}
		s.sameEverywhere()
	})
}

// A transfer to a node whose disk hangs comes to nothing, as far as this leader can
// tell. While it is tried no read is answered, and afterwards reads go through the log:
// the message that starts the election may be on its way still.
func TestP10_TransferThatMayStillHappen(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		g := l.mustAcquire("db", time.Minute)
		to := s.followers(l)[0]
		resume := sync.OnceFunc(to.store.stall())
		defer resume()
		if o, err := l.put("k", g.Token, "v"); err != nil || o.Code != fsmpb.Code_CODE_OK {
			t.Fatal(o, err) // which the target lacks
		}
		ended := make(chan error, 1)
		go func() {
			_, err := l.Transfer(t.Context(), to.cfg.Name)
			ended <- err
		}()
		var err error
		time.Sleep(time.Millisecond / 2) // Raft's times are whole ones: this looks beside them
		for wait := true; wait; {
			select {
			case err = <-ended:
				wait = false
			case <-time.After(time.Millisecond):
				if l.doubted.Load() != 0 && l.ready.term() != 0 {
					t.Fatal("ready to answer reads while leadership is being handed over")
				}
			}
		}
		if !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("the transfer ended with %v", err)
		}
		if l.doubted.Load() != l.member.Load().raft.CurrentTerm() {
			t.Fatal("the leader trusts confirmations in this term")
		}
		if s.leader() == l {
			before := l.Status().Index
			if _, _, err := l.lease("db"); err != nil {
				t.Fatalf("a read after the transfer: %v", err)
			}
			if l.Status().Index == before {
				t.Fatal("the read did not go through the log")
			}
		}
		resume()
		s.leader()
		s.sameEverywhere()
	})
}

// What takes office while readiness is held down does not get ready.
func TestReadinessIsHeldDown(t *testing.T) {
	r := newReadiness()
	r.set(3)
	r.hold()
	r.hold()
	if r.set(3) || r.term() != 0 {
		t.Fatal("ready while it is held down twice")
	}
	r.letGo()
	if r.set(3) || r.term() != 0 {
		t.Fatal("ready while it is held down")
	}
	r.letGo()
	if !r.set(4) || r.term() != 4 {
		t.Fatal("not ready though nothing holds it down")
	}
}

// isMember says what the leader knows of a node: in Raft, and in the state.
func (s *sim) isMember(l *simNode, id string) (inRaft, inState bool) {
	_, inRaft = l.member.Load().server(id)
	for _, m := range l.machine.members() {
		inState = inState || m.Id == id
	}
	return inRaft, inState
}

// A leader that is cut off while it removes a member never says that nothing happened
// if it did, nor that it is done if it is not; a repetition at the next leader, or that
// leader by itself, brings it to its end.
func TestP10_RemovalThatIsCutOff(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		seen := map[string]int{}
		for _, n := range s.nodes {
			n.store.each.Store(int64(time.Millisecond)) // so that a removal takes some time
		}
		for round := range 24 {
			l := s.leader()
			victim := s.followers(l)[round%2]
			server := victim.id
			ended := make(chan error, 1)
			go func() { ended <- l.Remove(t.Context(), victim.cfg.Name, true) }()
			for i := 0; i < round && len(ended) == 0; i++ {
				time.Sleep(300 * time.Microsecond)
			}
			s.cut(l)
			err := <-ended
			if round%3 > 0 {
				time.Sleep(time.Second) // the others may elect one of them
			}
			s.connectAll()
			next := s.leader()
			inRaft, inState := s.isMember(next, server)
			switch {
			case err == nil:
				seen["done"]++
				if inRaft || inState {
					t.Fatalf("round %d: done, and still a member: raft %v, state %v", round, inRaft, inState)
				}
			case errors.Is(err, ErrOutcomeUnknown):
				seen["unknown"]++
			case errors.Is(err, ErrNoLeader):
				seen["not"]++
				if !inRaft || !inState {
					t.Fatalf("round %d: surely nothing happened, but raft %v, state %v", round, inRaft, inState)
				}
			default:
				t.Fatalf("round %d: %v", round, err)
			}
			time.Sleep(3 * tendEvery)
			if next = s.leader(); next == victim {
				if _, err := victim.Transfer(t.Context(), ""); err != nil {
					t.Fatal(err)
				}
				next = s.leader(victim)
			}
			if inRaft, inState := s.isMember(next, server); inRaft != inState {
				t.Fatalf("round %d: half a removal: raft %v, state %v", round, inRaft, inState)
			}
			if err := next.Remove(t.Context(), victim.cfg.Name, true); err != nil && !errors.Is(err, ErrUnknownMember) {
				t.Fatalf("round %d: the repetition: %v", round, err)
			}
			node := &fsmpb.Node{Name: victim.cfg.Name, Id: server, RaftAddr: victim.cfg.Name, HttpAddr: victim.cfg.HTTPAddr, Voter: true, Understands: 1}
			if err := next.Join(t.Context(), node); err != nil {
				t.Fatalf("round %d: join again: %v", round, err)
			}
			for i := 0; next.member.Load().hasNonvoters(); i++ {
				if i > 100 {
					t.Fatalf("round %d: not promoted", round)
				}
				time.Sleep(tendEvery / 4)
			}
		}
		t.Logf("%v", seen)
		if seen["done"] == 0 || seen["unknown"] == 0 {
			t.Fatalf("the cuts came at one moment only: %v", seen)
		}
		s.sameEverywhere()
	})
}

// What the rest cannot do without stays, and a node that asks whether it is a member
// is told the truth.
func TestRemovalKeepsAQuorum(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		down, up := s.followers(l)[0], s.followers(l)[1]
		down.crash()
		time.Sleep(time.Second)
		for _, n := range []*simNode{up, l} {
			if err := l.Remove(t.Context(), n.cfg.Name, false); !errors.Is(err, ErrLosesQuorum) {
				t.Fatalf("remove %s: %v", n.cfg.Name, err)
			}
		}
		if err := l.Remove(t.Context(), down.cfg.Name, false); err != nil {
			t.Fatalf("remove what is down: %v", err)
		}
		if err := l.Correct(t.Context(), down.self()); !errors.Is(err, ErrRemoved) {
			t.Fatalf("one that was removed asks: %v", err)
		}
		if err := l.Correct(t.Context(), up.self()); err != nil {
			t.Fatalf("a member asks: %v", err)
		}
		s.cut(l) // it does not know that others may have changed the members
		if err := l.Correct(t.Context(), down.self()); !errors.Is(err, ErrNoLeader) {
			t.Fatalf("a deposed leader is asked: %v", err)
		}
		s.connectAll()
		l = s.leader()
		// The last but one, and then the last.
		other := up
		if l == up {
			other = s.followers(down)[0]
			if other == l {
				other = s.followers(down)[1]
			}
		}
		if err := l.Remove(t.Context(), other.cfg.Name, false); err != nil {
			t.Fatalf("the last but one: %v", err)
		}
		l.mustAcquire("alone", time.Minute)
		if err := l.Remove(t.Context(), l.cfg.Name, true); !errors.Is(err, ErrLosesQuorum) {
			t.Fatalf("the last: %v", err)
		}
	})
}

// A removal that broke off between Raft and the state is finished by the next leader.
func TestRemovalIsFinishedByTheNextLeader(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		victim, next := s.followers(l)[0], s.followers(l)[1]
		if err := l.member.Load().raft.RemoveServer(raft.ServerID(victim.id), 0, time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Transfer(t.Context(), next.cfg.Name); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * tendEvery)
		var names []string
		next.machine.view(func(st *fsm.State) {
			for _, m := range st.Nodes() {
				names = append(names, m.Name)
			}
		})
		if strings.Contains(strings.Join(names, " "), victim.cfg.Name) || len(names) != 2 {
			t.Fatalf("the state has %v", names)
		}
	})
}

// A leader without a majority has a change of the members in its log that is not
// committed, and may never be: the node that asks again is not told that it is done.
func TestP10_AJoinIsAcknowledgedWhenItIsCommitted(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		node := &fsmpb.Node{Name: "n4", Id: "id4", RaftAddr: "n4", HttpAddr: "n4:80", Voter: true, Understands: 1}
		set := &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{Node: node, ClusterId: "c1"}}}
		if _, err := l.propose(t.Context(), time.Now(), set); err != nil {
			t.Fatal(err)
		}
		s.cut(l)
		added := l.member.Load().raft.AddNonvoter("id4", "n4", 0, time.Second)
		for i := 0; ; i++ {
			if _, ok := l.member.Load().server("id4"); ok {
				break
			} else if i > 1000 {
				t.Fatal("the change did not come into the log")
			}
			time.Sleep(10 * time.Microsecond)
		}
		if err := l.Join(t.Context(), node); !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrNoLeader) {
			t.Fatalf("the join was answered %v", err)
		}
		if err := added.Error(); err == nil {
			t.Fatal("it was committed, so nothing was shown")
		}
		s.leader(l)
		s.connectAll()
		s.sameEverywhere()
	})
}

// Whoever replaces one node after the other waits for /readyz, and must not lose the
// quorum by it: a member without a vote is not ready yet.
func TestReadyOnlyWithAVote(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		f := s.nodes[0]
		if f == l {
			f = s.nodes[1]
		}
		id := f.identity().ID
		if err := l.member.Load().raft.DemoteVoter(raft.ServerID(id), 0, time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		for range 1000 { // it learns of that, and is promoted again soon after
			if !f.member.Load().votes(id) {
				break
			}
			time.Sleep(100 * time.Microsecond)
		}
		if err := f.Ready(); err == nil || !strings.Contains(err.Error(), "without a vote") {
			t.Errorf("without a vote: %v", err)
		}
		for range 300 {
			if f.Ready() == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Errorf("30 s later: %v", f.Ready())
	})
}
