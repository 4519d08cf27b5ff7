package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"fencepost/fsm/fsmpb"
)

// P7: a waiter that comes back and is answered with its lease keeps it, also when
// the goroutine that proposed the release, which let it in, tells of that later.
func TestP7_AnAnsweredWaiterIsNotCancelledByALateDecision(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		time.Sleep(newLeaderGrace)
		const rounds = 20
		lost := 0
		for round := range rounds {
			name := "db" + string(rune('a'+round))
			held := l.mustAcquire(name, time.Hour).Token
			l.leave(name, "w", time.Hour, time.Hour)() // the first attempt's client is cut off
			// It comes back at the moment when the lease is released: both go into
			// one disk write, the release first.
			s.slowDown(5 * time.Millisecond)
			go l.put("k", held, "v") // keeps raft busy, so that both wait for the next write
			time.Sleep(time.Millisecond)
			released := make(chan struct{})
			go func() {
				defer close(released)
				_, _ = l.Release(t.Context(), time.Now(), &fsmpb.Release{Name: name, Token: held})
			}()
			time.Sleep(time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			r, err := l.ask(ctx, name, "w", time.Hour, time.Hour)
			cancel()
			<-released
			s.slowDown(0)
			if err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
				t.Fatalf("round %d: %v %v", round, r.Outcome, err)
			}
			time.Sleep(10 * time.Second)
			if o, err := l.renew(name, r.Outcome.Token); err != nil || o.Code != fsmpb.Code_CODE_OK {
				lost++
				t.Logf("round %d: answered with token %d (attempt %d) for an hour; 10 s later: %v %v", round, r.Outcome.Token, r.Outcome.Attempt, o, err)
			}
		}
		if lost > 0 {
			t.Errorf("%d of %d acknowledged leases were cancelled", lost, rounds)
		}
	})
}

// A waiter that a new leader has inherited comes back just when it is looked at,
// and is turned away for overload; then its client dies. It is still given up.
func TestAnInheritedWaiterThatWasTurnedAwayIsGivenUp(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustAcquire("db", time.Hour)
		l.leave("db", "w", time.Minute, 2*time.Hour)()
		l.crash()
		old := l
		l = s.leader(old)
		old.restart()
		time.Sleep(newLeaderGrace - 500*time.Millisecond)
		for range maxProposals { // a second of overload
			if err := l.gate.enter(context.Background(), classLeader, time.Second); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the client's
		defer cancel()
		if _, err := l.ask(ctx, "db", "w", time.Minute, 2*time.Hour); !errors.Is(err, ErrOverloaded) {
			t.Fatalf("got %v", err)
		}
		for range maxProposals {
			l.gate.leave()
		}
		time.Sleep(10 * time.Minute)
		if n := s.leader().queued("db"); n != 0 {
			t.Errorf("ten minutes later %d still stands in the queue, without a client", n)
		}
	})
}
