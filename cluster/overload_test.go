package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// slowDown makes each write to any log take so long.
func (s *sim) slowDown(each time.Duration) {
	for _, n := range s.nodes {
		n.store.each.Store(int64(each))
	}
}

// crowd has so many clients call work again and again, until stop is called.
func crowd(clients int, work func(client, round int)) (stop func()) {
	var wg sync.WaitGroup
	var over atomic.Bool
	for c := range clients {
		wg.Go(func() {
			for round := 0; !over.Load(); round++ {
				work(c, round)
			}
		})
	}
	return func() { over.Store(true); wg.Wait() }
}

// count is how many stand at the gate.
func (g *gate) count() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.waiting {
		n += g.waiting[c].Len()
	}
	return n
}

// keep renews a lease until stop is closed, a third of its time after each
// answer; an attempt that ends without one is repeated. It reports a refusal.
func (n *simNode) keep(name string, token uint64, ttl time.Duration, stop <-chan struct{}) error {
	for wait := ttl / 3; ; {
		select {
		case <-stop:
			return nil
		case <-time.After(wait):
		}
		wait = ttl / 3
		o, err := n.renew(name, token)
		if err != nil {
			wait = ttl / 30
		} else if o.Code != fsmpb.Code_CODE_OK {
			return fmt.Errorf("a renewal of %s was refused: %v %v", name, o.Code, o.Reason)
		}
	}
}

// A disk that carries a fifth of what is asked of it costs nobody a lease: the
// renewals go ahead.
func TestP7_OverloadCostsNoLiveHolderItsLease(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		const ttl = 3 * time.Second
		stop, kept := make(chan struct{}), make(chan error, 20)
		guard := l.mustAcquire("guard", time.Hour)
		for i := range cap(kept) {
			name := fmt.Sprintf("holder%d", i)
			g := l.mustAcquire(name, ttl)
			go func() { kept <- l.keep(name, g.Token, ttl, stop) }()
		}
		s.slowDown(50 * time.Millisecond)
		var turnedAway atomic.Int64
		end := crowd(4000, func(client, round int) {
			var err error
			if client%2 == 0 {
				_, err = l.put(fmt.Sprintf("k%d", client), guard.Token, "v")
			} else {
				_, err = l.acquire(fmt.Sprintf("n%d", client), time.Second, "")
			}
			switch {
			case errors.Is(err, ErrOverloaded):
				turnedAway.Add(1)
			case err != nil:
				t.Errorf("client %d: %v", client, err)
			}
		})
		time.Sleep(4 * ttl)
		if l.gate.count() == 0 || turnedAway.Load() == 0 {
			t.Errorf("%d wait, %d were turned away: this was no overload", l.gate.count(), turnedAway.Load())
		}
		close(stop)
		for range cap(kept) {
			if err := <-kept; err != nil {
				t.Error(err)
			}
		}
		s.slowDown(0)
		end()
	})
}

// Ten thousand leases are due in one instant, while others stand in line for
// them. The 200 holders that are alive lose nothing, and everything else is
// there to be had within seconds.
func TestP7_TenThousandDueInOneInstant(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		const leases, living, ttl = 10_000, 200, 10 * time.Second
		tokens := make([]uint64, leases)
		acquireAll(t, l, tokens, ttl)
		began := time.Now()
		s.slowDown(4 * time.Millisecond)
		stop, kept := make(chan struct{}), make(chan error, living)
		for i := range living {
			go func() { kept <- l.keep(fmt.Sprint(i), tokens[i], ttl, stop) }()
		}
		time.Sleep(ttl - 200*time.Millisecond)
		var next, early atomic.Int64
		next.Store(living)
		var wg sync.WaitGroup
		for range 500 {
			wg.Go(func() {
				for {
					i := next.Add(1) - 1
					if i >= leases {
						return
					}
					for {
						o, err := l.acquire(fmt.Sprint(i), time.Minute, "")
						if err == nil && o.Code == fsmpb.Code_CODE_OK {
							break
						}
						early.Add(1)
						time.Sleep(20 * time.Millisecond)
					}
					if time.Since(began) < ttl {
						t.Errorf("lease %d was granted again after %s", i, time.Since(began))
					}
				}
			})
		}
		wg.Wait()
		if late := time.Since(began) - ttl; late > 5*time.Second || early.Load() == 0 {
			t.Errorf("the last of them was to be had %s after its time, and %d attempts came early", late, early.Load())
		} else {
			t.Logf("all had again %s after their time", late)
		}
		time.Sleep(time.Until(began.Add(2 * ttl)))
		close(stop)
		for range living {
			if err := <-kept; err != nil {
				t.Error(err)
			}
		}
		l.machine.view(func(st *fsm.State) {
			for i := range living {
				if lease, ok := st.Lease(fmt.Sprint(i)); !ok || !lease.Live() || lease.LastToken != tokens[i] {
					t.Errorf("living holder %d has lost its lease: %+v", i, lease)
				}
			}
		})
		s.slowDown(0)
	})
}

