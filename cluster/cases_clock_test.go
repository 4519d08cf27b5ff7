package cluster

import (
	"fmt"
	"testing"
	"time"
)

// Known cases of a replicated clock that stands still.

// Leadership moves ten times, in three ways. After each the clock goes on: a
// dead holder's lease from before ends, and one from after, too.
func TestB08_TheClockGoesOnAfterEveryChangeOfLeader(t *testing.T) {
	const ttl = 3 * time.Second
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		for i := range 5 {
			l.mustAcquire(fmt.Sprint("first", i), ttl)
		}
		for i := range 10 {
			before, after := fmt.Sprint("before", i), fmt.Sprint("after", i)
			l.mustAcquire(before, ttl)
			old := l
			switch i % 3 {
			case 0:
				old.crash()
			case 1:
				old.member.Load().raft.LeadershipTransfer()
			case 2:
				s.cut(old)
			}
			l = s.leader(old)
			acquired := time.Now()
			l.mustAcquire(after, ttl)
			if took := l.untilFree(before, ttl+longestElection); took > ttl+time.Second {
				t.Errorf("change %d: a lease from before lived for %s with the new leader", i, took)
			}
			l.untilFree(after, ttl)
			if lived := time.Since(acquired); lived < ttl || lived > ttl+100*time.Millisecond {
				t.Errorf("change %d: a lease from after lived for %s", i, lived)
			}
			if i%3 == 0 {
				old.restart()
			}
			s.connectAll()
		}
		for i := range 5 {
			l.untilFree(fmt.Sprint("first", i), time.Second)
		}
		s.sameEverywhere()
	})
}

// A leader whose clock stands still though a lease has a deadline is not ready.
func TestB08_AClockThatStandsIsNotReady(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustAcquire("db", time.Hour)
		if err := l.Ready(); err != nil {
			t.Fatal(err)
		}
		resume := l.store.stall()
		time.Sleep(3*time.Second + tickEvery)
		if err := l.Ready(); err == nil {
			t.Error("nothing has committed for three seconds, and the leader is ready")
		}
		resume()
		time.Sleep(time.Second)
		if err := s.leader().Ready(); err != nil {
			t.Errorf("after the stall: %v", err)
		}
	})
}
