package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"fencepost/client"
)

// holds checks that the lease is held with this token, by a linearizable read.
func (c *processes) holds(name string, token uint64) answer {
	c.t.Helper()
	a := c.mustDo("GET", "/v1/leases/"+name, "")
	if a.body["held"] != true || a.number("token") != token {
		c.t.Fatalf("%s: %s, want it held with token %d", name, a, token)
	}
	return a
}

func (c *processes) holdsValue(key, value string, version uint64) {
	c.t.Helper()
	if a := c.mustDo("GET", "/v1/kv/"+key, ""); string(a.raw) != value || a.header.Get("ETag") != strconv.Quote(fmt.Sprint(version)) {
		c.t.Fatalf("%s: %s, ETag %s; want %q in version %d", key, a, a.header.Get("ETag"), value, version)
	}
}

// The node answers and the client does not hear it. The client repeats itself at
// another node under the same key: one effect, and the answer that it missed.
func TestP11_TheAnswerIsDropped(t *testing.T) {
	c := startProcesses(t, 3)
	p := newFaultProxy(t, c.follower())

	t.Run("acquire", func(t *testing.T) {
		p.inject(dropAnswer, "/acquire")
		g, err := p.client(c).Grant(t.Context(), "free", client.Holder("a"), client.TTL(time.Hour))
		missed := p.landed(dropAnswer, 200).answers[0]
		if err != nil || g.Token != missed.number("token") || g.PreviousToken != 0 {
			t.Fatalf("got %+v %v, the answer that was dropped is %s", g, err, missed)
		}
		c.holds("free", g.Token)
		if e := c.once("granted", "free"); e.Index != g.Token {
			t.Errorf("token %d, granted by entry %d", g.Token, e.Index)
		}
	})
	t.Run("acquire, waiting", func(t *testing.T) {
		first := c.mustAcquire("queued", time.Hour)
		p.inject(dropAnswer, "/acquire")
		got, failed := make(chan *client.Grant, 1), make(chan error, 1)
		cl := p.client(c)
		go func() {
			g, err := cl.Grant(t.Context(), "queued", client.Holder("b"), client.TTL(time.Hour), client.Wait(time.Minute))
			failed <- err
			got <- g
		}()
		c.untilQueued("queued", 1)
		freed := c.release("queued", first)
		missed := p.landed(dropAnswer, 200).answers[0]
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		g := <-got
		if g.Token != missed.number("token") || strconv.FormatUint(g.Token, 10) != freed.header.Get("Fencepost-Index") {
			t.Fatalf("token %d, dropped was %s, the release was entry %s", g.Token, missed, freed.header.Get("Fencepost-Index"))
		}
		c.once("queued", "queued")
		// Longer than a waiter whose client has gone is waited for: by their clock.
		c.mustAcquire("clock", 3*time.Second)
		eventually(t, "three seconds have passed", func() bool { return c.get(c.leader(), "/v1/leases/clock").body["held"] == false })
		c.holds("queued", g.Token)
	})
	t.Run("put", func(t *testing.T) {
		token := c.mustAcquire("writer", time.Hour)
		p.inject(dropAnswer, "/k")
		r, err := p.client(c).Put(t.Context(), "k", []byte("v"), client.Write{Token: token})
		missed := p.landed(dropAnswer, 200).answers[0]
		if err != nil || r.Version != missed.number("version") {
			t.Fatalf("got %+v %v, the answer that was dropped is %s", r, err, missed)
		}
		c.holdsValue("k", "v", r.Version)
		if e := c.once("put", "k"); e.Index != r.Version {
			t.Errorf("version %d, written by entry %d", r.Version, e.Index)
		}
	})
	t.Run("release", func(t *testing.T) {
		token := c.mustAcquire("given", time.Hour)
		p.inject(dropAnswer, "/release")
		released, err := p.client(c).Release(t.Context(), "given", token)
		p.landed(dropAnswer, 200)
		if err != nil || !released {
			t.Fatalf("got %v %v, want what the first attempt did: released", released, err)
		}
		c.once("released", "given")
	})
}

