package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// Known cases of queues that get stuck, stampede or lose their order.

func (n *simNode) release(name string, token uint64) Reply[*fsmpb.Outcome] {
	n.s.t.Helper()
	r, err := n.Release(n.s.t.Context(), time.Now(), &fsmpb.Release{Name: name, Token: token})
	if err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
		n.s.t.Fatalf("release %s: %v %v", name, r.Outcome, err)
	}
	return r
}

// Twenty waiters give up, in three ways. They leave nothing in the queue, and
// the next who asks has the lease at once.
func TestP12_B49_WaitersThatGaveUpBlockNobody(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		time.Sleep(newLeaderGrace) // which all have at first
		a := l.mustAcquire("db", time.Hour).Token
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				r, err := l.ask(t.Context(), "db", fmt.Sprint("timeout", i), time.Hour, time.Second)
				if err != nil || r.Outcome.Code != fsmpb.Code_CODE_LEASE_HELD {
					t.Errorf("a wait that was over: %v %v, want lease_held", r.Outcome, err)
				}
			})
			l.untilQueued("db", i+1)
		}
		var gone []func()
		for i := range 10 { // five say so, five die
			gone = append(gone, l.leave("db", fmt.Sprint("left", i), time.Hour, time.Minute))
		}
		for i, goAway := range gone {
			goAway()
			if i < 5 {
				c := &fsmpb.Cancel{Name: "db", Request: &fsmpb.Request{Key: fmt.Sprint("left", i), Path: "acquire db"}}
				if r, err := l.Cancel(t.Context(), time.Now(), c); err != nil || !r.Outcome.Cancelled {
					t.Fatal(r, err)
				}
			}
		}
		if n := l.queued("db"); n != 15 {
			t.Fatalf("the fault did not land: %d wait, want the ten and the five dead", n)
		}
		wg.Wait()
		if n := l.queued("db"); n != 5 {
			t.Errorf("%d wait, want the five dead", n)
		}
		time.Sleep(l.cfg.WaiterGrace - 500*time.Millisecond)
		l.release("db", a)
		asked := time.Now()
		r, err := l.ask(t.Context(), "db", "d", time.Hour, time.Minute)
		if took := time.Since(asked); err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK || took > time.Second {
			t.Errorf("d: %v %v after %s", r.Outcome, err, took)
		}
		if n := l.queued("db"); n != 0 {
			t.Errorf("%d wait", n)
		}
	})
}

// The head's client dies about when the lease is released, a hundred times. The
// next is let in by its TTL at the latest, and releases of what has ended already
// are answered as such.
func TestP12_B49_AHeadThatDiesAtItsGrant(t *testing.T) {
	const ttl = 3 * time.Second
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		time.Sleep(newLeaderGrace) // which all have at first
		for _, n := range s.nodes {
			n.store.each.Store(int64(2 * time.Millisecond))
		}
		answered := 0
		for round := range 100 {
			name := fmt.Sprint("db", round)
			a := l.mustAcquire(name, time.Hour).Token
			ctx, die := context.WithCancel(t.Context())
			b, c := make(chan bool, 1), make(chan *fsmpb.Outcome, 1)
			go func() {
				_, err := l.ask(ctx, name, name+"b", ttl, time.Minute)
				b <- err == nil
			}()
			l.untilQueued(name, 1)
			go func() {
				r, err := l.ask(t.Context(), name, name+"c", ttl, time.Minute)
				if err != nil {
					t.Error(err)
				}
				c <- r.Outcome
			}()
			l.untilQueued(name, 2)
			time.AfterFunc(time.Duration(rnd.IntN(20))*time.Millisecond, die)
			time.Sleep(10 * time.Millisecond)
			released := time.Now()
			l.release(name, a)
			if r := l.release(name, a); r.Outcome.Released {
				t.Error("one lease was released twice")
			}
			if <-b {
				answered++
			}
			o := <-c
			if took := time.Since(released); o.GetCode() != fsmpb.Code_CODE_OK || took > ttl+200*time.Millisecond {
				t.Fatalf("seed %d, round %d: %v after %s", seed, round, o, took)
			}
			if round%10 == 0 {
				l.untilFree(name, 2*ttl)
				if r := l.release(name, o.Token); r.Outcome.Released {
					t.Error("a lease that had expired was released")
				}
			}
		}
		if answered == 0 || answered == 100 {
			t.Errorf("the head died after its answer %d times of 100: the faults were not spread", answered)
		}
	})
}

// A release with 500 waiters is one entry, which lets one of them in.
func TestP12_B50_AReleaseWakesOne(t *testing.T) {
	const waiters, releases = 500, 100
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		token := l.mustAcquire("db", time.Hour).Token
		ctx, stop := context.WithCancel(t.Context())
		granted := make(chan uint64, waiters)
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				if r, err := l.ask(ctx, "db", fmt.Sprint("w", i), time.Hour, time.Hour); err == nil {
					granted <- r.Outcome.Token
				}
			})
			l.untilQueued("db", i+1)
		}
		before := l.Status().Index
		for i := range releases {
			r := l.release("db", token)
			if token = <-granted; token != r.Index {
				t.Fatalf("release %d was entry %d, and the next token is %d", i, r.Index, token)
			}
		}
		if entries := l.Status().Index - before; entries > releases+2 { // and a Tick
			t.Errorf("%d releases took %d entries", releases, entries)
		}
		if n := l.queued("db"); n != waiters-releases {
			t.Errorf("%d wait, want %d", n, waiters-releases)
		}
		stop()
		wg.Wait()
	})
}

// The leader dies while 500 wait for 50 leases. All come back at once; that costs
// no further election, and each queue is in its order.
func TestP12_B50_AFailoverWithManyWaiters(t *testing.T) {
	const names, each = 50, 10
	inSim(t, func(t *testing.T, s *sim) {
		old := s.leader()
		var mu sync.Mutex
		order := map[string][]string{}
		var wg sync.WaitGroup
		for i := range names {
			name := fmt.Sprint("l", i)
			old.mustAcquire(name, 20*time.Second)
			for j := range each {
				key := fmt.Sprint(name, "-", j)
				wg.Go(func() {
					o, err := s.insist(t.Context(), name, key, time.Second, time.Hour)
					if err != nil || o.Code != fsmpb.Code_CODE_OK {
						t.Errorf("%s: %v %v", key, o, err)
						return
					}
					mu.Lock()
					order[name] = append(order[name], key)
					mu.Unlock()
					for { // give it to the next
						for _, n := range s.nodes {
							if _, err := n.now.Load().Release(t.Context(), time.Now(), &fsmpb.Release{Name: name, Token: o.Token}); err == nil {
								return
							}
						}
						time.Sleep(20 * time.Millisecond)
					}
				})
				old.untilQueued(name, j+1)
			}
		}
		old.crash()
		next := s.leader(old)
		term := next.ready.term()
		wg.Wait()
		if now := s.leader(old).member.Load().raft.CurrentTerm(); now != term {
			t.Errorf("the election was repeated: term %d, now %d", term, now)
		}
		for name, got := range order {
			if len(got) != each || !slices.IsSorted(got) {
				t.Errorf("%s: %v", name, got)
			}
		}
		grants := 0
		for _, e := range eventsOf(t, next, 1, next.Status().Index) {
			if e.Kind == fsm.EventGranted {
				grants++
			}
		}
		if len(order) != names || grants != names*(each+1) {
			t.Errorf("%d queues, %d grants; want %d and %d", len(order), grants, names, names*(each+1))
		}
	})
}
