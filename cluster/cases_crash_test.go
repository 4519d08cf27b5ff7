package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/fsm/fsmpb"
)

// Known cases of crashes, and of what a node finds when it is back.

// All nodes crash in one instant under load, twenty times, and come back in any
// order, once one of them half a minute late. What was acknowledged is there,
// holders who come back keep their tokens, and new tokens are above all old ones.
func TestP1_P9_B36_AllCrashAtOnce(t *testing.T) {
	const rounds = 20
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		told := newAcknowledged()
		for i := range 100 {
			name := fmt.Sprint("held", i)
			g := l.mustAcquire(name, 24*time.Hour)
			told.lease(name, g.Token)
			o, err := l.put(name, g.Token, "v")
			if err != nil || o.Code != fsmpb.Code_CODE_OK {
				t.Fatal(o, err)
			}
			told.keys[name] = o.Version
		}
		kept := l.mustAcquire("kept", 5*time.Second).Token
		for round := range rounds {
			before := told.count()
			var wg sync.WaitGroup
			for i := range 4 {
				told.load(t.Context(), l, fmt.Sprint("r", round, "w", i), &wg)
			}
			time.Sleep(time.Duration(1+rnd.IntN(20)) * 5 * time.Millisecond)
			for _, n := range s.nodes {
				s.cut(n)
			}
			for _, n := range s.nodes {
				n.crash()
			}
			wg.Wait()
			if told.count() == before {
				t.Fatalf("seed %d, round %d: nothing was under way", seed, round)
			}
			order := rnd.Perm(3)
			s.nodes[order[0]].restart()
			s.nodes[order[1]].restart()
			if round == 7 {
				time.Sleep(30 * time.Second)
			}
			l = s.leader()
			if o, err := l.renew("kept", kept); round != 7 && (err != nil || o.Code != fsmpb.Code_CODE_OK) {
				t.Fatalf("seed %d, round %d: the holder came back and was refused: %v %v", seed, round, o, err)
			} else if round == 7 {
				kept = l.mustAcquire("kept", 5*time.Second).Token
			}
			told.check(t, l)
			if g := l.mustAcquire(fmt.Sprint("new", round), time.Minute); g.Token <= told.newest {
				t.Fatalf("seed %d, round %d: token %d after %d", seed, round, g.Token, told.newest)
			}
			s.nodes[order[2]].restart()
			l = s.ready(10 * time.Second)
		}
		s.sameEverywhere()
	})
}

// One node, any of them, crashes under load, also while it takes a snapshot. It
// comes back to the state that the others have, fifty times.
func TestP14_B37_ACrashBetweenSnapshotAndLog(t *testing.T) {
	const rounds = 50
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	inSim(t, func(t *testing.T, s *sim) {
		told := newAcknowledged()
		snapshots := 0
		for round := range rounds {
			l := s.leader()
			var wg sync.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			for i := range 3 {
				told.load(ctx, l, fmt.Sprint("r", round, "w", i), &wg)
			}
			victim := s.nodes[rnd.IntN(3)]
			time.Sleep(time.Duration(rnd.IntN(40)) * time.Millisecond)
			if round%2 == 0 {
				f := victim.member.Load().raft.Snapshot()
				wg.Go(func() { _ = f.Error() }) // the crash may come first
			}
			victim.crash()
			time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
			s.leader(victim)
			stop()
			victim.restart()
			wg.Wait()
			s.sameEverywhere()
			if list, _ := victim.snaps.List(); len(list) > 0 {
				snapshots++
			}
			if t.Failed() {
				t.Fatalf("seed %d, round %d", seed, round)
			}
		}
		told.check(t, s.leader())
		if snapshots == 0 {
			t.Error("no node ever came back from a snapshot")
		}
	})
}

// An entry that this version does not know stops every node that meets it: it
// says so, is not alive, and does not go past the entry.
func TestP14_B39_AnUnknownEntryStopsTheNode(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustAcquire("db", time.Hour)
		s.sameEverywhere()
		before := l.Status().Index
		// Field 1000 of a command, as a later version might write it.
		if err := l.member.Load().raft.Apply([]byte{0xc2, 0x3e, 0x01, 'x'}, time.Second).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for _, n := range s.nodes {
			n.mu.Lock()
			why := n.exited
			n.mu.Unlock()
			applied := n.Status().Index
			if n == l && why == "" || why != "" && !strings.Contains(why, "unknown") {
				t.Errorf("%s ended with %q", n.cfg.Name, why)
			}
			if why != "" && n.Live() == nil {
				t.Errorf("%s is alive", n.cfg.Name)
			}
			if why != "" && applied > before+2 {
				t.Errorf("%s went on to %d, from %d", n.cfg.Name, applied, before)
			}
		}
		for _, n := range s.nodes {
			n.down = true // it is in no state to be closed in order
			n.Close()
		}
	})
}
