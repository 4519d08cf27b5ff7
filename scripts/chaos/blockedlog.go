package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"fencepost/cluster/check"
)

// blockedLog is N23: the leader's stderr is a pipe that is full and that nobody
// reads, and it has something to say. Serving must go on.
type blockedLog struct {
	r     *rand.Rand
	n     int
	pipes map[*node]*logPipe
	times []blocked
}

// A blocked time is one in which a log was; from is a while later, when whoever has
// to take over has done so.
type blocked struct {
	what     string
	from, to int64
}

const (
	fullBound = 10 * time.Second
	// blockedGrace is how long service may be gone when the log blocks.
	blockedGrace = 3 * time.Second
	pipeBytes    = 4096 // the least that the kernel gives
)

// prepare gives each node a pipe in place of its file; they are read until a hit.
func (a *blockedLog) prepare(_ context.Context, c *cluster) (undo func() error, err error) {
	a.pipes = make(map[*node]*logPipe)
	undo = func() error {
		var errs []error
		for _, p := range a.pipes {
			errs = append(errs, p.close())
		}
		return errors.Join(errs...)
	}
	for _, n := range c.nodes {
		p, err := newLogPipe(n.log)
		if err != nil {
			return undo, err
		}
		a.pipes[n] = p
		launch := n.launch
		n.launch = func(n *node) *exec.Cmd {
			cmd := launch(n)
			cmd.Stderr = p.w
			return cmd
		}
	}
	return undo, nil
}

func (a *blockedLog) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.claimLeader(ctx)
	if err != nil {
		return nil, err
	}
	p := a.pipes[l.node]
	at := c.recorder.Now()
	if err := p.block(ctx); err != nil {
		p.unblock()
		l.node.release()
		return nil, err
	}
	// What is no member is logged by all versions; that this one is stuck then is
	// seen by its further members.
	for range 3 {
		knock(l.node)
	}
	what := fmt.Sprintf("nobody reads what %s logs, which led in term %d", l.node.name, l.term)
	// In every other case it has more to say, and by its main loop.
	a.n++
	var victim *node
	if a.n%2 == 0 {
		if victim = claim(c.others(l.node)...); victim != nil {
			what += ", and " + victim.name + " is killed"
			err = victim.kill()
		}
	}
	full := c.recorder.Now()
	return &landing{
		at: at, what: what, hold: blockedGrace + between(a.r, 2*time.Second, 4*time.Second),
		heal: func(ctx context.Context) (string, error) {
			defer l.node.release()
			a.times = append(a.times, blocked{what, full + int64(blockedGrace), c.recorder.Now()})
			evidence := fmt.Sprintf("%d bytes in its pipe", p.waiting())
			ready, _, errReady := ask(ctx, l.node.url()+"/readyz")
			if errReady != nil {
				evidence += ", no answer to /readyz"
			} else if ready != http.StatusOK {
				evidence += ", not ready"
			}
			p.unblock()
			if victim != nil {
				defer victim.release()
				err = errors.Join(err, victim.restart(ctx))
			}
			return evidence, errors.Join(err, l.node.restart(ctx))
		},
	}, nil
}

// knock speaks to a node's Raft port as no member does.
func knock(n *node) {
	c, err := net.DialTimeout("tcp", n.raft, askBound)
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(200 * time.Millisecond))
	c.Write(bytes.Repeat([]byte("x"), 256))
	c.Read(make([]byte, 1))
}

func (a *blockedLog) verdicts(e *evidence) []*check.Verdict {
	v := &check.Verdict{Name: "service goes on while a log is blocked", Note: fmt.Sprintf("%d times", len(a.times))}
	for _, t := range a.times {
		count := 0
		for _, x := range e.history.Exchanges {
			if x.Method != http.MethodGet && x.Status == http.StatusOK && x.Start >= t.from && x.End <= t.to {
				count++
			}
		}
		if count == 0 {
			find(v, "%s: in the %s after the first %s nothing was acknowledged", t.what, time.Duration(t.to-t.from).Round(time.Millisecond), blockedGrace)
		}
	}
	return []*check.Verdict{v}
}

// A logPipe takes what a node logs to its file, unless it is blocked.
type logPipe struct {
	r, w *os.File
	log  *os.File
	done chan struct{}

	mu      sync.Mutex // guards blocked
	open    *sync.Cond // it has changed
	blocked bool
}

func newLogPipe(log string) (*logPipe, error) {
	// Not os.Pipe: the node gets the same end that we have, and it must block.
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, err
	}
	p := &logPipe{r: os.NewFile(uintptr(fds[0]), "pipe"), w: os.NewFile(uintptr(fds[1]), "pipe"), done: make(chan struct{})}
	p.open = sync.NewCond(&p.mu)
	const setPipeSize = 1031 // F_SETPIPE_SZ
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fds[1]), setPipeSize, pipeBytes); errno != 0 {
		return nil, errors.Join(errno, p.r.Close(), p.w.Close())
	}
	var err error
	if p.log, err = os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, errors.Join(err, p.r.Close(), p.w.Close())
	}
	go p.drain()
	return p, nil
}

func (p *logPipe) drain() {
	defer close(p.done)
	buffer := make([]byte, 64<<10)
	for {
		p.mu.Lock()
		for p.blocked {
			p.open.Wait()
		}
		p.mu.Unlock()
		n, err := p.r.Read(buffer)
		p.log.Write(buffer[:n])
		if err != nil {
			return
		}
	}
}

func (p *logPipe) set(blocked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked = blocked
	p.open.Broadcast()
}

func (p *logPipe) unblock() { p.set(false) }

// block stops the reading, and fills the pipe until it takes no more.
func (p *logPipe) block(ctx context.Context) error {
	p.set(true)
	filler := bytes.Repeat([]byte("chaos fills this pipe\n"), 16)
	go func() {
		for {
			p.mu.Lock()
			blocked := p.blocked
			p.mu.Unlock()
			if !blocked {
				return
			}
			p.w.Write(filler) // waits until the pipe is read again
		}
	}()
	for began, last := time.Now(), -1; time.Since(began) < fullBound; {
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
		got := p.waiting()
		if got > pipeBytes/2 && got == last {
			return nil
		}
		last = got
	}
	return fmt.Errorf("%w: the pipe did not fill", errMissed)
}

// waiting is how many bytes are in the pipe.
func (p *logPipe) waiting() int {
	var n int32
	const fionread = 0x541b
	syscall.Syscall(syscall.SYS_IOCTL, p.r.Fd(), fionread, uintptr(unsafe.Pointer(&n)))
	return int(n)
}

// close is for when the node has ended.
func (p *logPipe) close() error {
	p.unblock()
	err := p.w.Close()
	<-p.done
	return errors.Join(err, p.r.Close(), p.log.Close())
}
