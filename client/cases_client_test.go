package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/client/internal/onenode"
	"fencepost/cluster/bubble"
)

// base waits until nothing is left of what a client did, or says what is.
func base(t *testing.T, cluster *onenode.Cluster, goroutines int, open *atomic.Int64) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		held, waiters := cluster.Held()
		g, conns := runtime.NumGoroutine(), open.Load()
		if held == 0 && waiters == 0 && g <= goroutines && conns == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left: %d leases, %d waiters, %d goroutines (were %d), %d connections", held, waiters, g, goroutines, conns)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// served is a cluster of one node on the network that counts its connections.
func served(t *testing.T) (cluster *onenode.Cluster, url string, leaderless *atomic.Bool, open *atomic.Int64) {
	t.Helper()
	cluster, leaderless, open = onenode.New(), new(atomic.Bool), new(atomic.Int64)
	t.Cleanup(cluster.Close)
	node := cluster.Node("n1")
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if leaderless.Load() {
			noLeader(w, r)
			return
		}
		node.ServeHTTP(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return cluster, s.URL, leaderless, open
}

// 500 acquires that fail, in each of the ways in which they can, and 500 that do
// not, leave nothing: no goroutine, connection, place in a queue or lease.
func TestB63_NothingIsLeftOfAcquires(t *testing.T) {
	cluster, url, leaderless, open := served(t)
	holder := newClient(t, []string{url})
	before := runtime.NumGoroutine()
	c := newClient(t, []string{url})
	l, err := holder.Acquire(t.Context(), "taken")
	if err != nil {
		t.Fatal(err)
	}
	each := func(n int, f func(i int) error, want error) {
		t.Helper()
		var all sync.WaitGroup
		slots := make(chan struct{}, 25)
		for i := range n {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				if err := f(i); !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			})
		}
		all.Wait()
	}
	each(125, func(int) error { _, err := c.Acquire(t.Context(), "taken"); return err }, ErrHeld)
	each(125, func(i int) error {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(i%20)*time.Millisecond, cancel)
		_, err := c.Acquire(ctx, "taken", Wait(time.Minute))
		return err
	}, context.Canceled)
	each(125, func(int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := c.Acquire(ctx, "taken", Wait(time.Minute))
		return err
	}, context.DeadlineExceeded)
	leaderless.Store(true)
	each(125, func(int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := c.Acquire(ctx, "free")
		return err
	}, context.DeadlineExceeded)
	leaderless.Store(false)
	each(500, func(i int) error {
		l, err := c.Acquire(t.Context(), fmt.Sprint("own", i))
		if err != nil {
			return err
		}
		return l.Release(t.Context())
	}, nil)
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Close()
	holder.Close()
	base(t, cluster, before, open)
}

// What is given up while it waits leaves the queue at once, not when the cluster
// notices, and what may have been granted is given back.
func TestB63_GivenUpAcquireIsCancelled(t *testing.T) {
	for name, f := range map[string]fault{"waiting": nil, "its answers are lost": only("/acquire", answerLost), "hung": only("/acquire", slow(time.Hour))} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				cluster, nodes := newCluster(t)
				c, net := connect(t, nodes)
				if name == "waiting" {
					other, _ := connect(t, nodes)
					mustAcquire(t, other, "a")
				}
				net.set(f)
				ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
				defer cancel()
				if _, err := c.Acquire(ctx, "a", TTL(time.Hour), Wait(time.Minute)); !errors.Is(err, ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want unknown", err)
				}
				sleep(time.Millisecond)
				held, waiters := cluster.Held()
				if name == "waiting" {
					held--
				}
				if held != 0 || waiters != 0 {
					t.Errorf("%d are held, %d wait", held, waiters)
				}
			})
		})
	}
	t.Run("not under the caller's own key", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			_, nodes := newCluster(t)
			c, net := connect(t, nodes)
			net.set(only("/acquire", answerLost))
			ctx, cancel := context.WithTimeout(WithIdempotencyKey(t.Context(), "mine"), time.Second)
			defer cancel()
			if _, err := c.Acquire(ctx, "a", TTL(time.Hour)); !errors.Is(err, ErrUnknown) {
				t.Errorf("got %v", err)
			}
			net.set(nil)
			if l, err := c.Acquire(WithIdempotencyKey(t.Context(), "mine"), "a", TTL(time.Hour)); err != nil || l.Err() != nil {
				t.Errorf("got %v, want the lease that the first had got", err)
			}
		})
	})
}

// A release that fails can be repeated, and ends in success; it is not renewed
// from the first on.
func TestB63_ReleaseCanBeRepeated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, net := connect(t, nodes, WithoutRetry())
		l := mustAcquire(t, c, "a")
		for _, step := range []struct {
			f    fault
			want error
		}{{says(noLeader), ErrUnavailable}, {says(noLeader), ErrUnavailable}, {answerLost, ErrUnknown}, {nil, nil}, {blackHole, nil}} {
			net.set(step.f)
			if err := l.Release(t.Context()); !errors.Is(err, step.want) {
				t.Fatalf("got %v, want %v", err, step.want)
			}
		}
		if held, _ := cluster.Held(); held != 0 {
			t.Error("still held")
		}

		net.set(nil)
		l = mustAcquire(t, c, "a")
		net.set(only("/release", says(noLeader)))
		if err := l.Release(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		sleep(ttl)
		if held, _ := cluster.Held(); held != 0 {
			t.Error("renewed after the release")
		}
	})
}

