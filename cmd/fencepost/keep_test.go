package main

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"fencepost/client"
)

// With real processes: a lease of 5 s outlasts each node being stopped in turn,
// followers and leaders, for longer than its TTL; with all of them stopped its
// holder is told before the TTL from the last renewal is over.
func TestP7_LeaseIsKeptWhileNodesStop(t *testing.T) {
	const ttl = 5 * time.Second
	c := startProcesses(t, 3)
	cl := c.client(c.leader())
	l, err := cl.Acquire(t.Context(), "db", client.TTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*process{c.follower(), c.leader()} {
		c.signal(n, syscall.SIGSTOP)
		select {
		case <-l.Lost():
			t.Errorf("lost while %s was stopped: %v", n.name, l.Err())
		case <-time.After(ttl + time.Second):
		}
		c.signal(n, syscall.SIGCONT)
		c.awaitReady(c.nodes...)
	}
	if r, err := cl.GetLease(t.Context(), "db"); err != nil || r.Token != l.Token() || !r.Held {
		t.Fatalf("got %+v, %v; want token %d", r, err, l.Token())
	}
	for _, n := range c.nodes {
		c.signal(n, syscall.SIGSTOP)
	}
	select {
	case <-l.Lost():
		// The deadline is the TTL from the last good sending, less a tenth.
		if late := time.Since(l.Deadline()); late >= ttl/10 {
			t.Errorf("told %s after the local deadline, so not within the TTL", late)
		}
	case <-time.After(2 * ttl):
		t.Error("not lost, with nobody to renew it")
	}
	if !errors.Is(context.Cause(l.Context()), client.ErrLost) {
		t.Errorf("cause %v", context.Cause(l.Context()))
	}
	for _, n := range c.nodes {
		c.signal(n, syscall.SIGCONT)
	}
	c.awaitReady(c.nodes...)
	before := l.Err()
	if _, err := cl.Put(t.Context(), "k", []byte("old"), l.Guard(client.Held)); !errors.Is(err, client.ErrLost) || l.Err() != before {
		t.Errorf("after all have come back: %v", err)
	}
}
