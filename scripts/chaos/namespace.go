package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// insideVariable holds, in the process inside, the namespace that it must not be
// in: its parent's.
const insideVariable = "CHAOS_OUTSIDE"

// userBase is one below the user of the first node. Each node has a user, by which
// the kernel chooses the address that its packets come from.
const userBase = 60010

func nodeAddr(i int) string  { return fmt.Sprintf("127.0.0.%d", 11+i) }
func proxyAddr(i int) string { return fmt.Sprintf("127.0.0.%d", 21+i) }
func nodeUser(i int) int     { return userBase + 1 + i }

func namespaceName() (string, error) { return os.Readlink("/proc/self/ns/net") }

// reexec runs this program again in a network and a mount namespace of its own, and returns
// its exit status. Signals that would end us are handed on: the process inside
// heals and ends what it started.
func reexec() (code int, err error) {
	outside, err := namespaceName()
	if err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	// It is sent a TERM when the thread that starts it ends: that must be the
	// process, not some idle thread.
	runtime.LockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVariable+"="+outside)
	// A group of its own: a Ctrl-C in the terminal reaches it once, by us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("make a namespace: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			cmd.Process.Signal(s)
		case err := <-done:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				if exit.ExitCode() < 0 {
					return 2, nil
				}
				return exit.ExitCode(), nil
			}
			return 0, err
		}
	}
}

// enter prepares the namespace that we were started in: loopback up, and an
// address for each node's user. It refuses to touch any other namespace.
func enter(ctx context.Context, outside string) error {
	here, err := namespaceName()
	if err != nil {
		return err
	}
	if here == outside || !strings.HasPrefix(outside, "net:[") {
		return errors.New("this is no network namespace of our own")
	}
	// What is mounted here is seen by nobody else, and gone when the last of us ends.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	commands := []string{
		"link set lo up",
		// The table of local addresses comes first by default, and says that all
		// packets to 127.0.0.0/8 are from 127.0.0.1. Ours have to come before it.
		"rule add pref 100 lookup local",
		"rule del pref 0",
	}
	for i := range nodeCount {
		commands = append(commands,
			fmt.Sprintf("rule add pref %d uidrange %d-%[2]d lookup %[1]d", 11+i, nodeUser(i)),
			fmt.Sprintf("route add local 127.0.0.0/8 dev lo src %s table %d", nodeAddr(i), 11+i))
	}
	for _, c := range commands {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, out)
		}
	}
	return nil
}
