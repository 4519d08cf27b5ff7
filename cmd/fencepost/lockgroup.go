package main

import (
	"os"
	"runtime"
	"syscall"
)

// A group is a command and whatever it starts that stays in its process group.
// Its methods are for one goroutine.
type group struct {
	id       int
	terminal *terminal               // that the group got from us; nil: none
	exited   chan syscall.WaitStatus // of the command itself, once
	stopped  chan syscall.Signal     // that the command itself was stopped by
	over     bool                    // nothing of it is left
}

// startGroup starts a command in a group of its own, with our stdin, stdout and
// stderr. It may be used once in a process: all children are reaped.
func startGroup(path string, argv, env []string) (*group, error) {
	adoptOrphans()
	g := &group{
		terminal: foregroundTerminal(),
		exited:   make(chan syscall.WaitStatus, 1), stopped: make(chan syscall.Signal, 1),
	}
	attr := &syscall.SysProcAttr{Setpgid: true, Foreground: g.terminal != nil}
	dieWithParent(attr)
	started := make(chan error, 1)
	go func() {
		// The kernel's "parent" whose death kills the command is this thread, so
		// it must live, and do nothing else, until the command has ended.
		runtime.LockOSThread()
		p, err := os.StartProcess(path, argv, &os.ProcAttr{Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr})
		if err != nil {
			started <- err
			return
		}
		g.id = p.Pid
		p.Release() // we wait ourselves, to see it stop and to reap orphans
		started <- nil
		g.reap()
	}()
	return g, <-started
}

// reap waits for the command. Others that it sees are orphans from below it.
func (g *group) reap() {
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &s, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // not ours to wait for: cannot be, and must not hang
			g.exited <- syscall.WaitStatus(exitRefused << 8)
			return
		case pid != g.id:
		case s.Stopped():
			select {
			case g.stopped <- s.StopSignal():
			default:
			}
		default:
			g.exited <- s
			return
		}
	}
}

// signal sends to the whole group. It fails if no process of it may be signalled,
// such as a sudo. A stopped process sees a TERM only when it goes on.
func (g *group) signal(s syscall.Signal) error {
	if g.over {
		return nil // the number may be another's by now
	}
	if err := syscall.Kill(-g.id, s); err != nil && err != syscall.ESRCH {
		return err
	}
	if s == syscall.SIGTERM {
		syscall.Kill(-g.id, syscall.SIGCONT)
	}
	return nil
}

// empty says whether none of the group is left; for after the command itself has
// been reaped. Orphans are ours to reap, or they would be in the group for ever.
func (g *group) empty() bool {
	for !g.over {
		var s syscall.WaitStatus
		if pid, err := syscall.Wait4(-1, &s, syscall.WNOHANG, nil); err == nil && pid > 0 || err == syscall.EINTR {
			continue
		}
		if err := syscall.Kill(-g.id, 0); err != syscall.ESRCH {
			return false
		}
		g.over = true
	}
	return true
}
