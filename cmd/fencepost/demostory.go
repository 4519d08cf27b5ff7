package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fencepost/client"
	"fencepost/httpapi/wire"
)

// What the steps say of others is of their ordinary use, and is in their documents:
// etcd's concurrency API and leases, Consul's sessions and locks, Redis' SET NX PX
// and its replication.

func (d *demo) story(ctx context.Context) error {
	if err := d.cast.startServers(ctx); err != nil {
		return err
	}
	c, err := client.New(d.cast.urls())
	if err != nil {
		return err
	}
	defer c.Close()
	leader, err := d.leader(ctx, c, "")
	if err != nil {
		return err
	}
	d.step("Three servers form a cluster: %s. %s leads.", d.cast.roll(), leader.name)
	a, first, err := d.enterA(ctx)
	if err != nil {
		return err
	}
	b, second, err := d.stopAAndEnterB(ctx, a, first)
	if err != nil {
		return err
	}
	acked, err := d.killLeader(ctx, c, leader, b, second)
	if err != nil {
		return err
	}
	return d.wakeA(ctx, c, a, b, second, acked)
}

// enterA has A take the lease, write, and look at its lease a last time.
func (d *demo) enterA(ctx context.Context) (a *worker, got reply, err error) {
	if a, err = d.cast.startWorker("A"); err != nil {
		return nil, got, err
	}
	if got, err = a.must(ctx, order{Do: doAcquire}); err != nil {
		return nil, got, err
	}
	if _, err = a.must(ctx, order{Do: doPut, Value: "A's first draft"}); err != nil {
		return nil, got, err
	}
	d.step("A (pid %d) takes the lease %q, for %s at a time, and is given token %d.\nUnder it A writes %s = \"A's first draft\".", a.pid(), demoLease, demoTTL, got.Token, demoKey)
	d.peers("etcd", "gives a lock a number, too: its revision",
		"Consul", "the same: the lock's index",
		"Redis", "has a random value for the lock, and so no order")
	return a, got, nil
}

// stopAAndEnterB stops A between its check and its write. B waits and takes over.
func (d *demo) stopAAndEnterB(ctx context.Context, a *worker, first reply) (b *worker, got reply, err error) {
	checked := time.Now()
	held, err := a.must(ctx, order{Do: doCheck})
	if err != nil {
		return nil, got, err
	}
	if !held.Held {
		return nil, got, errors.New("A has lost its lease too early: this machine is too slow for a TTL of " + demoTTL.String())
	}
	if err := a.stop(ctx); err != nil {
		return nil, got, err
	}
	stopped := time.Now()
	d.step("A makes sure that it holds the lease (it does), and is about to write again.\nHere A is stopped (SIGSTOP): a long pause, a starved container, a suspended\nmachine.")
	if b, err = d.cast.startWorker("B"); err != nil {
		return nil, got, err
	}
	if got, err = b.must(ctx, order{Do: doAcquire}); err != nil {
		return nil, got, err
	}
	granted := time.Now()
	if _, err = b.must(ctx, order{Do: doPut, Value: "B's report"}); err != nil {
		return nil, got, err
	}
	d.step("B (pid %d) waits. %s later A's time is up, and B is given token %d.\nB writes %s = \"B's report\".", b.pid(), granted.Sub(stopped).Round(10*time.Millisecond), got.Token, demoKey)
	d.peers("etcd", "also hands the lock on. So must all: A could be dead",
		"Consul", "does so after a lock-delay of, by default, 15 s, which makes a late\nwrite less likely",
		"Redis", "also hands it on")
	d.found("P1", got.Token > first.Token, "B's token %d is greater than A's %d", got.Token, first.Token)
	left := time.Duration(held.LeftMS) * time.Millisecond
	d.found("P7", !granted.Before(checked.Add(left)), "A's lease was not ended early: A could count on %s, B was granted it after %s", left, granted.Sub(checked).Round(time.Millisecond))
	return b, got, nil
}

