package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	readyBound = 30 * time.Second
	stopBound  = 15 * time.Second
)

// A node is one server process, or will be. Its fields up to launch may be changed
// by a preparer, or while it is down by whoever has claimed it.
type node struct {
	name string
	addr string // its own, in the namespace; also what its packets come from
	http string // host:port of the API
	raft string // host:port
	uid  int    // it runs as; 0: as we do
	dir  string // data directory: made by start if it is not there
	log  string // file that gets stdout and stderr
	args []string
	// launch makes the command that start starts: bin with args, unless replaced.
	// Whatever it runs has to be, or to exec, the node itself, since signals go to
	// its pid. start sets the user, and stdout and stderr where they are nil.
	launch func(n *node) *exec.Cmd

	claimed sync.Mutex           // by whoever attacks it
	life    atomic.Pointer[life] // the newest; nil: never started
	exits   func(n *node, how string)
}

// life is a process from its start to its end.
type life struct {
	cmd      *exec.Cmd
	expected atomic.Bool // to end: somebody ends it
	exited   chan struct{}
}

func (n *node) url() string { return "http://" + n.http }

// claim takes the node for an attack; false: another has it.
func (n *node) claim() bool { return n.claimed.TryLock() }

func (n *node) release() { n.claimed.Unlock() }

// start starts the process and does not wait for it.
func (n *node) start() error { return n.begin(false) }

// begin is start; expected: it may end by itself from the first instant on.
func (n *node) begin(expected bool) error {
	if n.running() {
		return fmt.Errorf("start %s: it is running", n.name)
	}
	if _, err := os.Stat(n.dir); errors.Is(err, os.ErrNotExist) {
		if err := os.Mkdir(n.dir, 0o700); err != nil {
			return err
		}
		if n.uid != 0 {
			if err := os.Chown(n.dir, n.uid, n.uid); err != nil {
				return err
			}
		}
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := n.launch(n)
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	if cmd.Stderr == nil {
		cmd.Stderr = log
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if n.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(n.uid), Gid: uint32(n.uid)}
	}
	l := &life{cmd: cmd, exited: make(chan struct{})}
	l.expected.Store(expected)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	n.life.Store(l)
	go func() {
		cmd.Wait() // how it ended is in ProcessState
		if !l.expected.Load() && n.exits != nil {
			n.exits(n, cmd.ProcessState.String())
		}
		close(l.exited)
	}()
	return nil
}

func (n *node) running() bool {
	l := n.life.Load()
	if l == nil {
		return false
	}
	select {
	case <-l.exited:
		return false
	default:
		return true
	}
}

// pid is of the process, 0 if none runs.
func (n *node) pid() int {
	if !n.running() {
		return 0
	}
	return n.life.Load().cmd.Process.Pid
}

// mayEnd says that the process may end by itself from now on.
func (n *node) mayEnd() { n.life.Load().expected.Store(true) }

// signal reaches this very process, or nothing: its number is never reused while
// we have not waited for it.
func (n *node) signal(s syscall.Signal) error {
	l := n.life.Load()
	if l == nil {
		return fmt.Errorf("signal %s: it was never started", n.name)
	}
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		n.mayEnd()
	}
	if err := l.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", n.name, err)
	}
	return nil
}

// gone waits until the process has ended.
func (n *node) gone(bound time.Duration) error {
	select {
	case <-n.life.Load().exited:
		return nil
	case <-time.After(bound):
		return fmt.Errorf("%s is still running after %s", n.name, bound)
	}
}

// kill is kill -9; a process that has ended meanwhile is as good.
func (n *node) kill() error {
	if err := n.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return n.gone(stopBound)
}

// stop ends the process by TERM, as an operator does, and by KILL if that fails,
// which is an error.
func (n *node) stop() error {
	if !n.running() {
		return nil
	}
	errTerm := n.signal(syscall.SIGTERM)
	n.signal(syscall.SIGCONT) // a stopped one has to wake up to end
	err := n.gone(stopBound)
	if err == nil {
		return nil
	}
	return errors.Join(errTerm, err, n.kill())
}

// restart starts the process, if none runs, and waits until it is ready. One that
// ends instead is started again: that it ended is a finding, see cluster.note, and
// no reason not to look at what follows.
func (n *node) restart(ctx context.Context) (err error) {
	for range 3 {
		if !n.running() {
			if err := n.start(); err != nil {
				return err
			}
		}
		if err = n.ready(ctx); err == nil || n.running() {
			break
		}
	}
	return err
}

// ready waits until the node says that it is.
func (n *node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	last := "no answer"
	for {
		if !n.running() {
			return fmt.Errorf("%s has ended instead of getting ready: see %s", n.name, n.log)
		}
		status, body, err := ask(ctx, n.url()+"/readyz")
		switch {
		case err != nil:
			last = err.Error()
		case status == http.StatusOK:
			return nil
		default:
			last = fmt.Sprintf("%d %s", status, body)
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%s did not get ready: %s", n.name, last)
		}
	}
}
