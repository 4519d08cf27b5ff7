package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"fencepost/cluster/check"
)

const (
	// watchdogBound is when a node ends itself at the latest whose write hangs: its
	// --disk-bound of 5 s and the looks at it, and as much again for a machine that
	// has other things to do.
	watchdogBound = 15 * time.Second
	// takeoverBound adds an election.
	takeoverBound = watchdogBound + 10*time.Second
)

// slowDisk is N11: each flush of a node takes 0.1 to 0.8 s, which the cluster has to
// live with, or 10 to 30 s, which the node must not survive. In the first two hits,
// and half of the others, the node leads.
type slowDisk struct {
	r     *rand.Rand
	n     int
	hangs takeovers
}

// takeovers are what became of nodes whose disk hung: for the verdict.
type takeovers struct {
	ended, led int // how many should have ended themselves, and how many of them led
	wrong      []string
	longest    time.Duration // until another led
}

func (a *slowDisk) prepare(context.Context, *cluster) (undo func() error, err error) {
	return nil, need("strace", "strace")
}

func (a *slowDisk) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	victim, hang, delay, hold := l.node, a.n%2 == 1, between(a.r, 100*time.Millisecond, 800*time.Millisecond), between(a.r, 5*time.Second, 8*time.Second)
	if a.n > 1 && a.r.IntN(2) == 0 {
		victim = pick(a.r, c.others(l.node))
	}
	if !victim.claim() {
		return nil, errBusy
	}
	if hang {
		delay, hold = between(a.r, 10*time.Second, 30*time.Second), 0
		victim.mayEnd()
	}
	at, began := c.recorder.Now(), time.Now()
	t, err := tamper(ctx, victim, syncCalls, fmt.Sprintf("delay_enter=%d", delay.Microseconds()), "(DELAYED)")
	if err != nil {
		victim.release()
		return nil, err
	}
	a.n++
	what := fmt.Sprintf("each flush of %s takes %s (%s led in term %d)", victim.name, delay.Round(time.Millisecond), l.node.name, l.term)
	return &landing{at: at, what: what, hold: hold, heal: func(ctx context.Context) (evidence string, err error) {
		defer victim.release()
		if hang {
			a.hangs.watch(ctx, c, l, victim, began)
		}
		err = t.detach()
		hits, begun := t.hits()
		evidence = fmt.Sprintf("%d flushes were slow", hits)
		if hang {
			hits, evidence = begun, fmt.Sprintf("%d flushes did not return", begun)
		}
		if hits == 0 {
			err = errors.Join(err, errMissed)
		}
		if hang {
			err = errors.Join(err, a.hangs.over(victim))
		}
		return evidence, errors.Join(err, victim.restart(ctx))
	}}, nil
}

// watch waits until a node whose disk hangs has closed what it listens on, and another
// leads, if it led.
func (t *takeovers) watch(ctx context.Context, c *cluster, l leadership, victim *node, began time.Time) {
	t.ended++
	if victim == l.node {
		t.succeed(ctx, c, l, began)
	}
	if wrong := deaf(ctx, victim, began.Add(watchdogBound)); wrong != "" {
		t.wrong = append(t.wrong, wrong)
	}
}

// over is for when the disk hangs no longer: what ended itself goes at the latest when
// its thread comes back from the disk.
func (t *takeovers) over(victim *node) error {
	wrong := selfEnded(victim, stopBound)
	if wrong == "" {
		return nil
	}
	t.wrong = append(t.wrong, wrong)
	if victim.running() {
		return victim.kill()
	}
	return nil
}

// succeed waits until another leads than one whose disk began to hang at an instant.
func (t *takeovers) succeed(ctx context.Context, c *cluster, l leadership, began time.Time) {
	t.led++
	bounded, cancel := context.WithDeadline(ctx, began.Add(takeoverBound))
	defer cancel()
	for bounded.Err() == nil {
		if next := c.successor(bounded, l.term); next.node != nil {
			t.longest = max(t.longest, time.Since(began))
			return
		}
	}
	t.wrong = append(t.wrong, fmt.Sprintf("%s led in term %d, its disk hung, and nobody else led within %s", l.node.name, l.term, takeoverBound))
}

func (t *takeovers) verdict() *check.Verdict {
	return &check.Verdict{
		Name: "a node whose disk hangs ends itself, and another leads", Findings: t.wrong,
		Note: fmt.Sprintf("%d hung, %d of them led; another did so after %s at the latest", t.ended, t.led, t.longest.Round(time.Millisecond)),
	}
}

func (a *slowDisk) verdicts(*evidence) []*check.Verdict { return []*check.Verdict{a.hangs.verdict()} }
