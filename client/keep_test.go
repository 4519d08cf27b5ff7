package client

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/cluster/bubble"
	"fencepost/httpapi/wire"
)

const ttl = 5 * time.Second

func mustAcquire(t *testing.T, c *Client, name string, opts ...AcquireOption) *Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), name, append([]AcquireOption{TTL(ttl)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustHold(t *testing.T, l *Lease) {
	t.Helper()
	if err := l.Err(); err != nil {
		t.Fatalf("after %v: %v", l.Deadline(), err)
	}
}

// sleep lets fake time pass, and what is due happen.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Whatever happens to one node, the lease is kept through another with the same
// token, and the broken one costs an attempt now and then, not each renewal.
func TestKeptWhateverOneNodeDoes(t *testing.T) {
	for name, f := range map[string]fault{
		"black hole":                        blackHole,
		"reset":                             reset,
		"cut off from its peers, no leader": says(noLeader),
		"cut off from its peers, unknown":   says(unknown),
		"internal error":                    says(refuse(500, `{"status":500,"code":"internal"}`)),
		"answers are lost":                  answerLost,
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				cluster, nodes := newCluster(t)
				c, net := connect(t, nodes)
				l := mustAcquire(t, c, "a")
				net.set(f, "n1")
				for range 120 {
					sleep(time.Second)
					mustHold(t, l)
					if held, _ := cluster.Held(); held != 1 {
						t.Fatal("the cluster has ended the lease")
					}
				}
				if got, err := c.GetLease(t.Context(), "a"); err != nil || got.Token != l.Token() || got.Renewals < 60 {
					t.Fatalf("got %+v, %v; want token %d, and renewed each third of the TTL", got, err, l.Token())
				}
				// Asked at first; and after that only for hints that say it leads.
				if n := len(net.requests("/v1/renew", "n1")); name == "black hole" && n > 10 {
					t.Errorf("%d of %d renewals went to the hung node", n, len(net.requests("/v1/renew")))
				}
			})
		})
	}
}

// A stopped node that goes on late answers old renewals; they count from when they
// were sent, and nothing falls back.
func TestKeptThroughAStoppedNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes)
		l := mustAcquire(t, c, "a")
		continued := make(chan struct{})
		net.set(stopped(continued), "n1")
		sleep(20 * time.Second)
		mustHold(t, l)
		before := l.Deadline()
		close(continued)
		net.set(nil)
		sleep(time.Millisecond)
		if l.Deadline().Before(before) {
			t.Error("a late answer has moved the deadline back")
		}
		sleep(30 * time.Second)
		mustHold(t, l)
	})
}

// A silent node costs exactly one attempt: the next one goes to another node a
// sixth of the TTL later.
func TestHungNodeCostsOneAttempt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes)
		start := time.Now()
		l := mustAcquire(t, c, "a", TTL(6*time.Second))
		net.set(blackHole, "n1")
		sleep(6 * time.Second)
		mustHold(t, l)
		want := []struct {
			node string
			at   time.Duration
		}{{"n1", 2 * time.Second}, {"n2", 3 * time.Second}, {"n2", 5 * time.Second}}
		got := net.requests("/v1/renew")
		if len(got) != len(want) {
			t.Fatalf("sent %+v, want %+v", got, want)
		}
		for i, w := range want {
			if got[i].node != w.node || got[i].at.Sub(start) != w.at {
				t.Errorf("renewal %d went to %s after %s, want %s after %s", i, got[i].node, got[i].at.Sub(start), w.node, w.at)
			}
		}
	})
}

// With all nodes gone the loss is signalled at the TTL from the sending of the last
// renewal that was answered, less the margin, to the millisecond.
func TestP7_LostBeforeTheTTLFromTheLastSending(t *testing.T) {
	for name, f := range map[string]fault{
		"black holes": blackHole, "reset": reset, "no leader": says(noLeader), "answers lost": answerLost, "slow": slow(3 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				_, nodes := newCluster(t)
				c, net := connect(t, nodes)
				l := mustAcquire(t, c, "a")
				sleep(8 * time.Second)
				sent := net.requests("/v1/renew")
				last := sent[len(sent)-1].at
				net.set(f)
				<-l.Lost()
				if got, want := time.Since(last), ttl-ttl/10; got != want {
					t.Errorf("lost %s after the last good sending, want %s", got, want)
				}
				checkLost(t, l, LostDeadline)
				net.set(nil)
				n := len(net.requests(""))
				sleep(time.Minute)
				checkLost(t, l, LostDeadline)
				if got := len(net.requests("")); got != n {
					t.Errorf("%d requests for a lost lease", got-n)
				}
			})
		})
	}
}

