package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"fencepost/cluster/bubble"
	"fencepost/httpapi/wire"
)

// The cases of the resource's half, as far as a client meets them.

// A holder that was paused, and whose check came before the pause: its write is
// refused with what was accepted since, and changes nothing.
func TestB20_PausedHolderWritesAfterTakeover(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, net := connect(t, nodes)
		b, _ := connect(t, nodes)
		old := mustAcquire(t, a, "a")
		slipped := Write{Token: old.Token(), Lease: "a"} // past the local check
		net.set(blackHole)
		next := mustAcquire(t, b, "a", Wait(time.Minute))
		if _, err := b.Put(t.Context(), "k", []byte("new"), next.Guard(Held)); err != nil {
			t.Fatal(err)
		}
		net.set(nil)
		_, err := a.Put(t.Context(), "k", []byte("old"), slipped)
		var e *Error
		if !errors.Is(err, ErrStale) || !errors.As(err, &e) || e.Watermark != next.Token() {
			t.Errorf("got %v, want stale below %d", err, next.Token())
		}
		if k, err := a.Get(t.Context(), "k"); err != nil || string(k.Value) != "new" || k.Token != next.Token() {
			t.Errorf("got %+v, %v", k, err)
		}
	})
}

// No way of writing does without a token, and zero is none.
func TestB22_EveryWriteNeedsAToken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, _ := connect(t, nodes)
		l := mustAcquire(t, c, "a")
		if _, err := c.Put(t.Context(), "k", []byte("v"), l.Guard(Held)); err != nil {
			t.Fatal(err)
		}
		for name, write := range map[string]func() error{
			"put":    func() error { _, err := c.Put(t.Context(), "k", []byte("w"), Write{}); return err },
			"delete": func() error { _, err := c.Delete(t.Context(), "k", Write{Guard: Held}); return err },
			"fence":  func() error { _, err := c.Fence(t.Context(), "k", Write{Lease: "a"}); return err },
			"txn": func() error {
				_, err := c.Txn(t.Context(), wire.TxnRequest{Ops: []wire.TxnOp{{Op: wire.OpDelete, Key: "k"}}})
				return err
			},
		} {
			var e *Error
			if err := write(); !errors.As(err, &e) || e.Status != 428 && e.Status != 400 {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if k, err := c.Get(t.Context(), "k"); err != nil || string(k.Value) != "v" || k.Watermark != l.Token() {
			t.Errorf("got %+v, %v", k, err)
		}
	})
}

// A former holder's release and renewal, also under the same label or with the
// successor's name for it, touch the successor's lease in nothing.
func TestB25_FormerHolderTouchesNoSuccessor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, net := connect(t, nodes)
		b, _ := connect(t, nodes)
		old := mustAcquire(t, a, "a", Holder("same"))
		net.set(blackHole)
		next := mustAcquire(t, b, "a", Holder("same"), Wait(time.Minute))
		net.set(nil)
		if err := old.Release(t.Context()); err != nil {
			t.Errorf("release of what has ended: %v", err)
		}
		if released, err := a.Release(t.Context(), "a", old.Token()); err != nil || released {
			t.Errorf("got %t, %v", released, err)
		}
		if _, err := a.Renew(t.Context(), "a", old.Token(), time.Hour); !errors.Is(err, ErrLost) {
			t.Errorf("got %v", err)
		}
		results, _, err := a.RenewMany(t.Context(), []wire.Renewal{{Name: "a", Token: old.Token()}, {Name: "a", Token: next.Token()}})
		if err != nil || results[0].Code != wire.CodeLeaseLost || results[1].Code != "" {
			t.Errorf("got %+v, %v", results, err)
		}
		mustHold(t, next)
		if _, err := a.Grant(t.Context(), "a", Holder("same")); !errors.Is(err, ErrHeld) {
			t.Errorf("got %v, want held", err)
		}
	})
}

// Writes that were under way when the lease passed on are refused, and whoever gets
// the lease back is told that somebody was there in between.
func TestB26_OldWritesOfAFormerHolder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, net := connect(t, nodes)
		b, _ := connect(t, nodes)
		first := mustAcquire(t, a, "a")
		deliver := make(chan struct{})
		arrived := make(chan struct{}, 100)
		net.set(func(w http.ResponseWriter, r *http.Request, node http.Handler) {
			if r.Method != http.MethodPut {
				blackHole(w, r, node)
				return
			}
			<-deliver
			node.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
			arrived <- struct{}{}
		})
		ended := make(chan error, 3)
		for i := range 3 {
			go func() {
				_, err := a.Put(t.Context(), fmt.Sprint("k", i), []byte("old"), first.Guard(Latest))
				ended <- err
			}()
		}
		sleep(4 * time.Second)
		second := mustAcquire(t, b, "a", Wait(time.Minute))
		for range 3 { // they end with their lease, as unknown
			if err := <-ended; !errors.Is(err, ErrUnknown) || !errors.Is(err, ErrLost) || errors.Is(err, ErrUnavailable) {
				t.Errorf("got %v, want unknown by the loss", err)
			}
		}
		if _, err := b.Put(t.Context(), "k0", []byte("new"), second.Guard(Held)); err != nil {
			t.Fatal(err)
		}
		second.Release(t.Context())
		net.set(nil)
		third := mustAcquire(t, a, "a", Wait(time.Minute))
		close(deliver)
		for _, s := range net.requests("") {
			if s.method == http.MethodPut {
				<-arrived
			}
		}
		for i := range 3 {
			k, err := a.Get(t.Context(), fmt.Sprint("k", i))
			if i == 0 && (err != nil || string(k.Value) != "new") || i > 0 && !errors.Is(err, ErrNotFound) {
				t.Errorf("k%d: got %+v, %v", i, k, err)
			}
		}
		if third.PreviousToken() == first.Token() || third.PreviousToken() != second.Token() {
			t.Errorf("previous token %d, want %d", third.PreviousToken(), second.Token())
		}
	})
}

