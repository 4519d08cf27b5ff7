package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// syncCalls are what waits for the disk.
const syncCalls = "fdatasync,fsync"

// A tracer is an strace at a process, which makes some of its system calls fail or
// take long, until it is detached or the process ends.
type tracer struct {
	cmd    *exec.Cmd
	calls  string // file with a line for each call that was tampered with
	mark   string // that such a line has
	exited chan struct{}
}

const (
	attachBound = 15 * time.Second
	// detachBound is short: an strace that delays a call does so to the end.
	detachBound = 2 * time.Second
)

// tamper attaches to a node and injects, in strace's language: "error=EIO", of calls
// separated by commas. mark is the word that strace adds to the calls that it hits.
func tamper(ctx context.Context, n *node, calls, inject, mark string) (*tracer, error) {
	if err := need("strace", "strace"); err != nil {
		return nil, err
	}
	pid := n.pid()
	if pid == 0 {
		return nil, errBusy
	}
	said, err := os.CreateTemp(filepath.Dir(n.log), n.name+"-strace-*.log")
	if err != nil {
		return nil, err
	}
	defer said.Close()
	t := &tracer{calls: said.Name() + ".calls", mark: mark, exited: make(chan struct{})}
	t.cmd = exec.Command("strace", "-f", "-o", t.calls, "-p", fmt.Sprint(pid), "-e", "trace="+calls, "-e", "inject="+calls+":"+inject)
	t.cmd.Stderr = said
	// When it ends, however, the process goes on as if it had not been there.
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		t.cmd.Wait() // what it has said tells
		close(t.exited)
	}()
	for end := time.Now().Add(attachBound); ; {
		b, err := os.ReadFile(said.Name())
		if err == nil && strings.Contains(string(b), " attached") {
			return t, nil
		}
		select {
		case <-t.exited:
			return nil, fmt.Errorf("strace of %s: %s", n.name, strings.TrimSpace(string(b)))
		default:
		}
		if err = sleep(ctx, 10*time.Millisecond); err == nil && time.Now().After(end) {
			err = fmt.Errorf("strace did not attach to %s within %s", n.name, attachBound)
		}
		if err != nil {
			return nil, errors.Join(err, t.detach())
		}
	}
}

// hits is how many calls it has tampered with, as far as strace has written them: one
// that is under way counts if unfinished has come, too.
func (t *tracer) hits() (finished, begun int) {
	b, err := os.ReadFile(t.calls)
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, t.mark) {
			finished++
		}
		if strings.Contains(line, "(") && !strings.Contains(line, "resumed>") {
			begun++
		}
	}
	return finished, begun
}

// detach leaves the process alone again. It may be called again.
func (t *tracer) detach() error {
	for _, by := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.cmd.Process.Signal(by)
		select {
		case <-t.exited:
			return nil
		case <-time.After(detachBound):
		}
	}
	return errors.New("strace does not end")
}
