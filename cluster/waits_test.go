package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// ask is one attempt at an acquisition that may wait.
func (n *simNode) ask(ctx context.Context, name, key string, ttl, wait time.Duration) (Reply[*fsmpb.Outcome], error) {
	return n.now.Load().Acquire(ctx, time.Now(), &fsmpb.Acquire{
		Name: name, Holder: key, TtlMs: uint64(ttl.Milliseconds()), WaitMs: uint64(wait.Milliseconds()),
		Request: &fsmpb.Request{Key: key, Path: "acquire " + name, Digest: []byte(name)},
	})
}

// insist repeats an acquisition under its key, at whoever leads, until it is
// decided: what a client does.
func (s *sim) insist(ctx context.Context, name, key string, ttl, wait time.Duration) (*fsmpb.Outcome, error) {
	for {
		for _, n := range s.nodes {
			r, err := n.ask(ctx, name, key, ttl, wait)
			if err == nil {
				return r.Outcome, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (n *simNode) queued(name string) (length int) {
	n.machine.view(func(s *fsm.State) { length = s.QueueLength(name) })
	return length
}

// untilQueued waits until so many wait for the lease.
func (n *simNode) untilQueued(name string, length int) {
	n.s.t.Helper()
	for range 10_000 {
		if n.queued(name) == length {
			return
		}
		time.Sleep(time.Millisecond)
	}
	n.s.t.Fatalf("%d wait for %s, want %d", n.queued(name), name, length)
}

// leave starts an acquisition that waits, and returns what makes its client go
// away; the attempt has ended then.
func (n *simNode) leave(name, key string, ttl, wait time.Duration) (goAway func()) {
	ctx, cancel := context.WithCancel(n.s.t.Context())
	done := make(chan struct{})
	before := n.queued(name)
	go func() {
		defer close(done)
		if _, err := n.ask(ctx, name, key, ttl, wait); !errors.Is(err, ErrOutcomeUnknown) {
			n.s.t.Errorf("%s: got %v, want an unknown outcome", key, err)
		}
	}()
	n.untilQueued(name, before+1)
	return func() { cancel(); <-done }
}

// P12: waiters are granted in ticket order, each once, whoever leads meanwhile.
func TestP12_WaitersOverFailovers(t *testing.T) {
	const waiters, failovers = 200, 20
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		holder := l.mustAcquire("db", time.Hour).Token
		type grant struct {
			i     int
			token uint64
		}
		var mu sync.Mutex
		var grants []grant
		granted := make(chan grant, waiters)
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				o, err := s.insist(t.Context(), "db", fmt.Sprintf("w%d", i), time.Hour, 2*time.Hour)
				if err != nil || o.Code != fsmpb.Code_CODE_OK {
					t.Errorf("waiter %d: %v %v", i, o, err)
					return
				}
				mu.Lock()
				grants = append(grants, grant{i, o.Token})
				mu.Unlock()
				granted <- grant{i, o.Token}
			})
			l.untilQueued("db", i+1)
		}
		for done := range waiters {
			if done%(waiters/failovers) == 0 {
				l.crash()
				old := l
				l = s.leader(old)
				old.restart()
			}
			for { // as a client, over whatever happens
				r, err := l.Release(t.Context(), time.Now(), &fsmpb.Release{Name: "db", Token: holder})
				if err == nil && r.Outcome.Code == fsmpb.Code_CODE_OK {
					break
				}
				l = s.leader()
			}
			select {
			case g := <-granted:
				holder = g.token
			case <-time.After(time.Minute):
				t.Fatalf("nobody was granted the lease after release %d, %d wait", done, l.queued("db"))
			}
		}
		wg.Wait()
		if !slices.IsSortedFunc(grants, func(a, b grant) int { return a.i - b.i }) || !slices.IsSortedFunc(grants, func(a, b grant) int { return int(a.token) - int(b.token) }) {
			t.Errorf("out of order: %v", grants)
		}
		if len(grants) != waiters {
			t.Errorf("%d grants, want %d", len(grants), waiters)
		}
		s.sameEverywhere()
	})
}

