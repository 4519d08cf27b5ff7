package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// openTerminal makes a pseudo-terminal: what is typed into and read from master is
// what a program has on its terminal.
func openTerminal(t *testing.T) (master, program *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	var number, unlock int32
	for _, call := range []struct {
		what uintptr
		arg  *int32
	}{{syscall.TIOCSPTLCK, &unlock}, {syscall.TIOCGPTN, &number}} {
		if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), call.what, uintptr(unsafe.Pointer(call.arg))); err != 0 {
			t.Fatal(err)
		}
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return master, program
}

// On a terminal the command can read, Ctrl-Z does not stop work under a lease that
// runs on, and Ctrl-C ends it.
func TestB66_CommandOnATerminal(t *testing.T) {
	t.Parallel()
	c := startProcesses(t, 1)
	master, program := openTerminal(t)
	c.mustAcquire("tty", 2*time.Second) // which it has to wait for
	cmd := exec.Command(c.bin, "lock", "tty", "--endpoints", c.urls(), "--", "sh", "-c", `read line; echo "got $line"; while :; do sleep 0.05; done`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		cmd.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
	})
	var mu sync.Mutex // guards shown
	var shown strings.Builder
	go func() {
		for buf := make([]byte, 4096); ; {
			n, err := master.Read(buf)
			if err != nil {
				return
			}
			mu.Lock()
			shown.Write(buf[:n])
			mu.Unlock()
		}
	}()
	see := func(what string) {
		t.Helper()
		eventually(t, "the terminal shows "+what, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(shown.String(), what)
		})
	}
	see("waiting for lease tty")
	master.WriteString("hello\n")
	see("got hello")
	master.WriteString("\x1a")
	see("it cannot be suspended")
	master.WriteString("\x03")
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("Ctrl-C does not end it")
	}
	if got := cmd.ProcessState.ExitCode(); got != 130 {
		t.Errorf("exit %d, want 130; the terminal shows %q", got, shown.String())
	}
	c.wantFree(t, "tty")
}
