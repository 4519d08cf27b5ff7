package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fencepost/client"
	"fencepost/cluster/check"
)

const (
	holderLease = "holder"
	holderTTL   = time.Second
	newsBound   = 20 * time.Second
)

// pauseHolder is N5. The holder is a process of its own, so that all of it stops:
// its timers, its connections, and a write that it was about to send.
type pauseHolder struct {
	r       *rand.Rand
	child   *exec.Cmd
	exited  chan struct{}
	told    journal
	history string
	found   []string
	slept   int
}

func (a *pauseHolder) start(c *cluster) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	a.history = filepath.Join(c.dir, "holder.history")
	a.child = exec.Command(self, "holder", "-endpoints", strings.Join(c.endpoints(0), ","), "-name", holderLease, "-ttl", holderTTL.String(), "-history", a.history)
	a.child.Stderr = os.Stderr
	a.child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := a.child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := a.child.Start(); err != nil {
		return err
	}
	a.exited = make(chan struct{})
	go func() {
		a.told.follow(out)
		a.child.Wait()
		close(a.exited)
	}()
	return nil
}

// hears waits for news of a kind that were learned after an instant.
func (a *pauseHolder) hears(ctx context.Context, after int64, kinds ...string) error {
	ctx, cancel := context.WithTimeout(ctx, newsBound)
	defer cancel()
	for {
		for _, n := range a.told.since(after) {
			for _, k := range kinds {
				if n.What == k {
					return nil
				}
			}
		}
		select {
		case <-a.exited:
			return errors.New("the holder has ended")
		default:
		}
		if sleep(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("the holder did not tell of %s within %s", strings.Join(kinds, " or "), newsBound)
		}
	}
}

func (a *pauseHolder) land(ctx context.Context, c *cluster) (*landing, error) {
	if a.child == nil {
		if err := a.start(c); err != nil {
			return nil, err
		}
	}
	if err := a.hears(ctx, monotonic(), newsWrote); err != nil {
		return nil, err
	}
	if err := sleep(ctx, between(a.r, 0, 200*time.Millisecond)); err != nil {
		return nil, err
	}
	at := c.recorder.Now()
	if err := a.child.Process.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	if err := untilStopped(ctx, a.child.Process.Pid); err != nil {
		return nil, err
	}
	stopped := monotonic()
	a.slept++
	// In every other case somebody takes over, so that its token is superseded.
	var next *heir
	if a.slept%2 == 1 {
		next = inherit(c)
	}
	hold := between(a.r, holderTTL*3/2, 4*holderTTL)
	return &landing{
		at: at, what: fmt.Sprintf("stop the holder of %s for %s", holderLease, hold.Round(time.Millisecond)), hold: hold,
		heal: func(ctx context.Context) (string, error) {
			token, errNext := next.holds(ctx)
			woken := monotonic()
			if err := a.child.Process.Signal(syscall.SIGCONT); err != nil {
				return "", err
			}
			err := a.hears(ctx, woken, newsRefused, newsSlipped)
			writes, errEnd := next.end(ctx)
			if err := errors.Join(errNext, err, errEnd); err != nil {
				return "", err
			}
			a.judge(stopped, woken, token)
			if next == nil {
				return "it told of its loss, and wrote on", nil
			}
			return fmt.Sprintf("it told of its loss, and wrote on under token %d, with which %d writes were made", token, writes), nil
		},
	}, nil
}

// untilStopped waits until no thread of a process runs any more: a signal takes a
// moment to reach those on other processors.
func untilStopped(ctx context.Context, pid int) error {
	for {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(tasks) == 0 {
			return fmt.Errorf("process %d has no threads (%v)", pid, err)
		}
		running := false
		for _, t := range tasks {
			stat, err := os.ReadFile(t)
			if err != nil {
				return err
			}
			_, state, _ := bytes.Cut(stat, []byte(") "))
			running = running || !bytes.HasPrefix(state, []byte("T"))
		}
		if !running {
			return nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// judge looks at what the holder told after it woke up. What began before it was
// stopped may have been applied before: only its answer was late.
func (a *pauseHolder) judge(stopped, woken int64, newer uint64) {
	lost := false
	for _, n := range a.told.since(woken) {
		if n.Began < stopped && n.What == newsWrote {
			continue
		}
		switch n.What {
		case newsLost:
			lost = true
		case newsSlipped:
			if newer != 0 && n.Token < newer {
				a.found = append(a.found, fmt.Sprintf("a write with token %d was accepted under token %d", n.Token, newer))
			}
		default:
			if !lost {
				a.found = append(a.found, fmt.Sprintf("before it learned of its loss the holder was told %s %s", n.What, n.Text))
			}
		}
		if n.What == newsAcquired {
			return // the next lease
		}
	}
}

// An heir takes the lease when it has ended, and writes under it until it is told to
// end. A nil heir does nothing.
type heir struct {
	stop   context.CancelFunc
	held   chan struct{} // closed once it has written
	done   chan struct{}
	token  uint64 // from held on
	writes int    // from done on
	err    error  // from done on
}

func inherit(c *cluster) *heir {
	ctx, stop := context.WithCancel(context.Background())
	h := &heir{stop: stop, held: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(h.done)
		h.err = h.hold(ctx, c)
	}()
	return h
}

func (h *heir) hold(ctx context.Context, c *cluster) error {
	cl, err := client.New(c.endpoints(1), client.WithAttemptTimeout(attemptBound), client.WithTransport(c.recorder.Transport("heir", &http.Transport{})))
	if err != nil {
		return err
	}
	defer cl.Close()
	bounded, cancel := context.WithTimeout(context.Background(), 3*newsBound)
	defer cancel()
	l, err := cl.Acquire(bounded, holderLease, client.TTL(maxTTL), client.Wait(newsBound), client.Holder("heir"))
	if err != nil {
		return err
	}
	h.token = l.Token()
	for ; ctx.Err() == nil || h.writes == 0; h.writes++ {
		if _, err := cl.Put(bounded, holderKey(holderLease), fmt.Appendf(nil, "heir-%d-%d", h.token, h.writes), l.Guard(client.Held)); err != nil {
			return err
		}
		if h.writes == 0 {
			close(h.held)
		}
		sleep(ctx, 20*time.Millisecond)
	}
	return l.Release(bounded)
}

func (h *heir) holds(ctx context.Context) (token uint64, err error) {
	if h == nil {
		return 0, nil
	}
	select {
	case <-h.held:
		return h.token, nil
	case <-h.done:
		return 0, h.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (h *heir) end(ctx context.Context) (writes int, err error) {
	if h == nil {
		return 0, nil
	}
	h.stop()
	select {
	case <-h.done:
		return h.writes, h.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// finish ends the holder and takes over its history.
func (a *pauseHolder) finish(c *cluster) (*check.History, error) {
	if a.child == nil {
		return nil, nil
	}
	a.child.Process.Signal(syscall.SIGCONT)
	a.child.Process.Signal(syscall.SIGTERM)
	select {
	case <-a.exited:
	case <-time.After(newsBound):
		return nil, errors.Join(errors.New("the holder does not end"), a.child.Process.Kill())
	}
	f, err := os.Open(a.history)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, err := check.ReadHistory(f)
	if err != nil {
		return nil, err
	}
	offset, doubt := clockOffset(c.recorder)
	return shifted(h, -offset, doubt), nil
}

func (a *pauseHolder) verdicts(*evidence) []*check.Verdict {
	return []*check.Verdict{{Name: "a holder that slept learns of its loss first, and is fenced", Findings: a.found, Note: fmt.Sprintf("stopped %d times", a.slept)}}
}
