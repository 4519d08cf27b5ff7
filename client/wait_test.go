package client

import (
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/cluster/bubble"
)

// wait starts an acquisition that stands in the queue.
func waitFor(t *testing.T, c *Client, name string) <-chan *Grant {
	granted := make(chan *Grant, 1)
	go func() {
		g, err := c.Grant(t.Context(), name, TTL(time.Minute), Wait(5*time.Minute))
		if err != nil {
			t.Errorf("the waiter: %v", err)
		}
		granted <- g
	}()
	synctest.Wait()
	return granted
}

// P12: one that waits at a node which hangs goes on at another, within the time
// that a new leader gives it, and otherwise asks once.
func TestP12_AWaitOutlivesItsNode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		holder, _ := connect(t, nodes)
		l := mustAcquire(t, holder, "a", TTL(time.Hour))
		c, net := connect(t, nodes)
		net.set(blackHole, "n1")
		granted := waitFor(t, c, "a")
		sleep(5 * time.Second)
		if _, waiters := cluster.Held(); waiters != 1 {
			t.Fatalf("%d wait after 5 s beside a node that hangs", waiters)
		}
		asked := len(net.requests("/acquire"))
		sleep(2 * time.Minute)
		if now := len(net.requests("/acquire")); now != asked {
			t.Errorf("it asked %d times more, of a node that answers", now-asked)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if g := <-granted; g == nil || g.Token <= l.Token() {
			t.Errorf("got %+v", g)
		}
	})
}

// One whose place was given up, though nobody cancelled it, stands in line again.
func TestAWaitThatWasGivenUpBeginsAnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes)
		var first atomic.Value // the key that was refused
		net.set(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
			key := r.Header.Get("Idempotency-Key")
			if first.CompareAndSwap(nil, key) || first.Load() == key {
				refuse(409, `{"status":409,"code":"cancelled"}`)(w, r)
				return
			}
			node.ServeHTTP(w, r)
		})
		if g := <-waitFor(t, c, "a"); g == nil {
			t.Fatal("no grant")
		}
		// Under a key of the caller's own it is told: it may be its own doing.
		first.Store("mine")
		if _, err := c.Grant(WithIdempotencyKey(t.Context(), "mine"), "b", Wait(time.Minute)); err == nil {
			t.Error("a cancelled key was granted a lease")
		}
	})
}