func TestAWaiterWhoseClientIsGoneIsCancelled(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		time.Sleep(newLeaderGrace) // which all have at first
		l.mustAcquire("db", time.Hour)
		goAway := l.leave("db", "w", time.Minute, time.Hour)
		goAway()
		time.Sleep(l.cfg.WaiterGrace - 100*time.Millisecond)
		if l.queued("db") != 1 {
			t.Fatal("it was given up before its grace was over")
		}
		// It comes back, and stands where it stood.
		var ticket uint64
		l.machine.view(func(st *fsm.State) { ticket = st.Waiters("db", 1)[0].Ticket })
		ctx, cancel := context.WithCancel(t.Context())
		back := make(chan struct{})
		go func() { _, _ = l.ask(ctx, "db", "w", time.Minute, time.Hour); close(back) }()
		time.Sleep(10 * l.cfg.WaiterGrace)
		l.machine.view(func(st *fsm.State) {
			if ws := st.Waiters("db", 2); len(ws) != 1 || ws[0].Ticket != ticket {
				t.Fatalf("got %v, want the one with ticket %d", ws, ticket)
			}
		})
		cancel()
		<-back
		time.Sleep(l.cfg.WaiterGrace + 100*time.Millisecond)
		if l.queued("db") != 0 {
			t.Fatal("it waits for nobody")
		}
		if r, err := l.ask(t.Context(), "db", "w", time.Minute, time.Hour); err != nil || r.Outcome.Code != fsmpb.Code_CODE_CANCELLED {
			t.Fatalf("the key's outcome: %v %v, want cancelled", r.Outcome, err)
		}
	})
}

// A grant that nobody is there for costs the queue the grace, not the TTL; and a
// client that comes back within the grace has it.
func TestAGrantThatNobodyPickedUp(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		time.Sleep(newLeaderGrace) // which all have at first
		token := l.mustAcquire("db", time.Hour).Token
		goAway := l.leave("db", "dead", time.Hour, time.Hour)
		next := make(chan *fsmpb.Outcome, 1)
		go func() {
			r, err := l.ask(t.Context(), "db", "next", time.Hour, time.Hour)
			if err != nil {
				t.Error(err)
			}
			next <- r.Outcome
		}()
		l.untilQueued("db", 2)
		goAway()
		if _, err := l.Release(t.Context(), time.Now(), &fsmpb.Release{Name: "db", Token: token}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		o := <-next
		if took := time.Since(began); o.Code != fsmpb.Code_CODE_OK || took > l.cfg.WaiterGrace+time.Second {
			t.Fatalf("got %v after %s", o, took)
		}

		goAway = l.leave("db", "late", time.Hour, time.Hour)
		goAway()
		if _, err := l.Release(t.Context(), time.Now(), &fsmpb.Release{Name: "db", Token: o.Token}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(l.cfg.WaiterGrace / 2)
		r, err := l.ask(t.Context(), "db", "late", time.Hour, time.Hour)
		if err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK || r.Waited != 0 {
			t.Fatalf("got %v %v", r, err)
		}
		time.Sleep(10 * l.cfg.WaiterGrace)
		if lease, left, err := l.lease("db"); err != nil || lease.First() == nil || lease.First().Token != r.Outcome.Token || left == 0 {
			t.Fatalf("P7: the lease that was picked up has gone: %+v %v", lease, err)
		}
	})
}

// An acquisition that was committed after its client had gone is undone too.
func TestAGrantToAClientThatLeftBeforeTheAnswer(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		time.Sleep(newLeaderGrace) // which all have at first
		resume := l.store.stall()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := l.ask(ctx, "db", "k", time.Hour, 0); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("got %v", err)
		}
		resume()
		time.Sleep(time.Second)
		if lease, _, err := l.lease("db"); err != nil || lease == nil || !lease.Live() {
			t.Fatalf("the fault did not land: %+v %v", lease, err)
		}
		time.Sleep(l.cfg.WaiterGrace)
		if lease, _, err := l.lease("db"); err != nil || lease.Live() {
			t.Fatalf("nobody has it, and it is held: %+v %v", lease, err)
		}
	})
}

// P7: a lease that one attempt was answered with is not taken away because
// another attempt of the same request broke off, be it before or after.
func TestP7_AnAnsweredGrantIsNotCancelled(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		token := l.mustAcquire("db", time.Hour).Token
		goAway := l.leave("db", "k", time.Hour, time.Hour)
		answer := make(chan *fsmpb.Outcome, 1)
		go func() {
			r, err := l.ask(t.Context(), "db", "k", time.Hour, time.Hour)
			if err != nil {
				t.Error(err)
			}
			answer <- r.Outcome
		}()
		time.Sleep(100 * time.Millisecond)
		goAway()
		if _, err := l.Release(t.Context(), time.Now(), &fsmpb.Release{Name: "db", Token: token}); err != nil {
			t.Fatal(err)
		}
		o := <-answer
		held := func(when string) {
			t.Helper()
			time.Sleep(10 * l.cfg.WaiterGrace)
			if lease, left, err := l.lease("db"); err != nil || lease.First() == nil || lease.First().Token != o.Token || left == 0 {
				t.Fatalf("%s: %+v %v", when, lease, err)
			}
		}
		held("after an earlier attempt broke off")
		// A duplicate of the request, whose sender does not wait for the answer.
		resume := l.store.stall()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := l.ask(ctx, "db", "k", time.Hour, time.Hour); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("got %v", err)
		}
		resume()
		held("after a later attempt broke off")
	})
}