// A guarded write on a handle whose lease has ended fails as lost; nothing is
// acquired under it.
func TestB28_NoNewSessionUnderAnOldHandle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, net := connect(t, nodes)
		l := mustAcquire(t, c, "a")
		net.set(blackHole)
		sleep(2 * ttl)
		net.set(nil)
		n := len(net.requests(""))
		for _, level := range []Guard{Latest, Held} {
			if _, err := c.Put(t.Context(), "k", []byte("v"), l.Guard(level)); !errors.Is(err, ErrLost) || errors.Is(err, ErrUnknown) {
				t.Errorf("got %v, want lost", err)
			}
		}
		if len(net.requests("")) != n {
			t.Error("something was sent")
		}
		if held, _ := cluster.Held(); held != 0 {
			t.Error("acquired anew")
		}
		if next := mustAcquire(t, c, "a"); next == l || next.Token() <= l.Token() {
			t.Error("a new acquisition is not a new handle")
		}
		checkLost(t, l, LostDeadline)
	})
}

// Bodies, keys, values and the bearer come to a node the same, whichever it is, and
// nothing is repeated to a place that an answer names but we do not know.
func TestB56_HintsLeadOnlyToNodesThatAreKnown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		leads := func(to string) fault {
			return func(w http.ResponseWriter, r *http.Request, node http.Handler) {
				w.Header().Set("Fencepost-Leader", to)
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(503)
				fmt.Fprint(w, `{"status":503,"code":"no_leader"}`)
			}
		}
		c, net := connect(t, nodes)
		net.nodes["n4"] = nodes["n2"]
		net.set(leads("http://n3"), "n1")
		if _, err := c.Grant(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if len(net.requests("/acquire", "n2")) != 0 || len(net.requests("/acquire", "n3")) != 1 {
			t.Errorf("sent %+v, want n1 and then its leader n3", net.requests("/acquire"))
		}
		c, net = connect(t, nodes)
		net.nodes = map[string]http.Handler{"n1": nodes["n1"], "n2": nodes["n2"], "n3": nodes["n3"], "evil": nodes["n3"]}
		net.set(leads("http://evil"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Grant(ctx, "b"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		if n := len(net.requests("", "evil")); n != 0 {
			t.Errorf("%d requests went to where an answer pointed", n)
		}
	})
}

// A node that the cluster has told of is gone to, and is not when it is told of no
// more.
func TestB56_NodesThatTheClusterTells(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		net := &network{t: t, nodes: nodes, faults: map[string]fault{}}
		c := newClient(t, []string{"http://n2"}, WithTransport(net)) // n1 leads
		for range 2 {
			if _, err := c.GetLease(t.Context(), "a"); !errors.Is(err, ErrNotFound) {
				t.Fatal(err)
			}
		}
		if n := len(net.requests("", "n1")); n != 0 {
			t.Fatalf("%d requests to a node that we were not told of", n)
		}
		if _, err := c.Cluster(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustAcquire(t, c, "a")
		mustAcquire(t, c, "b")
		if n := len(net.requests("/acquire", "n1")); n != 1 {
			t.Errorf("sent %+v, want the second to the leader", net.requests("/acquire"))
		}
		net.set(reset, "n1")
		mustAcquire(t, c, "c") // back to the one that was configured
		c.nodes.learn("http://n2", []wire.Node{{HTTPAddr: "n2"}, {HTTPAddr: "bad host"}, {HTTPAddr: "u:p@x"}})
		if len(c.nodes.all) != 1 || c.nodes.at.base != "http://n2" {
			t.Errorf("knows %d nodes", len(c.nodes.all))
		}
	})
}

