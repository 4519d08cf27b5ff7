package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"
)

// powerCut is N15: the power of one node fails, in every other case the leader's, and
// each all-th time that of all at once.
type powerCut struct {
	r     *rand.Rand
	all   int
	n     int
	disks diskSet
}

func (a *powerCut) prepare(ctx context.Context, c *cluster) (undo func() error, err error) {
	a.disks, undo, err = layDisks(ctx, c)
	return undo, err
}

func (a *powerCut) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	a.n++
	victims := []*node{l.node}
	switch {
	case a.n%a.all == 0:
		victims = c.nodes
	case a.n%2 == 0:
		victims = []*node{pick(a.r, c.others(l.node))}
	}
	var names []string
	for i, n := range victims {
		if !n.claim() {
			releaseAll(victims[:i])
			return nil, errBusy
		}
		names = append(names, n.name)
	}
	at := c.recorder.Now()
	errs := make(chan error, len(victims))
	for _, n := range victims {
		go func() {
			n.mayEnd()
			err := a.disks[n].cut()
			if killed := n.kill(); !errors.Is(killed, os.ErrProcessDone) { // it may have seen what its disk did
				err = errors.Join(err, killed)
			}
			errs <- err
		}()
	}
	for range victims {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		releaseAll(victims)
		return nil, err
	}
	return &landing{
		at: at, what: fmt.Sprintf("power cut of %s (%s led in term %d)", strings.Join(names, " "), l.node.name, l.term), hold: between(a.r, 0, time.Second),
		heal: func(ctx context.Context) (string, error) {
			defer releaseAll(victims)
			var missed error
			for _, n := range victims {
				if err := a.disks[n].back(ctx); errors.Is(err, errMissed) {
					missed = err
				} else if err != nil {
					return "", err
				}
				if err := n.start(); err != nil {
					return "", err
				}
			}
			for _, n := range victims {
				if err := n.restart(ctx); err != nil {
					return "", err
				}
			}
			return fmt.Sprintf("what was not synced was lost on %d", len(victims)), missed
		},
	}, nil
}

func releaseAll(nodes []*node) {
	for _, n := range nodes {
		n.release()
	}
}
