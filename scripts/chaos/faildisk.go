package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"fencepost/cluster/check"
)

// failingDisk is N13: the disk of a node fails what it is asked for. The node has to
// end itself, and to have acknowledged nothing that rests on a write that failed: its
// power is cut before it is started again, so that such a thing is lost.
type failingDisk struct {
	r     *rand.Rand
	n     int
	disks diskSet
	ended []failedDisk
}

// A failedDisk is what one hit was like.
type failedDisk struct {
	node     string
	led      bool
	from, to int64  // in which nothing may be acknowledged, if it led
	wrong    string // "": it ended itself as it should
}

const (
	failWays = 3
	// failedBound is how long a node may go on that has work all the time and whose
	// disk fails.
	failedBound = 30 * time.Second
)

func (a *failingDisk) prepare(ctx context.Context, c *cluster) (undo func() error, err error) {
	a.disks, undo, err = layDisks(ctx, c)
	return undo, errors.Join(err, need("strace", "strace"))
}

// begin makes the disk fail, in one way after the other.
func (a *failingDisk) begin(ctx context.Context, n *node, way int) (what string, end func() (string, error), err error) {
	calls, name := syncCalls, "flushes of %s fail"
	switch way {
	case 1:
		calls, name = "pwrite64", "writes of %s fail"
	case 2:
		f, err := os.Open(n.dir)
		if err != nil {
			return "", nil, err
		}
		defer f.Close()
		return "the file system of " + n.name + " is shut down", func() (string, error) { return "it was", nil }, shutDown(f)
	}
	t, err := tamper(ctx, n, calls, "error=EIO", "(INJECTED)")
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf(name, n.name), func() (string, error) {
		err := t.detach()
		hits, _ := t.hits()
		if hits == 0 {
			err = errors.Join(err, fmt.Errorf("%w: no call failed", errMissed))
		}
		return fmt.Sprintf("%d calls failed", hits), err
	}, nil
}

func (a *failingDisk) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	victim := l.node
	if a.r.IntN(3) == 0 {
		victim = pick(a.r, c.others(l.node))
	}
	if !victim.claim() {
		return nil, errBusy
	}
	at := c.recorder.Now()
	victim.mayEnd()
	what, end, err := a.begin(ctx, victim, a.n%failWays)
	if err != nil {
		victim.release()
		return nil, err
	}
	a.n++
	f := failedDisk{node: victim.name, led: victim == l.node, from: c.recorder.Now()}
	what += fmt.Sprintf(" (%s led in term %d)", l.node.name, l.term)
	return &landing{at: at, what: what, heal: func(ctx context.Context) (string, error) {
		defer victim.release()
		f.wrong = selfEnded(victim, failedBound)
		evidence, missed := end()
		if missed != nil && !errors.Is(missed, errMissed) {
			return "", missed
		}
		if victim.running() {
			if err := victim.kill(); err != nil {
				return "", err
			}
		}
		f.to = c.recorder.Now()
		a.ended = append(a.ended, f)
		if err := a.disks[victim].afterFailure(ctx); err != nil {
			return "", err
		}
		return evidence + ", " + victim.name + " ended itself, and what it had not flushed was lost", errors.Join(missed, victim.restart(ctx))
	}}, nil
}

// afterFailure cuts the power, too, if the disk has not been shut down already.
func (d *disk) afterFailure(ctx context.Context) error {
	cut := d.cut()
	err := d.back(ctx)
	if errors.Is(err, errMissed) || err == nil {
		return err
	}
	return errors.Join(cut, err)
}

// selfEnded waits until a process has ended by itself, and not as if all was well;
// otherwise it says what is wrong.
func selfEnded(n *node, bound time.Duration) (wrong string) {
	if err := n.gone(bound); err != nil {
		return err.Error()
	}
	if s := n.life.Load().cmd.ProcessState; s.Success() {
		return fmt.Sprintf("%s ended as if all was well: %s", n.name, s)
	}
	return ""
}

func (a *failingDisk) verdicts(e *evidence) []*check.Verdict {
	ends := &check.Verdict{Name: "a node whose disk fails ends itself", Note: fmt.Sprintf("%d times", len(a.ended))}
	acks := &check.Verdict{Name: "a leader whose disk fails acknowledges nothing"}
	led := 0
	for _, f := range a.ended {
		if f.wrong != "" {
			find(ends, "%s", f.wrong)
		}
		if !f.led {
			continue
		}
		led++
		for _, x := range e.history.Exchanges {
			if x.Method != http.MethodGet && x.Node == f.node && x.Status == http.StatusOK && x.Start > f.from && x.End < f.to {
				find(acks, "exchange %d, by %s, though its disk fails", x.ID, f.node)
			}
		}
	}
	acks.Note = fmt.Sprintf("%d times", led)
	return []*check.Verdict{ends, acks}
}
