package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// Known cases of failovers and restarts.

// acknowledged is what clients were told, for a check of what is there later.
type acknowledged struct {
	mu     sync.Mutex        // guards what follows
	held   map[string]uint64 // token by lease
	keys   map[string]uint64 // version by key
	newest uint64            // token
}

func newAcknowledged() *acknowledged {
	return &acknowledged{held: map[string]uint64{}, keys: map[string]uint64{}}
}

func (a *acknowledged) lease(name string, token uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held[name], a.newest = token, max(a.newest, token)
}

func (a *acknowledged) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.held)
}

// check compares with what the leader says, by a linearizable read.
func (a *acknowledged) check(t *testing.T, l *simNode) {
	t.Helper()
	_, err := l.Read(t.Context(), false, func(s *fsm.State) {
		for name, token := range a.held {
			if lease, ok := s.Lease(name); !ok || !lease.Live() || lease.First().Token != token {
				t.Errorf("P9: %s was granted with token %d, there is %+v", name, token, lease)
			}
		}
		for key, version := range a.keys {
			if k, ok := s.Key(key); !ok || k.Version < version {
				t.Errorf("P9: %s had version %d, there is %+v", key, version, k)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// load acquires leases and writes keys through a node until that fails, or ctx
// ends. Its pauses are what makes fake time pass.
func (a *acknowledged) load(ctx context.Context, n *simNode, worker string, wg *sync.WaitGroup) {
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprint(worker, "-", i)
			o, err := n.acquire(name, time.Hour, "")
			if err != nil {
				return
			}
			a.lease(name, o.Token)
			if o, err = n.put(worker, o.Token, name); err != nil {
				return
			}
			a.mu.Lock()
			a.keys[worker] = max(a.keys[worker], o.Version)
			a.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// The leader dies at full rate, and the next is asked from its first answer on
// for what others hold and by tokens that are old: nothing is granted twice, no
// watermark is below an acknowledged one.
func TestP3_P4_P9_B33_ANewLeaderKnowsEverything(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		old := s.leader()
		stale := old.mustAcquire("guarded", time.Hour).Token
		if r, err := old.Release(t.Context(), time.Now(), &fsmpb.Release{Name: "guarded", Token: stale}); err != nil || !r.Outcome.Released {
			t.Fatal(r, err)
		}
		fresh := old.mustAcquire("guarded", time.Hour).Token
		if o, err := old.put("k", fresh, "fresh"); err != nil || o.Code != fsmpb.Code_CODE_OK {
			t.Fatal(o, err)
		}
		told := newAcknowledged()
		var wg sync.WaitGroup
		for i := range 200 {
			told.load(t.Context(), old, fmt.Sprint("w", i), &wg)
		}
		for told.count() < 5000 {
			time.Sleep(time.Millisecond)
		}
		s.cut(old) // dead to the others, at full rate
		cutAt := time.Now()
		answered := 0
		for name := range told.names() {
			for _, n := range s.nodes {
				if n == old {
					continue
				}
				if o, err := n.acquire(name, time.Second, ""); err == nil {
					answered++
					if o.Code != fsmpb.Code_CODE_LEASE_HELD {
						t.Fatalf("%s is held, and was given away %s after the failover: %v", name, time.Since(cutAt), o)
					}
				}
				if o, err := n.put("k", stale, "stale"); err == nil && o.Code != fsmpb.Code_CODE_STALE_TOKEN {
					t.Fatalf("a write with an old token: %v", o)
				}
			}
			if answered == 0 {
				time.Sleep(5 * time.Millisecond)
			}
		}
		if answered < 3000 {
			t.Fatalf("only %d answers from the new leader", answered)
		}
		old.crash()
		wg.Wait()
		told.check(t, s.leader(old))
		old.restart()
		s.sameEverywhere()
	})
}

// names are those of the leases that were granted until now.
func (a *acknowledged) names() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := map[string]bool{}
	for name := range a.held {
		names[name] = true
	}
	return names
}

// Whoever is elected loses the others at once, before it has taken office; and
// leadership moves fifty times in a row. Afterwards somebody leads with all that
// a leader does, and no node was started again.
func TestB34_ALeaderThatCannotTakeOfficeIsNoLeader(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		first := s.leader()
		first.mustAcquire("dead", 5*time.Second)
		for _, n := range s.nodes {
			n.store.each.Store(int64(20 * time.Millisecond)) // so that taking office takes time
		}
		first.crash()
		var won *simNode
		for won == nil {
			for _, n := range s.nodes {
				if n != first && n.member.Load().raft.State() == raft.Leader {
					won = n
				}
			}
			time.Sleep(time.Millisecond)
		}
		s.cut(won)
		if won.ready.term() != 0 {
			t.Fatal("the fault did not land: it had taken office")
		}
		for _, n := range s.nodes {
			n.store.each.Store(0)
		}
		time.Sleep(15 * time.Second)
		if err := won.Ready(); err == nil {
			t.Fatal("it is ready without the others")
		}
		first.restart()
		s.connectAll()
		l := s.ready(longestElection + 5*time.Second)
		began := l.member.Load().raft.CurrentTerm()
		for range 50 {
			if err := l.member.Load().raft.LeadershipTransfer().Error(); err != nil {
				t.Fatal(err)
			}
			l = s.leader(l)
		}
		if terms := l.member.Load().raft.CurrentTerm() - began; terms < 50 {
			t.Fatalf("leadership moved %d times, want 50", terms)
		}
		l = s.ready(longestElection + 5*time.Second)
		l.untilFree("dead", 6*time.Second)
		g := l.mustAcquire("new", time.Second)
		if o, err := l.put("k", g.Token, "v"); err != nil || o.Code != fsmpb.Code_CODE_OK {
			t.Error(o, err)
		}
		l.untilFree("new", 2*time.Second)
		s.sameEverywhere()
	})
}

// ready waits until all nodes say that they are, and returns the leader.
func (s *sim) ready(bound time.Duration) *simNode {
	s.t.Helper()
	var errs error
	for began := time.Now(); time.Since(began) < bound; time.Sleep(5 * time.Millisecond) {
		errs = nil
		for _, n := range s.nodes {
			errs = errors.Join(errs, n.Ready())
		}
		if errs == nil {
			return s.leader()
		}
	}
	s.t.Fatalf("not all are ready after %s: %v", bound, errs)
	return nil
}
