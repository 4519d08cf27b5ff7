package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"
	"unsafe"

	"fencepost/cluster/check"
)

// blockedLog is N23: the leader's stderr is a pipe that is full and that nobody
// reads. Serving must go on.
type blockedLog struct {
	r     *rand.Rand
	found []string
}

const (
	// fullBound is how long a node that logs every detail may take to fill a pipe.
	fullBound = 20 * time.Second
	pipeBytes = 4096 // the least that the kernel gives
)

func (a *blockedLog) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.claimLeader(ctx)
	if err != nil {
		return nil, err
	}
	n, launch := l.node, l.node.launch
	r, w, err := os.Pipe()
	if err != nil {
		n.release()
		return nil, err
	}
	heal := func(ctx context.Context) error {
		defer n.release()
		n.launch = launch
		// Stopped first: what a stop says is said into the pipe, too.
		err := errors.Join(r.Close(), w.Close(), n.stop())
		return errors.Join(err, n.restart(ctx))
	}
	const setPipeSize = 1031 // F_SETPIPE_SZ
	syscall.Syscall(syscall.SYS_FCNTL, r.Fd(), setPipeSize, pipeBytes)
	n.launch = func(n *node) *exec.Cmd {
		cmd := launch(n)
		cmd.Args = append(cmd.Args, "--log-level", "trace")
		cmd.Stderr = w
		return cmd
	}
	if err := errors.Join(n.stop(), n.start()); err != nil {
		return nil, errors.Join(err, heal(ctx))
	}
	at := c.recorder.Now()
	if err := a.fill(ctx, c, n, r); err != nil {
		return nil, errors.Join(err, heal(ctx))
	}
	full := c.recorder.Now()
	hold := between(a.r, 3*time.Second, 6*time.Second)
	return &landing{
		at: at, what: fmt.Sprintf("nobody reads what %s logs, for %s", n.name, hold.Round(time.Millisecond)), hold: hold,
		heal: func(ctx context.Context) (string, error) {
			took := time.Duration(c.recorder.Now() - full)
			code, _, err := ask(ctx, n.url()+"/readyz")
			if err != nil || code != http.StatusOK {
				a.found = append(a.found, fmt.Sprintf("%s, whose log is blocked, is not ready after %s: %d %v", n.name, took.Round(time.Millisecond), code, err))
			}
			return fmt.Sprintf("pipe full, %d bytes", waiting(r)), heal(ctx)
		},
	}, nil
}

// fill waits until the pipe takes no more: what is in it does not grow though the
// node has lines to write.
func (a *blockedLog) fill(ctx context.Context, c *cluster, n *node, r *os.File) error {
	for began, last := time.Now(), -1; time.Since(began) < fullBound; {
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		if !n.running() {
			return fmt.Errorf("%s has ended", n.name)
		}
		if got := waiting(r); got > pipeBytes/2 && got == last {
			return nil
		} else {
			last = got
		}
	}
	return fmt.Errorf("%w: the pipe did not fill", errMissed)
}

// waiting is how many bytes are in the pipe.
func waiting(r *os.File) int {
	var n int32
	const fionread = 0x541b
	syscall.Syscall(syscall.SYS_IOCTL, r.Fd(), fionread, uintptr(unsafe.Pointer(&n)))
	return int(n)
}

func (a *blockedLog) verdicts(*evidence) []*check.Verdict {
	return []*check.Verdict{{Name: "a node whose log is blocked goes on", Findings: a.found, Note: "ready all the time"}}
}
