package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"syscall"
	"time"

	"fencepost/cluster/check"
)

// hungDisk is N12: the leader's disk hangs, really: its file system is frozen, and no
// signal ends a thread that writes to it. The node must close what it listens on,
// and another must lead. The cluster's clock stands still meanwhile, so none of those
// who renew (keepers.go) may lose a lease, though some have a TTL shorter than that.
type hungDisk struct {
	r     *rand.Rand
	disks diskSet
	hangs takeovers
	keepers
}

func (a *hungDisk) prepare(ctx context.Context, c *cluster) (undo func() error, err error) {
	a.disks, undo, err = layDisks(ctx, c)
	return undo, errors.Join(err, need("fsfreeze", "util-linux"))
}

func (a *hungDisk) land(ctx context.Context, c *cluster) (*landing, error) {
	if err := a.keep(ctx, c); err != nil {
		return nil, err
	}
	l, err := c.claimLeader(ctx)
	if err != nil {
		return nil, err
	}
	at, began := c.recorder.Now(), time.Now()
	l.node.mayEnd()
	thaw, err := freeze(ctx, a.disks[l.node])
	if err != nil {
		l.node.release()
		return nil, err
	}
	what := fmt.Sprintf("the disk of %s hangs, which led in term %d", l.node.name, l.term)
	extra := between(a.r, time.Second, 4*time.Second)
	return &landing{at: at, what: what, heal: func(ctx context.Context) (evidence string, err error) {
		defer l.node.release()
		a.hangs.watch(ctx, c, l, l.node, began)
		evidence = "its process had gone before the thaw"
		if l.node.running() {
			evidence = "its process was there until the thaw, and deaf"
		}
		err = errors.Join(sleep(ctx, extra), thaw())
		if err == nil {
			err = a.hangs.over(l.node)
		}
		if err != nil {
			return "", err
		}
		return evidence, l.node.restart(ctx)
	}}, nil
}

func (a *hungDisk) verdicts(*evidence) []*check.Verdict {
	return []*check.Verdict{a.hangs.verdict(), a.keepers.verdict()}
}

// freeze makes every write to a disk wait for the thaw. Who thaws is a process of its
// own, which also does it when we end: a frozen file system would outlive us.
func freeze(ctx context.Context, d *disk) (thaw func() error, err error) {
	guard := exec.Command("sh", "-c", `read -r line; exec fsfreeze --unfreeze "$1"`, "sh", d.node.dir)
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to all of us is none to it
	var pipe io.WriteCloser
	if pipe, err = guard.StdinPipe(); err != nil {
		return nil, err
	}
	if err := guard.Start(); err != nil {
		return nil, err
	}
	thaw = func() error {
		if err := errors.Join(pipe.Close(), guard.Wait()); err != nil {
			return fmt.Errorf("thaw the disk of %s: %w", d.node.name, err)
		}
		return nil
	}
	if err := run1(ctx, "fsfreeze", "--freeze", d.node.dir); err != nil {
		thaw() // perhaps it had been done
		return nil, err
	}
	return thaw, nil
}

// deaf waits until nothing listens on a node's ports; otherwise it says what does.
func deaf(ctx context.Context, n *node, until time.Time) (wrong string) {
	for _, addr := range []string{n.http, n.raft} {
		for {
			c, err := net.DialTimeout("tcp", addr, askBound)
			if errors.Is(err, syscall.ECONNREFUSED) {
				break
			}
			if err == nil {
				c.Close()
			}
			if time.Now().After(until) || sleep(ctx, 50*time.Millisecond) != nil {
				return fmt.Sprintf("%s still listens on %s, though its disk has hung for %s", n.name, addr, watchdogBound)
			}
		}
	}
	return ""
}