// checkLost checks all that tells of a loss.
func checkLost(t *testing.T, l *Lease, reason string) {
	t.Helper()
	var lost *LostError
	cause := context.Cause(l.Context())
	if !errors.Is(cause, ErrLost) || !errors.As(cause, &lost) || lost.Reason != reason || lost.Token != l.Token() {
		t.Errorf("cause %v, want a loss by %s", cause, reason)
	}
	if l.Context().Err() == nil || l.Err() != cause {
		t.Errorf("Err is %v, want %v", l.Err(), cause)
	}
	select {
	case <-l.Lost():
	default:
		t.Error("Lost is not closed")
	}
}

// With a margin of one's own the loss comes by that.
func TestMargin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes, WithMargin(2*time.Second))
		start := time.Now()
		l := mustAcquire(t, c, "a")
		net.set(blackHole)
		<-l.Lost()
		if got := time.Since(start); got != 3*time.Second {
			t.Errorf("lost after %s", got)
		}
		net.set(nil)
		if _, err := c.Acquire(t.Context(), "b", TTL(time.Second)); !errors.Is(err, ErrLost) {
			t.Errorf("got %v: a lease shorter than the margin is none", err)
		}
		sleep(time.Millisecond)
		if l, err := c.GetLease(t.Context(), "b"); err != nil || l.Held {
			t.Errorf("got %+v, %v; want it given back", l, err)
		}
	})
}

// The leases of a client go in one request, whatever the phase in which they were
// acquired; those with TTLs of another order in one of their own.
func TestRenewalsGoInBatches(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes)
		var all []*Lease
		for i := range 40 {
			all = append(all, mustAcquire(t, c, "a"+string(rune('A'+i))))
			sleep(100 * time.Millisecond)
		}
		long := mustAcquire(t, c, "long", TTL(time.Minute))
		sleep(10 * time.Second)
		before := len(net.requests("/v1/renew"))
		sleep(50 * time.Second)
		if got := len(net.requests("/v1/renew")) - before; got > 2*30+3 {
			t.Errorf("%d requests in 10 TTLs, want about 30 for all", got)
		}
		for _, l := range append(all, long) {
			mustHold(t, l)
		}
	})
}

// More leases than a request takes.
func TestManyLeases(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, _ := connect(t, nodes)
		for i := range 2500 {
			mustAcquire(t, c, "a/"+string(rune('A'+i%26))+"/"+time.Duration(i).String())
		}
		sleep(time.Minute)
		if held, _ := cluster.Held(); held != 2500 {
			t.Errorf("%d leases are left", held)
		}
	})
}

// Names that JSON writes in twice their bytes, and those that it would write in six
// if it were for a web page, do not make a request too large.
func TestLongNames(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, _ := connect(t, nodes)
		for i := range 1000 {
			mustAcquire(t, c, strings.Repeat(`"<`, 254)+strconv.Itoa(1000+i))
		}
		sleep(time.Minute)
		if held, _ := cluster.Held(); held != 1000 {
			t.Errorf("%d leases are left", held)
		}
	})
}

// Release ends the keeping at once, and frees the lease for others.
func TestRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, net := connect(t, nodes)
		l := mustAcquire(t, c, "a")
		if err := l.Release(l.Context()); err != nil {
			t.Fatalf("with its own context: %v", err)
		}
		if held, _ := cluster.Held(); held != 0 || !errors.Is(context.Cause(l.Context()), ErrReleased) || errors.Is(l.Err(), ErrLost) {
			t.Errorf("held %d, cause %v", held, context.Cause(l.Context()))
		}
		select {
		case <-l.Lost():
			t.Error("a release is no loss")
		default:
		}
		n := len(net.requests(""))
		if _, err := c.Put(t.Context(), "k", nil, l.Guard(Latest)); !errors.Is(err, ErrReleased) {
			t.Errorf("got %v, want ErrReleased", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("once more: %v", err)
		}
		sleep(time.Minute)
		if got := len(net.requests("")); got != n {
			t.Errorf("%d requests for a released lease", got-n)
		}
	})
}