// The answers of renewals 3, 5 and 6 are dropped, and a caller gives one up while
// it is on its way. The token stays, and each next renewal succeeds.
func TestP11_B16_TheAnswerOfARenewalIsDropped(t *testing.T) {
	const ttl = 5 * time.Second
	c := startProcesses(t, 3)
	p := newFaultProxy(t, c.follower())
	cl, err := client.New([]string{p.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	g, err := cl.Grant(t.Context(), "db", client.Holder("a"), client.TTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		drop := i == 3 || i == 5 || i == 6
		if drop {
			p.inject(dropAnswer, "/renew")
		}
		if i == 8 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := cl.Renew(ctx, "db", g.Token, ttl); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a renewal that was given up: %v", err)
			}
			cancel()
		}
		r, err := cl.Renew(t.Context(), "db", g.Token, ttl)
		if err != nil || r.Token != g.Token || time.Until(r.Until) < ttl/2 {
			t.Fatalf("renewal %d: %+v %v", i, r, err)
		}
		if drop {
			p.landed(dropAnswer, 200)
		}
	}
	c.holds("db", g.Token)
	c.once("granted", "db")
}

// The node gets a request twice at once. It has one effect, and both are told it.
func TestP11_TheRequestIsDuplicated(t *testing.T) {
	c := startProcesses(t, 3)
	p := newFaultProxy(t, c.follower())
	twins := func(t *testing.T, field string, want uint64) {
		t.Helper()
		for _, a := range p.landed(duplicate, 200).answers {
			if a.number(field) != want {
				t.Errorf("one of the two was told %s, want %s %d", a, field, want)
			}
		}
	}
	first := c.mustAcquire("queued", time.Hour)

	p.inject(duplicate, "/acquire")
	g, err := p.client(c).Grant(t.Context(), "free", client.Holder("a"), client.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	twins(t, "token", g.Token)
	if e := c.once("granted", "free"); e.Index != g.Token {
		t.Errorf("token %d, granted by entry %d", g.Token, e.Index)
	}

	p.inject(duplicate, "/renew")
	if _, err := p.client(c).Renew(t.Context(), "free", g.Token, 0); err != nil {
		t.Fatal(err)
	}
	twins(t, "token", g.Token)
	c.holds("free", g.Token)

	p.inject(duplicate, "/k")
	r, err := p.client(c).Put(t.Context(), "k", []byte("v"), client.Write{Token: g.Token})
	if err != nil {
		t.Fatal(err)
	}
	twins(t, "version", r.Version)
	c.holdsValue("k", "v", r.Version)
	c.once("put", "k")

	p.inject(duplicate, "/acquire")
	waiter := p.client(c)
	got := make(chan uint64, 1)
	go func() {
		g, err := waiter.Grant(t.Context(), "queued", client.Holder("b"), client.TTL(time.Hour), client.Wait(time.Minute))
		if err != nil {
			t.Error(err)
			got <- 0
			return
		}
		got <- g.Token
	}()
	c.untilQueued("queued", 1)
	p.inject(duplicate, "/release")
	if released, err := p.client(c).Release(t.Context(), "queued", first); err != nil || !released {
		t.Fatal(released, err)
	}
	second := <-got
	p.mu.Lock()
	both := len(p.met)
	p.mu.Unlock()
	if both == 0 {
		t.Fatal("no fault landed")
	}
	// The two pairs end in any order.
	for range 2 {
		x := p.landed(duplicate, 200)
		for _, a := range x.answers {
			if x.path == "/v1/leases/queued/release" && a.body["released"] != true || x.path == "/v1/leases/queued/acquire" && a.number("token") != second {
				t.Errorf("%s: one of the two was told %s", x.path, a)
			}
		}
	}
	c.once("queued", "queued")
	c.once("released", "queued")
	c.holds("queued", second)
}