// A new leader gives the clients of the waiters that it finds five seconds.
func TestANewLeaderCancelsWaitersThatNobodyComesBackFor(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		old := s.leader()
		old.mustAcquire("db", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		for _, key := range []string{"dead1", "alive", "dead2"} {
			wg.Go(func() { _, _ = old.ask(ctx, "db", key, time.Minute, time.Hour) })
			old.untilQueued("db", old.queued("db")+1)
		}
		old.crash()
		wg.Wait() // the node went down: unknown
		l := s.leader(old)
		wg.Go(func() { _, _ = l.ask(ctx, "db", "alive", time.Minute, time.Hour) })
		time.Sleep(newLeaderGrace - time.Second)
		if l.queued("db") != 3 {
			t.Fatalf("%d wait, want 3 still", l.queued("db"))
		}
		time.Sleep(2 * time.Second)
		l.machine.view(func(st *fsm.State) {
			if ws := st.Waiters("db", 3); len(ws) != 1 || ws[0].Acquire.Holder != "alive" {
				t.Fatalf("got %v, want the one that came back", ws)
			}
		})
		l.waits.mu.Lock()
		remembered := len(l.waits.of)
		l.waits.mu.Unlock()
		if remembered != 1 {
			t.Errorf("%d requests are remembered, want 1", remembered)
		}
		cancel()
		wg.Wait()
	})
}

// A deposed leader keeps no client waiting: it says that it does not know.
func TestADeposedLeaderEndsItsWaiters(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		old := s.leader()
		old.mustAcquire("db", time.Hour)
		ended := make(chan error, 1)
		go func() {
			_, err := old.ask(t.Context(), "db", "w", time.Minute, time.Hour)
			ended <- err
		}()
		old.untilQueued("db", 1)
		s.cut(old)
		if err := <-ended; !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("got %v, want an unknown outcome", err)
		}
		if s.leader(old).queued("db") != 1 {
			t.Fatal("the place in the queue is lost")
		}
		s.connectAll()
	})
}

func TestQueueLimits(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.cfg.MaxQueue, l.cfg.MaxWaiters = 2, 3
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wait := func(name, key string) {
			before := l.queued(name)
			wg.Go(func() { _, _ = l.ask(ctx, name, key, time.Minute, time.Hour) })
			l.untilQueued(name, before+1)
		}
		refused := func(name, key string) {
			t.Helper()
			var full *QueueFullError
			if _, err := l.ask(ctx, name, key, time.Minute, time.Hour); !errors.As(err, &full) {
				t.Fatalf("got %v, want a full queue", err)
			}
		}
		l.mustAcquire("a", time.Hour)
		l.mustAcquire("b", time.Hour)
		wait("a", "a1")
		wait("a", "a2")
		refused("a", "a3")
		wait("b", "b1")
		refused("b", "b2")
		// A repetition stands in the queue already, and what is free is granted.
		again, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if _, err := l.ask(again, "a", "a1", time.Minute, time.Hour); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("got %v", err)
		}
		if r, err := l.ask(ctx, "c", "c1", time.Minute, time.Hour); err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
			t.Fatalf("got %v %v", r.Outcome, err)
		}
	})
}

// Many leases end in one instant, each with a queue: everybody is let in within
// seconds, one entry each.
func TestManyQueuesMoveAtOnce(t *testing.T) {
	const names = 500
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		var wg sync.WaitGroup
		for i := range names {
			name := fmt.Sprint(i)
			wg.Go(func() { _, _ = l.acquire(name, 10*time.Second, "") })
		}
		wg.Wait()
		tokens := make([]uint64, names)
		for i := range names {
			wg.Go(func() {
				r, err := l.ask(t.Context(), fmt.Sprint(i), "w", time.Minute, time.Minute)
				if err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
					t.Errorf("%d: %v %v", i, r.Outcome, err)
					return
				}
				tokens[i] = r.Outcome.Token
			})
		}
		began := time.Now()
		wg.Wait()
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %s", took)
		}
		slices.Sort(tokens)
		if len(slices.Compact(tokens)) != names || tokens[0] == 0 {
			t.Error("P2: one entry granted two leases")
		}
	})
}

