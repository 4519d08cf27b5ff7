package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// These are cases that other lease services are known to have got wrong, of
// expiry and clocks. Each is named by its number in the collection of them.

// longestElection bounds the time without a leader after a fault.
const longestElection = 3 * time.Second

// renewAnywhere renews at whoever leads, as a client does, until it is answered.
func (s *sim) renewAnywhere(ctx context.Context, name string, token uint64) (*fsmpb.Outcome, error) {
	for {
		for _, n := range s.nodes {
			attempt, cancel := context.WithTimeout(ctx, time.Second)
			r, err := n.now.Load().Renew(attempt, []*fsmpb.Renewal{{Name: name, Token: token}})
			cancel()
			if err == nil {
				return r.Outcome[0], nil
			}
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// seen is what this node's own state says, without asking anybody.
func (n *simNode) seen(name string) (live bool, token uint64, left time.Duration) {
	n.machine.view(func(st *fsm.State) {
		if l, ok := st.Lease(name); ok && l.Live() {
			h := l.First()
			live, token, left = true, h.Token, time.Duration(h.ExpiresInMS(st.ClockMS()))*time.Millisecond
		}
	})
	return live, token, left
}

// untilFree waits until this node has seen the lease end, and says how long that took.
func (n *simNode) untilFree(name string, bound time.Duration) time.Duration {
	n.s.t.Helper()
	began := time.Now()
	for {
		if live, _, left := n.seen(name); !live {
			return time.Since(began)
		} else if time.Since(began) > bound {
			n.s.t.Fatalf("%s is held after %s, with %s left", name, bound, left)
		}
		time.Sleep(time.Millisecond)
	}
}

// A leader that is cut off keeps being asked for renewals. None is answered once
// somebody else could be granted the lease, and what the holder believes by the
// answers that it had is over by then.
func TestP7_P10_B02_ADeposedLeaderAnswersNoRenewals(t *testing.T) {
	const ttl = 3 * time.Second
	inSim(t, func(t *testing.T, s *sim) {
		old := s.leader()
		token := old.mustAcquire("db", ttl).Token
		believes := time.Now().Add(ttl)
		var answered, failed int
		renew := func() {
			sent := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			r, err := old.Renew(ctx, []*fsmpb.Renewal{{Name: "db", Token: token}})
			switch {
			case err != nil:
				failed++
			case r.Outcome[0].Code == fsmpb.Code_CODE_OK:
				answered++
				believes = sent.Add(time.Duration(r.Outcome[0].ExpiresInMs) * time.Millisecond)
			}
		}
		for range 20 {
			renew()
			time.Sleep(50 * time.Millisecond)
		}
		if answered != 20 {
			t.Fatalf("%d renewals of 20 were answered before the cut", answered)
		}
		s.cut(old)
		cutAt := time.Now()
		granted := make(chan time.Time, 1)
		go func() {
			for time.Since(cutAt) < 3*ttl {
				for _, n := range s.nodes {
					if n == old {
						continue
					}
					if o, err := n.acquire("db", ttl, ""); err == nil && o.Code == fsmpb.Code_CODE_OK && o.Token > token {
						granted <- time.Now()
						return
					}
				}
				time.Sleep(5 * time.Millisecond)
			}
		}()
		for time.Since(cutAt) < 3*ttl {
			renew()
			time.Sleep(10 * time.Millisecond)
		}
		select {
		case at := <-granted:
			if believes.After(at) {
				t.Errorf("the holder believed in its lease until %s after the cut; the next was granted it after %s", believes.Sub(cutAt), at.Sub(cutAt))
			}
		default:
			t.Error("the majority granted nobody the lease")
		}
		if failed == 0 || answered != 20 {
			t.Errorf("%d renewals were answered by the leader that was cut off, %d failed", answered-20, failed)
		}
		s.connectAll()
	})
}

// Leaders fall faster than leases end. What a lease has left never jumps up, and
// a dead holder's is free by its TTL plus what the failovers took.
func TestP8_B03_NoFailoverRestartsATTL(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		ttls := map[string]time.Duration{"short": 10 * time.Second, "long": 40 * time.Second}
		left, free := map[string]time.Duration{}, map[string]time.Duration{}
		for name, ttl := range ttls {
			l.mustAcquire(name, ttl)
			left[name] = ttl
		}
		began := time.Now()
		var without time.Duration // a leader
		kills := 0
		for len(free) < len(ttls) && time.Since(began) < 2*time.Minute {
			if kills < 5 && time.Since(began) > time.Duration(kills+1)*6*time.Second {
				kills++
				l.crash()
				killed := time.Now()
				old := l
				l = s.leader(old)
				without += time.Since(killed)
				old.restart()
			}
			for name := range ttls {
				live, _, now := l.seen(name)
				if now > left[name] {
					t.Fatalf("%s after %s: %s left, it had %s", name, time.Since(began), now, left[name])
				}
				left[name] = now
				if _, known := free[name]; !live && !known {
					free[name] = time.Since(began)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if kills != 5 || without == 0 {
			t.Fatalf("%d kills, %s without a leader", kills, without)
		}
		for name, ttl := range ttls {
			// Each failover adds its own length, and what was not stamped before it.
			if bound := ttl + without + time.Duration(kills)*time.Second + 100*time.Millisecond; free[name] < ttl || free[name] > bound {
				t.Errorf("%s was free after %s, want %s to %s", name, free[name], ttl, bound)
			}
			t.Logf("%s of %s was free after %s (%s without a leader)", name, ttl, free[name], without)
		}
	})
}

// A quorum is away for less and for more than the TTL. Whoever keeps trying
// keeps the lease, and a dead holder's is not ended by the time that nobody led.
func TestP7_B05_HoldersOutliveAnOutage(t *testing.T) {
	const ttl, holders = 5 * time.Second, 10
	for _, outage := range []time.Duration{3 * time.Second, 5 * time.Second, 8 * time.Second} {
		for _, leaderToo := range []bool{false, true} {
			inSim(t, func(t *testing.T, s *sim) { holdersOutlive(t, s, ttl, holders, outage, leaderToo) })
		}
	}
}

func holdersOutlive(t *testing.T, s *sim, ttl time.Duration, holders int, outage time.Duration, leaderToo bool) {
	l := s.leader()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var renewed atomic.Int64
	tokens := map[string]uint64{}
	for i := range holders {
		name := fmt.Sprint("h", i)
		token := l.mustAcquire(name, ttl).Token
		tokens[name] = token
		wg.Go(func() {
			for sleep(ctx, ttl/3) {
				o, err := s.renewAnywhere(ctx, name, token)
				if err == nil && o.Code != fsmpb.Code_CODE_OK {
					t.Errorf("outage of %s: the renewal of %s was refused: %v", outage, name, o)
					return
				}
				if err == nil {
					renewed.Add(1)
				}
			}
		})
	}
	time.Sleep(4 * time.Second)
	l.mustAcquire("dead", ttl)
	away := 2
	for _, n := range s.nodes {
		if isLeader := n == l; isLeader == leaderToo && away == 2 || !isLeader && away > 0 {
			s.cut(n)
			away--
		}
	}
	time.Sleep(time.Second) // what was on its way has ended
	before := renewed.Load()
	time.Sleep(outage - time.Second)
	if now := renewed.Load(); now != before || before == 0 {
		t.Fatalf("outage of %s: %d renewals before, %d in it: the fault did not land", outage, before, now-before)
	}
	s.connectAll()
	l = s.leader()
	// The clock counted two seconds past the last commit at the most.
	if took := l.untilFree("dead", 2*ttl); took < ttl-standstill-time.Second || took > ttl+time.Second {
		t.Errorf("outage of %s: the dead holder's lease was free %s after the new leader", outage, took)
	}
	time.Sleep(2 * ttl)
	stop()
	wg.Wait()
	for name, token := range tokens {
		if live, now, _ := l.seen(name); !live || now != token {
			t.Errorf("outage of %s, leader away too %v: %s has token %d, live %v; want %d", outage, leaderToo, name, now, live, token)
		}
	}
	for _, e := range eventsOf(t, l, 1, l.Status().Index) {
		if e.Kind == fsm.EventExpired && e.Name != "dead" {
			t.Errorf("outage of %s: %s expired", outage, e.Name)
		}
	}
}

// The entry that was to end a lease cannot commit, or is lost with its leader.
// It is tried again: the lease ends soon after a quorum is back, its waiter is
// granted it, and what it has left was never below nothing or above its TTL.
func TestB06_AnExpiryThatFailedIsTriedAgain(t *testing.T) {
	const ttl = 3 * time.Second
	for _, cutAfter := range []time.Duration{2500 * time.Millisecond, 2900 * time.Millisecond} {
		inSim(t, func(t *testing.T, s *sim) {
			l := s.leader()
			l.mustAcquire("db", ttl)
			acquired := time.Now()
			granted := make(chan time.Time, 1)
			go func() {
				o, err := s.insist(t.Context(), "db", "w", time.Minute, time.Hour)
				if err != nil || o.Code != fsmpb.Code_CODE_OK {
					t.Errorf("the waiter: %v %v", o, err)
				}
				granted <- time.Now()
			}()
			l.untilQueued("db", 1)
			look := func(until time.Time) {
				for time.Now().Before(until) {
					for _, n := range s.nodes {
						if live, _, left := n.seen("db"); live && (left < 0 || left > ttl) {
							t.Fatalf("%s says that %s are left", n.cfg.Name, left)
						}
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			look(acquired.Add(cutAfter))
			at, _ := l.store.LastIndex()
			for _, n := range s.nodes {
				s.cut(n)
			}
			look(acquired.Add(cutAfter + 10*time.Second))
			if live, _, _ := l.seen("db"); !live {
				t.Fatal("the lease ended without a quorum")
			}
			if lost := l.advanceAfter(at); cutAfter > 2800*time.Millisecond && !lost {
				t.Fatal("the fault did not land: no expiry was lost")
			}
			s.connectAll()
			next := s.leader()
			// What was left at the last stamp, which is a second old at the most.
			if took := next.untilFreeOf("db", 1, 5*time.Second); took > ttl-cutAfter+time.Second+200*time.Millisecond {
				t.Errorf("cut after %s: the lease ended %s after the quorum was back", cutAfter, took)
			}
			<-granted
		})
	}
}

// untilFreeOf waits until nobody waits for the lease: its waiters were let in.
func (n *simNode) untilFreeOf(name string, waiters int, bound time.Duration) time.Duration {
	n.s.t.Helper()
	began := time.Now()
	for n.queued(name) >= waiters {
		if time.Since(began) > bound {
			n.s.t.Fatalf("%d wait for %s after %s", n.queued(name), name, bound)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// advanceAfter says whether this node's own log has an Advance behind an index.
func (n *simNode) advanceAfter(index uint64) bool {
	last, _ := n.store.LastIndex()
	for i := index + 1; i <= last; i++ {
		if c := n.command(i); c.GetAdvance() != nil {
			return true
		}
	}
	return false
}