// What an option cannot mean is refused by name, not turned into a default, and an
// explicit zero neither.
func TestB58_ZeroIsNoDefault(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes)
		for field, o := range map[string]AcquireOption{
			"ttl_ms": TTL(0), "wait_ms": Wait(-1), "holder": Holder(""), "slots": Slots(0), "take": Take(0), "grace_ms": Grace(-time.Second),
		} {
			var e *Error
			if _, err := c.Acquire(t.Context(), "a", o); !errors.As(err, &e) || e.Code != wire.CodeInvalidRequest || e.Field != field {
				t.Errorf("%s: got %v", field, err)
			}
		}
		if n := len(net.requests("")); n != 0 {
			t.Errorf("%d requests", n)
		}
		for field, o := range map[string]AcquireOption{"ttl_ms": TTL(5 * time.Nanosecond), "wait_ms": Wait(time.Hour), "holder": Holder(strings.Repeat("h", 257))} {
			var e *Error
			if _, err := c.Acquire(t.Context(), "a", o); !errors.As(err, &e) || e.Code != wire.CodeInvalidRequest || e.Field != field {
				t.Errorf("%s: got %v", field, err)
			}
		}
		if l := mustAcquire(t, c, "a", TTL(1500*time.Microsecond+100*time.Millisecond)); l.TTL() != 102*time.Millisecond {
			t.Errorf("the TTL in force is %s", l.TTL())
		}
	})
}

// Too large a value is an error, and nothing is written.
func TestB59_OversizeValue(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes)
		l := mustAcquire(t, c, "a")
		const limit = 512 << 10
		for size, fits := range map[int]bool{limit - 1: true, limit: true, limit + 1: false} {
			key := fmt.Sprint("k", size)
			_, err := c.Put(t.Context(), key, bytes.Repeat([]byte("v"), size), l.Guard(Held))
			var e *Error
			if fits != (err == nil) || !fits && (!errors.As(err, &e) || e.Status != 413) {
				t.Errorf("%d bytes: got %v", size, err)
			}
			if k, err := c.Get(t.Context(), key); fits != (err == nil) || fits && len(k.Value) != size {
				t.Errorf("%d bytes: read %v", size, err)
			}
			if n := len(net.requests(key)); n != 2 {
				t.Errorf("%d bytes: %d requests", size, n)
			}
		}
		if _, err := c.Put(t.Context(), strings.Repeat("k", 40<<10), nil, l.Guard(Held)); err == nil {
			t.Error("a key of 40 KiB was taken")
		}
	})
}

// The refusal says who holds it; what an operator needs to end it is in there.
func TestB60_ForcedRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, _ := connect(t, nodes)
		admin, _ := connect(t, nodes)
		l := mustAcquire(t, c, "a", Holder("someone"))
		var e *Error
		if _, err := admin.Grant(t.Context(), "a"); !errors.As(err, &e) || e.Holder != "someone" || e.Token != l.Token() || e.ExpiresIn <= 0 || e.ExpiresIn > ttl {
			t.Fatalf("got %+v", err)
		}
		for _, step := range []struct {
			token    uint64
			released bool
		}{{e.Token + 1, false}, {e.Token, true}, {e.Token, false}} {
			if got, err := admin.Release(t.Context(), "a", step.token); err != nil || got != step.released {
				t.Errorf("release of %d: got %t, %v", step.token, got, err)
			}
		}
		<-l.Lost()
		checkLost(t, l, "released")
		if _, err := admin.Grant(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(t.Context(), "k", nil, Write{Token: l.Token(), Lease: "a"}); !errors.Is(err, ErrStale) {
			t.Errorf("got %v, want stale", err)
		}
	})
}

// Labels are no identity, and differ by themselves.
func TestB62_OneLabelTwoHolders(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, _ := connect(t, nodes)
		b, _ := connect(t, nodes)
		mustAcquire(t, a, "a", Holder("n1"))
		for _, label := range []string{"n1", "n10", "N1", "n"} {
			if _, err := b.Acquire(t.Context(), "a", Holder(label)); !errors.Is(err, ErrHeld) {
				t.Errorf("%s: got %v", label, err)
			}
		}
		if _, err := a.Acquire(t.Context(), "a", Holder("n1")); !errors.Is(err, ErrHeld) {
			t.Errorf("again, by the same client: got %v", err)
		}
		one, two := mustAcquire(t, a, "b"), mustAcquire(t, b, "c")
		if one.Holder() == two.Holder() || one.Holder() == "" {
			t.Errorf("labels %q and %q", one.Holder(), two.Holder())
		}
	})
}

// A change whose answers are all lost is not repeated for longer than the cluster
// knows its key: it would happen twice, here over a newer value (P10, P11).
func TestP11_NoRepetitionAfterTheKeyIsForgotten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes)
		l := mustAcquire(t, c, "a", TTL(time.Hour))
		net.set(only("/v1/kv/k", answerLost))
		done := make(chan error)
		go func() {
			_, err := c.Put(t.Context(), "k", []byte("old"), l.Guard(""))
			done <- err
		}()
		sleep(time.Second)
		other, _ := connect(t, nodes)
		if _, err := other.Put(t.Context(), "k", []byte("new"), Write{Token: l.Token()}); err != nil {
			t.Fatal(err)
		}
		sleep(10*time.Minute - 2*time.Second)
		select {
		case err := <-done:
			if !errors.Is(err, ErrUnknown) {
				t.Errorf("the change ended with %v", err)
			}
		default:
			t.Error("the change is repeated for longer than its key is known")
		}
		net.set(nil)
		if got, err := other.Get(t.Context(), "k"); err != nil || string(got.Value) != "new" {
			t.Errorf("k is %q, %v", got.Value, err)
		}
	})
}
