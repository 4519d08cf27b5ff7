package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"fencepost/client"
)

const (
	// toldGrace is from TERM to KILL when the cluster has said that the lease is
	// no longer ours. Then somebody else may hold it already, and every moment
	// counts.
	toldGrace = 200 * time.Millisecond
	// leftGrace is from TERM to KILL for what an ended command has left behind.
	leftGrace = 500 * time.Millisecond
	// goneBound is how long processes that got KILL may take to be gone. They are
	// at once, unless the kernel holds them (a dead NFS server).
	goneBound = 10 * time.Second
	gonePoll  = 5 * time.Millisecond
)

// holding is a command that runs under a lease. One goroutine uses it.
type holding struct {
	lease          *client.Lease
	group          *group
	signals        <-chan os.Signal
	killAfter, ask time.Duration
	say            func(format string, args ...any)
}

// run forwards signals, and ends the command before the lease can be another's. It
// returns when the command itself has ended; lost says whether, and why, that is
// our doing.
//
// The lease's deadline is a margin of a tenth of the TTL before the first instant
// at which somebody else can be granted it (P7). TERM is sent so long before the
// deadline, and KILL at it, so the margin is for the KILL to take effect, and for
// clocks.
func (h *holding) run() (status syscall.WaitStatus, lost error) {
	warn := time.NewTimer(h.untilAsked())
	defer warn.Stop()
	var kill <-chan time.Time
	gone := h.lease.Lost()
	for {
		select {
		case status = <-h.group.exited:
			return status, lost
		case s := <-h.signals:
			h.forward(s)
			if s == syscall.SIGTERM && kill == nil {
				kill = time.After(h.killAfter)
			}
		case s := <-h.group.stopped:
			h.resume(s)
		case <-warn.C:
			if left := h.untilAsked(); left > 0 { // renewed since
				warn.Reset(left)
				continue
			}
			lost = fmt.Errorf("lease %s (token %d) could not be renewed, so the command was stopped", h.lease.Name(), h.lease.Token())
			h.say("lease %s cannot be renewed: TERM, and KILL in %s", h.lease.Name(), h.ask)
			h.end(syscall.SIGTERM)
			kill = time.After(h.ask) // also if it is renewed after all
		case <-gone:
			gone = nil
			lost = h.lease.Err()
			if h.toldLost() {
				h.say("%v: TERM, and KILL in %s", lost, toldGrace)
				h.end(syscall.SIGTERM)
				kill = time.After(min(toldGrace, h.killAfter))
				continue
			}
			h.end(syscall.SIGKILL)
		case <-kill:
			h.end(syscall.SIGKILL)
		}
	}
}

// untilAsked is how long it is until the command has to be asked to end, unless
// the lease is renewed before.
func (h *holding) untilAsked() time.Duration { return time.Until(h.lease.Deadline()) - h.ask }

// toldLost says that the cluster has ended the lease, and not our clocks.
func (h *holding) toldLost() bool {
	var lost *client.LostError
	return errors.As(h.lease.Err(), &lost) && lost.Reason != client.LostDeadline
}

// lostNow is why the lease is lost, if it is, also when our goroutines have not
// come to hear of it.
func (h *holding) lostNow() error {
	if err := h.lease.Err(); errors.Is(err, client.ErrLost) {
		return err
	}
	return nil
}

// forward hands a signal on that was sent to us.
func (h *holding) forward(s os.Signal) {
	if s == syscall.SIGCONT { // perhaps we were brought to the foreground
		h.group.terminal.hand(h.group.id)
	}
	h.end(s.(syscall.Signal))
}

func (h *holding) end(s syscall.Signal) {
	if err := h.group.signal(s); err != nil {
		h.say("the command could not be sent %q, and goes on: %v", s, err)
	}
}

// resume continues a command that was stopped from the terminal that it got from
// us: a lease runs on, so work under it cannot wait for somebody to come back.
func (h *holding) resume(s syscall.Signal) {
	if s == syscall.SIGTSTP && h.group.terminal != nil {
		h.say("the command goes on: it cannot be suspended while it holds lease %s", h.lease.Name())
		h.end(syscall.SIGCONT)
	}
}

// finish ends what the command has left behind in its group. An error: some of it
// may still be there, and so the lease must not be released.
func (h *holding) finish() error {
	if h.group.empty() {
		return nil
	}
	gone := h.lease.Lost()
	kill := time.NewTimer(leftGrace)
	defer kill.Stop()
	poll := time.NewTicker(gonePoll)
	defer poll.Stop()
	var bound <-chan time.Time
	h.end(syscall.SIGTERM)
	for !h.group.empty() {
		select {
		case <-poll.C:
			continue
		case <-bound:
			return fmt.Errorf("processes of group %d have not ended %s after KILL", h.group.id, goneBound)
		case s := <-h.signals:
			h.forward(s)
			continue
		case <-gone:
			gone = nil
		case <-kill.C:
		}
		h.end(syscall.SIGKILL)
		if bound == nil {
			bound = time.After(goneBound)
		}
	}
	return nil
}