// killLeader kills the leader with signal 9. The lease and what was written go on
// with the next.
func (d *demo) killLeader(ctx context.Context, c *client.Client, leader *server, b *worker, second reply) (acked reply, err error) {
	before, err := c.Get(ctx, demoKey)
	if err != nil {
		return acked, err
	}
	leader.kill()
	killed := time.Now()
	next, err := d.leader(ctx, c, leader.name)
	if err != nil {
		return acked, err
	}
	took := time.Since(killed).Round(10 * time.Millisecond)
	after, err := c.Get(ctx, demoKey)
	if err != nil {
		return acked, err
	}
	held, err := b.must(ctx, order{Do: doCheck})
	if err != nil {
		return acked, err
	}
	if acked, err = b.must(ctx, order{Do: doPut, Value: "B's report, second page"}); err != nil {
		return acked, err
	}
	on, err := d.lease(ctx, c)
	if err != nil {
		return acked, err
	}
	d.step("The leader, %s, is killed (kill -9). %s leads %s later. B still holds the\nlease with token %d, and writes its second page.", leader.name, next.name, took, second.Token)
	d.peers("etcd", "also keeps the lock; its TTL starts anew unless checkpoints are on",
		"Consul", "also keeps the lock; the session's TTL starts anew",
		"Redis", "may lose it: the replica that takes over need not have heard of it,\nand then somebody else gets the lock beside B")
	d.found("P9", after.Version == before.Version && string(after.Value) == string(before.Value), "what B had written was there after the kill")
	d.found("P8", held.Held && on.Held && on.Token == second.Token, "B's lease, token %d, outlived the leader", second.Token)
	d.found("P3", len(on.Holders) == 1, "the lease had one holder")
	return acked, nil
}

// wakeA lets A go on where it was: with the write that it was about to make.
func (d *demo) wakeA(ctx context.Context, c *client.Client, a, b *worker, second, acked reply) error {
	if err := a.send(order{Do: doPut, Value: "A's second draft"}); err != nil { // is read when it wakes
		return err
	}
	if err := a.wake(); err != nil {
		return err
	}
	late, err := a.receive(ctx)
	if err != nil {
		return err
	}
	held, err := a.must(ctx, order{Do: doCheck})
	if err != nil {
		return err
	}
	now, err := c.Get(ctx, demoKey)
	if err != nil {
		return err
	}
	answer := fmt.Sprintf("%d %s (%s)", late.Status, late.Code, late.Reason)
	if late.Status == 0 {
		answer = "nothing: the write was done"
		if late.Error != "" {
			answer = late.Error
		}
	}
	d.step("A wakes (SIGCONT). For A no time has passed: it has just made sure of its lease,\nand so sends its write. The cluster answers:\n\n    %s\n\n%s is %q. Only now A hears that its lease is lost.", answer, demoKey, now.Value)
	d.peers("etcd", "takes A's put, and B's report is gone; unless A made it a transaction\nthat compares its lock's revision, which nothing makes it do",
		"Consul", "takes A's put as well; unless A made it a transaction that checks\nits session",
		"Redis", "takes A's SET",
		"all", "for a file, a database, another service: a lock gives out a number at\nbest, and the resource must check it. That is so with fencepost, too;\nits own keys are always checked")
	d.found("P4", late.Status == 412 && late.Code == string(wire.CodeStaleToken), "A's late write was refused with %s", answer)
	d.found("P4", string(now.Value) == "B's report, second page" && now.Version == acked.Version, "the key is as B left it")
	d.found("P5", now.Watermark >= second.Token, "the key's watermark, %d, is not below B's token", now.Watermark)
	d.found("P7", !held.Held, "A, awake and asked, knew by its own clock that its time was up")
	released, err := b.must(ctx, order{Do: doRelease})
	if err != nil {
		return err
	}
	d.found("P7", released.Released, "B held its lease until it gave it back")
	return nil
}

// leader waits until somebody other than the one named leads.
func (d *demo) leader(ctx context.Context, c *client.Client, not string) (*server, error) {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		if s, err := c.Cluster(ctx); err == nil && s.Leader != "" && s.Leader != not {
			if l := d.cast.server(s.Leader); l != nil {
				return l, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-t.C:
		}
	}
}

func (d *demo) lease(ctx context.Context, c *client.Client) (l wire.Lease, err error) {
	page, err := c.ListLeases(ctx, client.Page{Prefix: demoLease})
	if err != nil {
		return l, err
	}
	for _, l := range page.Leases {
		if l.Name == demoLease {
			return l, nil
		}
	}
	return l, fmt.Errorf("lease %s is not on record", demoLease)
}
