package main

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"fencepost/client"
)

// late makes an attempt through the proxy that is held there; its caller does
// not know what became of it.
func late(t *testing.T, p *faultProxy, suffix string, attempt func() error) *exchange {
	t.Helper()
	p.inject(hold, suffix)
	if err := attempt(); !errors.Is(err, client.ErrUnknown) {
		t.Fatalf("an attempt that was held: %v, want an unknown outcome", err)
	}
	return p.landed(hold, 0)
}

// Requests arrive when others have gone on. They change nothing for those.
func TestP4_P11_B25_TheRequestComesLate(t *testing.T) {
	c := startProcesses(t, 3)
	p := newFaultProxy(t, c.follower())
	once := func() *client.Client { return p.client(c, client.WithoutRetry()) }
	// passed makes B the holder of what A had.
	passed := func(name string, a uint64) uint64 {
		c.release(name, a)
		return c.mustAcquire(name, time.Hour)
	}

	t.Run("release", func(t *testing.T) {
		a := c.mustAcquire("r", time.Hour)
		x := late(t, p, "/release", func() error { _, err := once().Release(t.Context(), "r", a); return err })
		b := passed("r", a)
		left := c.holds("r", b).number("expires_in_ms")
		if d := p.deliver(x); d.status != 200 || d.body["released"] != false {
			t.Errorf("got %s, want released: false", d)
		}
		if now := c.holds("r", b).number("expires_in_ms"); now > left {
			t.Errorf("%d ms were left, now %d", left, now)
		}
		expect(t, "a third who does not wait", c.mustDo("POST", "/v1/leases/r/acquire", `{"holder":"c"}`), 409, "lease_held", "")
	})
	t.Run("release, repeated", func(t *testing.T) {
		a := c.mustAcquire("rr", time.Hour)
		p.inject(hold, "/release")
		if released, err := p.client(c).Release(t.Context(), "rr", a); err != nil || !released {
			t.Fatal(released, err)
		}
		b := c.mustAcquire("rr", time.Hour)
		if d := p.deliver(p.landed(hold, 0)); d.status != 200 || d.body["released"] != true {
			t.Errorf("got %s, want the outcome of its key", d)
		}
		c.holds("rr", b)
	})
	t.Run("renew", func(t *testing.T) {
		a := c.mustAcquire("n", time.Hour)
		x := late(t, p, "/renew", func() error { _, err := once().Renew(t.Context(), "n", a, 2*time.Hour); return err })
		b := passed("n", a)
		expect(t, "late renewal", p.deliver(x), 409, "lease_lost", "superseded")
		if left := c.holds("n", b).number("expires_in_ms"); left > uint64(time.Hour/time.Millisecond) {
			t.Errorf("B has %d ms, more than it asked for", left)
		}
	})
	t.Run("acquire that was cancelled", func(t *testing.T) {
		for name, wait := range map[string]time.Duration{"c": 0, "cw": time.Minute} {
			x := late(t, p, "/acquire", func() error {
				ctx := client.WithIdempotencyKey(t.Context(), "key-"+name)
				_, err := once().Grant(ctx, name, client.Holder("a"), client.Wait(wait))
				return err
			})
			if cancelled, err := c.client(c.nodes[0]).Cancel(t.Context(), name, "key-"+name); err != nil || !cancelled {
				t.Fatal(cancelled, err)
			}
			expect(t, "late acquire", p.deliver(x), 409, "cancelled", "")
			if events := c.story(name); len(events) != 0 {
				t.Errorf("%s: it had an effect: %+v", name, events[0])
			}
		}
	})
	t.Run("acquire that was repeated and given back", func(t *testing.T) {
		p.inject(hold, "/acquire")
		g, err := p.client(c).Grant(t.Context(), "g", client.Holder("a"), client.TTL(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		c.release("g", g.Token)
		d := p.deliver(p.landed(hold, 0))
		expect(t, "late acquire", d, 409, "lease_lost", "released")
		if d.number("token") != g.Token {
			t.Errorf("it tells token %d, want %d", d.number("token"), g.Token)
		}
		c.once("granted", "g")
	})
	t.Run("acquire by a waiter that was repeated and given back", func(t *testing.T) {
		first := c.mustAcquire("gw", time.Hour)
		p.inject(hold, "/acquire")
		got := make(chan uint64, 1)
		cl := p.client(c)
		go func() {
			g, err := cl.Grant(t.Context(), "gw", client.Holder("a"), client.TTL(time.Hour), client.Wait(time.Minute))
			if err != nil {
				t.Error(err)
				got <- 0
				return
			}
			got <- g.Token
		}()
		c.untilQueued("gw", 1)
		c.release("gw", first)
		token := <-got
		c.release("gw", token)
		expect(t, "late acquire", p.deliver(p.landed(hold, 0)), 409, "lease_lost", "released")
		c.once("queued", "gw")
	})
	t.Run("put", func(t *testing.T) {
		a := c.mustAcquire("w", time.Hour)
		x := late(t, p, "/k", func() error {
			_, err := once().Put(t.Context(), "k", []byte("late"), client.Write{Token: a})
			return err
		})
		again := late(t, p, "/k2", func() error {
			_, err := once().Put(t.Context(), "k2", []byte("late"), client.Write{Token: a})
			return err
		})
		b := passed("w", a)
		expect(t, "late put, before B has written", p.deliver(again), 412, "stale_token", "not_on_record")
		expect(t, "no value", c.mustDo("GET", "/v1/kv/k2", ""), 404, "not_found", "")
		version := c.put("k", b, "b").number("version")
		d := p.deliver(x)
		expect(t, "late put", d, 412, "stale_token", "not_on_record")
		if d.number("watermark") != b {
			t.Errorf("it tells watermark %d, want %d", d.number("watermark"), b)
		}
		c.holdsValue("k", "b", version)
	})
	t.Run("put, repeated", func(t *testing.T) {
		a := c.mustAcquire("w2", time.Hour)
		p.inject(hold, "/k3")
		r, err := p.client(c).Put(t.Context(), "k3", []byte("a"), client.Write{Token: a})
		if err != nil {
			t.Fatal(err)
		}
		b := passed("w2", a)
		version := c.put("k3", b, "b").number("version")
		if d := p.deliver(p.landed(hold, 0)); d.status != 200 || d.number("version") != r.Version {
			t.Errorf("got %s, want the outcome of its key: version %d", d, r.Version)
		}
		c.holdsValue("k3", "b", version)
	})
}

// A holder loses its lease and wins it again. What it sent under the old one, and
// what arrives only now, is refused; its new token tells that somebody was there.
func TestP4_B26_OldWritesOfAHolderThatIsBack(t *testing.T) {
	c := startProcesses(t, 3)
	p := newFaultProxy(t, c.follower())
	a := c.mustAcquire("job", time.Hour)
	var queued []*exchange
	for i := range 3 {
		queued = append(queued, late(t, p, "/k", func() error {
			_, err := p.client(c, client.WithoutRetry()).Put(t.Context(), "k", fmt.Append(nil, "old", i), client.Write{Token: a})
			return err
		}))
	}
	c.release("job", a)
	b := c.mustAcquire("job", time.Hour)
	version := c.put("k", b, "b").number("version")
	c.release("job", b)
	back := c.mustDo("POST", "/v1/leases/job/acquire", `{"holder":"test"}`)
	if back.status != 200 || back.number("previous_token") != b {
		t.Fatalf("got %s, want it to tell that token %d was between", back, b)
	}
	for _, x := range queued {
		expect(t, "an old write", p.deliver(x), 412, "stale_token", "not_on_record")
	}
	c.holdsValue("k", "b", version)
}