// Close keeps nothing, tells so, and gives nothing back.
func TestClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, _ := connect(t, nodes)
		l := mustAcquire(t, c, "a")
		c.Close()
		checkLost(t, l, LostClosed)
		if !errors.Is(l.Err(), ErrClosed) {
			t.Errorf("%v is not ErrClosed", l.Err())
		}
		if held, _ := cluster.Held(); held != 1 {
			t.Error("Close has released a lease whose work may go on")
		}
		if _, err := c.Acquire(t.Context(), "b"); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("release after the close: %v", err)
		}
		if held, _ := cluster.Held(); held != 0 {
			t.Error("not released")
		}
	})
}

// A program that waits for a lease while its client is closed gets neither.
func TestCloseDuringAcquire(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		other, _ := connect(t, nodes)
		l := mustAcquire(t, other, "a")
		c, _ := connect(t, nodes)
		got := make(chan error)
		go func() {
			_, err := c.Acquire(t.Context(), "a", TTL(ttl), Wait(time.Minute))
			got <- err
		}()
		sleep(time.Second)
		c.Close()
		l.Release(t.Context())
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		if held, _ := cluster.Held(); held != 0 {
			t.Error("a lease that nobody has is held")
		}
	})
}

// The end of the context that acquired does not end the lease, its values stay,
// and its key is not sent again.
func TestContextOfALease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes)
		type k struct{}
		ctx, cancel := context.WithCancel(WithIdempotencyKey(context.WithValue(t.Context(), k{}, "v"), "mine"))
		l, err := c.Acquire(ctx, "a", TTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		sleep(10 * time.Second)
		mustHold(t, l)
		if l.Context().Err() != nil || l.Context().Value(k{}) != "v" {
			t.Error("the context is not the lease's")
		}
		if _, err := c.Put(l.Context(), "k", []byte("v"), l.Guard(Held)); err != nil {
			t.Fatalf("put: %v", err)
		}
		if _, err := l.Txn(l.Context(), Held, wire.TxnOp{Op: wire.OpFence, Key: "k"}); err != nil {
			t.Fatalf("transaction: %v", err)
		}
		if n := net.requests("/k"); len(n) != 1 || n[0].key == "mine" {
			t.Errorf("a write under the lease has the key of its acquire: %+v", n)
		}
	})
}

// Do releases when the function has returned, and not before, also if it panics.
func TestDo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, net := connect(t, nodes)
		free := func(when string) {
			t.Helper()
			if held, _ := cluster.Held(); held != 0 {
				t.Errorf("%s: still held", when)
			}
		}
		mine := errors.New("mine")
		err := c.Do(t.Context(), "a", func(ctx context.Context, l *Lease) error {
			sleep(time.Minute)
			mustHold(t, l)
			return mine
		}, TTL(ttl))
		if err != mine {
			t.Errorf("got %v", err)
		}
		free("after an error")

		ctx, cancel := context.WithCancel(t.Context())
		err = c.Do(ctx, "a", func(ctx context.Context, l *Lease) error {
			cancel()
			<-ctx.Done()
			sleep(time.Minute) // slow to stop
			mustHold(t, l)
			return ctx.Err()
		}, TTL(ttl))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		free("after its context")

		func() {
			defer func() { recover() }()
			c.Do(t.Context(), "a", func(context.Context, *Lease) error { panic("mine") }, TTL(ttl))
		}()
		free("after a panic")

		err = c.Do(t.Context(), "a", func(ctx context.Context, _ *Lease) error {
			net.set(blackHole)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrLost) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			net.set(nil)
			return nil
		}, TTL(ttl))
		if !errors.Is(err, ErrLost) {
			t.Errorf("got %v: what was lost has not simply succeeded", err)
		}
		free("after a loss")
	})
}
