package cluster

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// Known cases of watches that repeat, lose or hang.

// A watcher asks one node after another for what comes next, while one of them
// now and then is behind or cut off. Such a node waits for the index or says that
// it has no leader; what comes is every event once, in order. An index far above
// all is waited for.
func TestP13_B53_ResumedAtAnyNode(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		var behind *simNode
		for _, n := range s.nodes {
			if n != l {
				behind = n
			}
		}
		next, last := l.Status().Index+1, uint64(0)
		far, err := l.Watch(1<<62, false)
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		var got []uint64
		said, waited := 0, 0
		for round := range 60 {
			g := l.mustAcquire(fmt.Sprint("l", round), time.Hour)
			last = g.Token
			switch round % 20 {
			case 5:
				s.cut(behind)
			case 15:
				s.connectAll()
			}
			n := s.nodes[round%3]
			w, err := n.Watch(next, false)
			if errors.Is(err, ErrNoLeader) {
				said++
				time.Sleep(250 * time.Millisecond)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if n.Status().Index < next {
				waited++
			}
			entries, err := w.Next(t.Context(), 500*time.Millisecond)
			w.Close()
			if err != nil && !errors.Is(err, ErrNoLeader) {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Index < next {
					t.Fatalf("%s went back to %d, %d was asked for", n.cfg.Name, e.Index, next)
				}
				next = e.Index + 1
				for _, ev := range e.Events {
					got = append(got, ev.Index)
				}
			}
			time.Sleep(250 * time.Millisecond)
		}
		if said == 0 || waited == 0 {
			t.Fatalf("the fault did not land: %d times no leader, %d times behind", said, waited)
		}
		for _, e := range eventsOf(t, l, next, last) {
			got = append(got, e.Index)
		}
		var want []uint64
		for _, e := range eventsOf(t, l, 1, last) {
			want = append(want, e.Index)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || len(got) != 60 {
			t.Errorf("got %v\nwant %v", got, want)
		}
		if entries, err := far.Next(t.Context(), time.Second); err != nil || len(entries) != 0 {
			t.Errorf("from far above: %v %v", entries, err)
		}
	})
}

// A watch at a node that is cut off ends within moments. Resumed elsewhere, and
// at the node when it is back, it tells what happened meanwhile, once and in order.
func TestP13_B54_ACutOffNodesWatchEndsAndIsResumed(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		var lost, other *simNode
		for _, n := range s.nodes {
			if n != l && lost == nil {
				lost = n
			} else if n != l {
				other = n
			}
		}
		first := l.mustAcquire("db", 5*time.Second)
		s.sameEverywhere()
		w, err := lost.Watch(0, false)
		if err != nil {
			t.Fatal(err)
		}
		from := lost.Status().Index + 1
		s.cut(lost)
		cutAt := time.Now()
		if entries, err := w.Next(t.Context(), time.Hour); !errors.Is(err, ErrNoLeader) || len(entries) != 0 {
			t.Fatalf("the watch of the node that is cut off: %v %v", entries, err)
		}
		w.Close()
		if took := time.Since(cutAt); took > 3*time.Second {
			t.Errorf("it took %s", took)
		}
		l.untilFree("db", 6*time.Second)
		second := l.mustAcquire("db", time.Hour)
		time.Sleep(time.Minute)
		story := func(n *simNode) (got string) {
			for _, e := range eventsOf(t, n, from, second.Token) {
				got += fmt.Sprintf("%s %s: %d, was %d; ", e.Kind, e.Name, e.Token, e.PreviousToken)
			}
			return got
		}
		want := fmt.Sprintf("expired db: 0, was %d; granted db: %d, was %d; ", first.Token, second.Token, first.Token)
		if got := story(other); got != want {
			t.Errorf("at another node: %q, want %q", got, want)
		}
		s.connectAll()
		s.sameEverywhere()
		for !lost.knowsLeader() {
			time.Sleep(50 * time.Millisecond)
		}
		if got := story(lost); got != want {
			t.Errorf("at the node that is back: %q, want %q", got, want)
		}
	})
}
