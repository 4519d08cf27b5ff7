package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// killLeader is N1. The node comes back after up to five seconds.
type killLeader struct{ r *rand.Rand }

func (a *killLeader) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.claimLeader(ctx)
	if err != nil {
		return nil, err
	}
	at := c.recorder.Now()
	if err := l.node.kill(); err != nil {
		l.node.release()
		return nil, err
	}
	return &landing{
		at: at, what: fmt.Sprintf("kill -9 %s, which led in term %d", l.node.name, l.term),
		hold: between(a.r, 0, 5*time.Second),
		heal: func(ctx context.Context) (string, error) {
			defer l.node.release()
			// Before the node comes back, which might win the next election.
			next := c.successor(ctx, l.term)
			if err := l.node.restart(ctx); err != nil {
				return "", err
			}
			return c.succeeded(ctx, l, next)
		},
	}, nil
}

// killAny is N2: one node, whichever, and each all-th time all at once.
type killAny struct {
	r   *rand.Rand
	all int // 0: never
	n   int
}

func (a *killAny) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	a.n++
	victims := []*node{pick(a.r, c.nodes)}
	if a.all > 0 && a.n%a.all == 0 {
		victims = c.nodes
	}
	var claimed []*node
	free := func() {
		for _, n := range claimed {
			n.release()
		}
	}
	names := ""
	for _, n := range victims {
		if !n.claim() {
			free()
			return nil, errBusy
		}
		claimed = append(claimed, n)
		names += " " + n.name
	}
	at := c.recorder.Now()
	errs := make(chan error, len(victims))
	for _, n := range victims {
		go func() { errs <- n.kill() }()
	}
	for range victims {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		free()
		return nil, err
	}
	return &landing{
		at: at, what: "kill -9" + names, hold: between(a.r, 0, 3*time.Second),
		heal: func(ctx context.Context) (string, error) {
			defer free()
			for _, n := range victims {
				if err := n.start(); err != nil {
					return "", err
				}
			}
			for _, n := range victims {
				if err := n.ready(ctx); err != nil {
					return "", err
				}
			}
			next, err := c.leader(ctx, 0)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("seen gone; %s leads in term %d, before it was %s in term %d", next.node.name, next.term, l.node.name, l.term), nil
		},
	}, nil
}
