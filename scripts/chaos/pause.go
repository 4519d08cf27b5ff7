package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// pauseLeader is N3 and N4: the whole process stops, and goes on where it was,
// with the leadership in its mind.
type pauseLeader struct {
	r        *rand.Rand
	min, max time.Duration
}

func (a *pauseLeader) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.claimLeader(ctx)
	if err != nil {
		return nil, err
	}
	at := c.recorder.Now()
	if err := l.node.signal(syscall.SIGSTOP); err != nil {
		l.node.release()
		return nil, err
	}
	hold := between(a.r, a.min, a.max)
	return &landing{
		at: at, what: fmt.Sprintf("stop %s, which led in term %d, for %s", l.node.name, l.term, hold.Round(time.Millisecond)), hold: hold,
		heal: func(ctx context.Context) (string, error) {
			defer l.node.release()
			next := c.successor(ctx, l.term) // the stopped one cannot answer
			if err := l.node.signal(syscall.SIGCONT); err != nil {
				return "", err
			}
			if err := l.node.restart(ctx); err != nil {
				return "", err
			}
			return c.succeeded(ctx, l, next)
		},
	}, nil
}