// A client stays with no hung node: no call takes longer than an attempt and a
// moment, the node is avoided, and used again when it is needed and works.
func TestB64_HungNodeIsLeft(t *testing.T) {
	for name, f := range map[string]fault{"stopped": blackHole, "cut off from its peers": says(noLeader)} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				_, nodes := newCluster(t)
				c, net := connect(t, nodes)
				l := mustAcquire(t, c, "a", TTL(6*time.Second))
				net.set(f, "n1")
				for i := range 300 {
					began := time.Now()
					if _, err := c.Put(t.Context(), "k", []byte{byte(i)}, l.Guard(Held)); err != nil {
						t.Fatalf("put %d: %v", i, err)
					}
					if took := time.Since(began); took > DefaultAttemptTimeout+100*time.Millisecond {
						t.Errorf("put %d took %s", i, took)
					}
					sleep(200 * time.Millisecond)
				}
				mustHold(t, l)
				if n := len(net.requests("/v1/kv/k", "n1")); name == "stopped" && n > 8 {
					t.Errorf("%d writes went to the hung node", n)
				}
				net.set(nil, "n1")
				net.set(blackHole, "n2", "n3")
				sleep(5 * time.Second)
				mustHold(t, l)
				began := time.Now()
				if _, err := c.Put(t.Context(), "k", nil, l.Guard(Held)); err != nil || time.Since(began) > DefaultAttemptTimeout {
					t.Errorf("after it was healed: %v, after %s", err, time.Since(began))
				}
			})
		})
	}
}

// A time-out is not followed by an attempt on a connection that was open before.
func TestB64_FreshConnectionAfterATimeout(t *testing.T) {
	var hang atomic.Bool
	var mu sync.Mutex
	fresh := make(map[string]bool) // of connections made since the hang
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		hangs := hang.Load() && !fresh[r.RemoteAddr]
		mu.Unlock()
		if hangs {
			<-r.Context().Done()
			return
		}
		ok(`{}`)(w, r)
	}))
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew && hang.Load() {
			mu.Lock()
			fresh[c.RemoteAddr().String()] = true
			mu.Unlock()
		}
	}
	s.Start()
	defer s.Close()
	c := newClient(t, []string{s.URL}, WithAttemptTimeout(100*time.Millisecond))
	var warm sync.WaitGroup
	for range 8 {
		warm.Go(func() { c.GetLease(t.Context(), "a") })
	}
	warm.Wait()
	hang.Store(true) // the path of all open connections is dead
	before := time.Now()
	if _, err := c.GetLease(within(t, 10*time.Second), "a"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(before); took > time.Second {
		t.Errorf("took %s, want one time-out", took)
	}
}

// Waiters whose node dies keep their place: nobody sees an error, and they are
// granted in turn.
func TestB51_WaitingThroughANodeThatDies(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, _ := connect(t, nodes)
		b, netB := connect(t, nodes)
		l := mustAcquire(t, a, "a")
		got := make(chan *Lease)
		for _, c := range []*Client{b, a} {
			go func() { got <- mustAcquire(t, c, "a", Wait(time.Minute)) }()
			sleep(10 * time.Millisecond)
		}
		// The connection is cut, and then the next node's, too.
		netB.set(reset, "n1")
		b.nodes.failed(b.nodes.at, false, "")
		sleep(20 * time.Second)
		l.Release(t.Context())
		first := <-got
		if first.c != b {
			t.Error("the second in the queue was granted first")
		}
		first.Release(t.Context())
		if second := <-got; second.c != a {
			t.Error("who was next?")
		}
	})
}

// A long wait is no silence: it is asked for once, and no node is avoided.
func TestB51_LongWaitAvoidsNoNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, _ := connect(t, nodes)
		b, net := connect(t, nodes)
		l := mustAcquire(t, a, "a")
		time.AfterFunc(4*time.Minute, func() { l.Release(context.Background()) })
		mustAcquire(t, b, "a", Wait(5*time.Minute))
		if n := len(net.requests("/acquire")); n != 1 {
			t.Errorf("%d attempts, want one", n)
		}
		for _, n := range b.nodes.all {
			if n.penalty != 0 {
				t.Errorf("%s is avoided for %s", n.base, n.penalty)
			}
		}
	})
}

// A waiter that the cluster has taken out of the queue, since nobody was there,
// queues up again, under another key; one that cancelled itself does not.
func TestB51_PlaceInTheQueueIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, _ := connect(t, nodes)
		b, net := connect(t, nodes)
		l := mustAcquire(t, a, "a")
		time.AfterFunc(30*time.Second, func() { l.Release(context.Background()) })
		first := true
		net.set(only("/acquire", func(w http.ResponseWriter, r *http.Request, node http.Handler) {
			if first {
				first = false
				time.Sleep(10 * time.Second)
				refuse(409, `{"status":409,"code":"cancelled"}`)(w, r)
				return
			}
			node.ServeHTTP(w, r)
		}), "n1")
		began := time.Now()
		mustAcquire(t, b, "a", Wait(time.Minute))
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("granted after %s", took)
		}
		const more = 20 * time.Second
		first = true
		if _, err := b.Acquire(t.Context(), "a", Wait(more)); !errors.Is(err, ErrHeld) {
			t.Errorf("got %v", err)
		}
		first = true
		if _, err := b.Acquire(WithIdempotencyKey(t.Context(), "mine"), "a", Wait(more)); !errors.Is(err, ErrCancelled) {
			t.Errorf("got %v, want it told to whoever has the key", err)
		}
	})
}
