package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// locked is a running `fencepost lock`. Its output goes to a file, so that what
// outlives the command cannot hold up the test.
type locked struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  string // path
	errs *bytes.Buffer
	done chan struct{}
	took time.Duration // valid when done
}

func (c *processes) urls() string {
	var urls []string
	for _, n := range c.nodes {
		urls = append(urls, n.url)
	}
	return strings.Join(urls, ",")
}

// lock starts `fencepost lock ARGS`, by default at all nodes.
func (c *processes) lock(t *testing.T, args ...string) *locked {
	t.Helper()
	return startLock(t, c.bin, append(os.Environ(), "FENCEPOST_ENDPOINTS="+c.urls()), args...)
}

func startLock(t *testing.T, bin string, env []string, args ...string) *locked {
	t.Helper()
	l := &locked{t: t, cmd: exec.Command(bin, append([]string{"lock"}, args...)...), out: filepath.Join(t.TempDir(), "out"), errs: new(bytes.Buffer), done: make(chan struct{})}
	out, err := os.Create(l.out)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	errs, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l.cmd.Env, l.cmd.Stdout, l.cmd.Stderr = env, out, w
	l.cmd.SysProcAttr = new(syscall.SysProcAttr)
	began := time.Now()
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		l.cmd.Process.Kill()
		<-l.done
	})
	go func() {
		l.cmd.Wait()
		l.took = time.Since(began)
		errs.SetReadDeadline(time.Now().Add(time.Second)) // a child that lives on keeps it open
		l.errs.ReadFrom(errs)
		errs.Close()
		close(l.done)
	}()
	return l
}

func (l *locked) signal(s syscall.Signal) {
	l.t.Helper()
	if err := l.cmd.Process.Signal(s); err != nil {
		l.t.Fatal(err)
	}
}

// lines waits until the command has written so many lines.
func (l *locked) lines(count int) []string {
	l.t.Helper()
	var lines []string
	eventually(l.t, fmt.Sprintf("the command has written %d lines", count), func() bool {
		select {
		case <-l.done:
			lines = l.written()
			if len(lines) < count {
				l.t.Fatalf("lock has ended, exit %d: %s", l.cmd.ProcessState.ExitCode(), l.errs)
			}
		default:
			lines = l.written()
		}
		return len(lines) >= count
	})
	return lines
}

func (l *locked) written() []string {
	l.t.Helper()
	b, err := os.ReadFile(l.out)
	if err != nil {
		l.t.Fatal(err)
	}
	lines := strings.SplitAfter(string(b), "\n")
	lines = lines[:len(lines)-1] // the last has no end yet
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\n")
	}
	return lines
}

// pids are the numbers that the command wrote in its first line.
func (l *locked) pids() (pids []int) {
	l.t.Helper()
	for _, f := range strings.Fields(l.lines(1)[0]) {
		n, err := strconv.Atoi(f)
		if err != nil {
			l.t.Fatal(err)
		}
		pids = append(pids, n)
	}
	return pids
}

func (l *locked) exit() int {
	l.t.Helper()
	select {
	case <-l.done:
	case <-time.After(30 * time.Second):
		l.t.Fatal("lock does not end")
	}
	return l.cmd.ProcessState.ExitCode()
}

func (l *locked) wantExit(want int) {
	l.t.Helper()
	if got := l.exit(); got != want {
		l.t.Errorf("exit %d, want %d; stderr: %s", got, want, l.errs)
	}
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func wantGone(t *testing.T, pids []int) {
	t.Helper()
	for i, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d of %v lives on", i, pids)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func (c *processes) wantFree(t *testing.T, name string) {
	t.Helper()
	if a := c.get(c.nodes[0], "/v1/leases/"+name); a.status != 200 || a.body["held"] != false {
		t.Errorf("lease %s is not free: %s", name, a)
	}
}