// P7, P10: what a client was answered with stays, and what will be cancelled is
// not answered, whenever it goes away.
func TestP7_AnAnswerAndACancelExcludeEachOther(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		var granted, unknown int
		for i := range 400 {
			name := fmt.Sprint("db", i)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { // as near to the commit as can be
				for held := false; !held && ctx.Err() == nil; {
					l.machine.view(func(st *fsm.State) { _, held = st.Lease(name) })
					time.Sleep(time.Duration(i%5) * 10 * time.Microsecond)
				}
				cancel()
			}()
			r, err := l.ask(ctx, name, "k", time.Hour, 0)
			cancel()
			switch {
			case err == nil && r.Outcome.Code == fsmpb.Code_CODE_OK:
				granted++
			case errors.Is(err, ErrOutcomeUnknown):
				unknown++
				name = ""
			default:
				t.Fatalf("got %v %v", r.Outcome, err)
			}
			if name != "" {
				defer func() {
					if lease, _, err := l.lease(name); err != nil || !lease.Live() {
						t.Errorf("%s was answered with a lease, and it was taken away", name)
					}
				}()
			}
		}
		time.Sleep(3 * l.cfg.WaiterGrace)
		if held := l.held(); held != granted {
			t.Errorf("%d leases are held, %d were answered", held, granted)
		}
		t.Logf("%d answered, %d unknown", granted, unknown)
	})
}

func (n *simNode) held() (count int) {
	n.machine.view(func(s *fsm.State) { count = s.Counts().Held })
	return count
}

// P7: repetitions of an answered request that break off, or are refused because
// they ask for something else, do not count against the lease.
func TestP7_RepetitionsDoNotCancelWhatWasAnswered(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		cut := func(name string, digest string) {
			t.Helper()
			resume := l.store.stall()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := l.Acquire(ctx, time.Now(), &fsmpb.Acquire{
				Name: name, Holder: "k", TtlMs: 3_600_000, Request: &fsmpb.Request{Key: "k", Path: "acquire " + name, Digest: []byte(digest)},
			})
			if !errors.Is(err, ErrOutcomeUnknown) {
				t.Fatalf("got %v", err)
			}
			resume()
		}
		other := func(name string) {
			t.Helper()
			r, err := l.Acquire(t.Context(), time.Now(), &fsmpb.Acquire{
				Name: name, Holder: "k", TtlMs: 3_600_000, Request: &fsmpb.Request{Key: "k", Path: "acquire " + name, Digest: []byte("other")},
			})
			if err != nil || r.Outcome.Code != fsmpb.Code_CODE_KEY_REUSED {
				t.Fatalf("got %v %v", r.Outcome, err)
			}
		}
		for name, repeat := range map[string]func(name string){
			"same, cut":       func(name string) { cut(name, name) },
			"other, cut":      func(name string) { cut(name, "other") },
			"cut and refused": func(name string) { cut(name, name); other(name) },
			"refused and cut": func(name string) { other(name); cut(name, "other"); cut(name, name) },
		} {
			if r, err := l.ask(t.Context(), name, "k", time.Hour, 0); err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
				t.Fatalf("got %v %v", r.Outcome, err)
			}
			repeat(name)
			time.Sleep(3 * l.cfg.WaiterGrace)
			if lease, _, err := l.lease(name); err != nil || !lease.Live() {
				t.Errorf("%s: the lease is gone", name)
			}
		}
	})
}

// grantInherited crashes a leader at which this key waits for "db", and has the next one
// grant it.
func (s *sim) grantInherited(key string) (next *simNode) {
	s.t.Helper()
	old := s.leader()
	token := old.mustAcquire("db", time.Hour).Token
	go func() { _, _ = old.ask(s.t.Context(), "db", key, time.Hour, time.Hour) }()
	old.untilQueued("db", 1)
	old.crash()
	next = s.leader(old)
	if _, err := next.Release(s.t.Context(), time.Now(), &fsmpb.Release{Name: "db", Token: token}); err != nil {
		s.t.Fatal(err)
	}
	return next
}

// A grant in the first seconds of a leader is kept for as long as the waiters
// that it found are: their clients have to find it first.
func TestAnInheritedWaiterHasFiveSecondsForItsGrant(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.grantInherited("w")
		time.Sleep(newLeaderGrace - time.Second)
		if r, err := l.ask(t.Context(), "db", "w", time.Hour, time.Hour); err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
			t.Fatalf("got %v %v, want the lease", r.Outcome, err)
		}
	})
}
