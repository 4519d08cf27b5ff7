package main

import (
	"io"
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// A terminal is one whose foreground we have handed to the command's group, so
// that it can read and Ctrl-C reaches it. nil: none, and all methods do nothing.
type terminal struct {
	fd, own int // own: our process group
}

// foregroundTerminal is the terminal that we stand in the foreground of. If stdout
// is not a terminal, we may share the foreground with a pager that needs it.
func foregroundTerminal() *terminal {
	t := &terminal{fd: int(os.Stdin.Fd()), own: syscall.Getpgrp()}
	if !isTerminal(os.Stdout) || t.fd != 0 {
		return nil
	}
	if front, err := terminalGroup(t.fd); err != nil || front != t.own {
		return nil
	}
	return t
}

// hand gives the foreground to a group, if it is ours to give.
func (t *terminal) hand(group int) {
	if t == nil {
		return
	}
	if front, err := terminalGroup(t.fd); err == nil && front == t.own {
		setTerminalGroup(t.fd, group)
	}
}

// takeBack is for when the command has ended with this status. A Ctrl-C that ended
// it would have reached our group, too, if the command had not stood in front: a
// script that runs us shall end as well.
func (t *terminal) takeBack(s syscall.WaitStatus) {
	if t == nil {
		return
	}
	signal.Ignore(syscall.SIGTTOU) // we are in the background
	setTerminalGroup(t.fd, t.own)
	if s.Signaled() && (s.Signal() == syscall.SIGINT || s.Signal() == syscall.SIGQUIT) {
		syscall.Kill(-t.own, s.Signal()) // we have asked to be told of it ourselves
	}
}

// isTerminal says whether w is the terminal that this process belongs to.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := terminalGroup(int(f.Fd()))
	return err == nil
}

func terminalGroup(fd int) (int, error) {
	var group int32
	if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group))); err != 0 {
		return 0, err
	}
	return int(group), nil
}

func setTerminalGroup(fd, group int) {
	g := int32(group)
	// Without the foreground a command still runs; there is nobody to tell.
	syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCSPGRP, uintptr(unsafe.Pointer(&g)))
}