// acquireAll acquires the leases 0, 1, … at one instant of fake time.
func acquireAll(t *testing.T, l *simNode, tokens []uint64, ttl time.Duration) {
	t.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	for client := range 500 {
		wg.Go(func() {
			for i := client; i < len(tokens); i += 500 {
				o, err := l.acquire(fmt.Sprint(i), ttl, "")
				if err != nil || o.Code != fsmpb.Code_CODE_OK {
					t.Errorf("acquire %d: %v %v", i, o, err)
					return
				}
				tokens[i] = o.Token
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 100*time.Millisecond || t.Failed() {
		t.Fatalf("acquiring all took %s: they are not due together", took)
	}
}

// crowded takes all slots of the gate, with one acquisition that waits outside;
// its error comes through the channel.
func crowded(ctx context.Context, s *sim, l *simNode) (empty func(), outside <-chan error) {
	s.t.Helper()
	for range maxProposals {
		if err := l.gate.enter(ctx, classLeader, time.Second); err != nil {
			s.t.Fatal(err)
		}
	}
	got := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, time.Now(), &fsmpb.Acquire{Name: "outside", Holder: "h", TtlMs: 60_000})
		got <- err
	}()
	synctest.Wait()
	if l.gate.count() != 1 {
		s.t.Fatalf("%d wait at the gate, want the acquisition", l.gate.count())
	}
	return func() {
		for range maxProposals {
			l.gate.leave()
		}
	}, got
}

// P10: what ends at the gate was not handed over, is answered so, and indeed
// does not happen later.
func TestP10_WhatEndsAtTheGateNeverHappens(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(cancel func(), l *simNode)
		want error
	}{
		{"the caller leaves", func(cancel func(), _ *simNode) { cancel() }, ErrOverloaded},
		{"too long", func(func(), *simNode) { time.Sleep(enqueueBound) }, ErrOverloaded},
		{"the node stops", func(_ func(), l *simNode) { l.stop() }, ErrShuttingDown},
		{"it no longer leads", func(_ func(), l *simNode) { l.s.cut(l) }, ErrNoLeader},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inSim(t, func(t *testing.T, s *sim) {
				l := s.leader()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				empty, outside := crowded(ctx, s, l)
				tt.end(cancel, l)
				if err := <-outside; !errors.Is(err, tt.want) || errors.Is(err, ErrOutcomeUnknown) {
					t.Fatalf("got %v, want %v", err, tt.want)
				}
				empty()
				time.Sleep(time.Second)
				s.connectAll()
				if lease, _, err := s.leader().lease("outside"); err != nil || lease != nil {
					t.Fatalf("it happened all the same: %+v %v", lease, err)
				}
				synctest.Wait()
				l.gate.mu.Lock()
				defer l.gate.mu.Unlock()
				if l.gate.free != maxProposals {
					t.Fatalf("%d of %d slots are free", l.gate.free, maxProposals)
				}
			})
		})
	}
}
