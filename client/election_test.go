package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"fencepost/cluster/bubble"
)

// Candidates lead in turn, one at a time; who observes sees each, and nobody
// between them only where there is nobody.
func TestElection(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		watcher, netW := connect(t, nodes)
		ctx, cancel := context.WithCancel(t.Context())
		var seen []string
		watched := make(chan error, 1)
		go func() {
			var last error
			for l, err := range NewElection(watcher, "e").Observe(ctx) {
				if last = err; err == nil {
					seen = append(seen, l.Value)
				}
			}
			watched <- last
		}()
		sleep(time.Second)
		one, net1 := connect(t, nodes)
		two, _ := connect(t, nodes)
		e1, e2 := NewElection(one, "e", TTL(ttl), Holder("one")), NewElection(two, "e", TTL(ttl), Metadata(map[string]string{"zone": "b"}))
		l1, err := e1.Campaign(t.Context(), "first")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e1.Campaign(t.Context(), "again"); err == nil {
			t.Error("a leader campaigned")
		}
		next := make(chan *Lease)
		go func() {
			l, err := e2.Campaign(t.Context(), "second")
			if err != nil {
				t.Error(err)
			}
			next <- l
		}()
		netW.set(blackHole, "n1") // the watcher goes on elsewhere
		sleep(time.Hour)          // longer than any one wait
		mustHold(t, l1)
		if err := e1.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		l2 := <-next
		if l2.Token() <= l1.Token() || l1.Err() == nil {
			t.Errorf("tokens %d and %d", l1.Token(), l2.Token())
		}
		sleep(time.Second)
		if err := e2.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		l3, err := e1.Campaign(t.Context(), "third")
		if err != nil {
			t.Fatal(err)
		}
		net1.set(blackHole)
		<-l3.Lost()
		sleep(ttl)
		cancel()
		if err := <-watched; !errors.Is(err, context.Canceled) {
			t.Errorf("observed to the end: %v", err)
		}
		want := []string{"", "first", "second", "", "third", ""}
		if len(seen) != len(want) {
			t.Fatalf("seen %q, want %q", seen, want)
		}
		for i := range want {
			if seen[i] != want[i] {
				t.Errorf("seen %q, want %q", seen, want)
			}
		}
		if err := NewElection(two, "e").Resign(t.Context()); err != nil {
			t.Errorf("resigning from nothing: %v", err)
		}
	})
}

// A campaign ends with its context, and leaves no candidate behind.
func TestCampaignIsGivenUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, _ := connect(t, nodes)
		mustAcquire(t, c, "e")
		other, _ := connect(t, nodes)
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
		defer cancel()
		if _, err := NewElection(other, "e").Campaign(ctx, "v"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		sleep(time.Millisecond)
		if held, waiters := cluster.Held(); held != 1 || waiters != 0 {
			t.Errorf("%d hold, %d wait", held, waiters)
		}
	})
}

// One Election is one candidate, also where there is room for more.
func TestOneElectionIsOneCandidate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, _ := connect(t, nodes)
		e := NewElection(c, "e", Slots(2))
		won := make(chan *Lease, 2)
		for range 2 {
			go func() {
				l, _ := e.Campaign(t.Context(), "v")
				won <- l
			}()
		}
		if a, b := <-won, <-won; (a == nil) == (b == nil) {
			t.Errorf("campaigns won %v and %v, want one", a, b)
		}
	})
}
