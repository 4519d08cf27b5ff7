package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A cast is the processes of a demo, and the directory that they write to. For one
// goroutine.
type cast struct {
	program string
	dir     string
	servers []*server
	started []*child
}

// A child is a process that the demo has started.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

type server struct {
	*child
	name, url, log string
}

func newCast() (*cast, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	dir, err := os.MkdirTemp("", "fencepost-demo-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the data (TMPDIR says where): %w", err)
	}
	return &cast{program: program, dir: dir}, nil
}

// close ends everything that was started, stopped processes, too, and removes what
// they wrote.
func (c *cast) close() error {
	for _, p := range c.started {
		p.kill()
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("remove the demo's data: %w", err)
	}
	return nil
}

// start runs this program once more, in a process group of its own: Ctrl-C is for
// the demo, which then ends the others. If the demo is killed, so are they.
func (c *cast) start(cmd *exec.Cmd) (*child, error) {
	cmd.Env = outsideEnvironment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	p := &child{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread whose end would be the child's, too
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() // how it ended is nobody's concern
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(cmd.Args, " "), err)
	}
	c.started = append(c.started, p)
	return p, nil
}

// outsideEnvironment is ours without what would set flags.
func outsideEnvironment() (out []string) {
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "FENCEPOST_") {
			out = append(out, e)
		}
	}
	return out
}

func (p *child) pid() int { return p.cmd.Process.Pid }

// kill ends it with signal 9 and sees it gone.
func (p *child) kill() {
	p.cmd.Process.Kill() // it fails only if it has ended
	<-p.exited
}

const demoServers = 3

func (c *cast) startServers(ctx context.Context) error {
	ports, err := loopbackPorts(2 * demoServers)
	if err != nil {
		return err
	}
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	var peers []string
	for i := range demoServers {
		peers = append(peers, "http://"+address(2*i))
	}
	for i := range demoServers {
		s := &server{name: fmt.Sprintf("n%d", i+1), url: peers[i]}
		s.log = filepath.Join(c.dir, s.name+".log")
		log, err := os.Create(s.log)
		if err != nil {
			return err
		}
		cmd := exec.Command(c.program, "server", "--name", s.name, "--data-dir", filepath.Join(c.dir, s.name),
			"--http-addr", address(2*i), "--raft-addr", address(2*i+1),
			"--peers", strings.Join(peers, ","), "--expect", fmt.Sprint(demoServers))
		cmd.Stdout, cmd.Stderr = log, log
		s.child, err = c.start(cmd)
		log.Close()
		if err != nil {
			return err
		}
		c.servers = append(c.servers, s)
	}
	return c.awaitServers(ctx)
}

// awaitServers waits until all serve, or one has ended.
func (c *cast) awaitServers(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, s := range c.servers {
		go func() {
			select {
			case <-s.exited:
				cancel(fmt.Errorf("server %s has ended by itself", s.name))
			case <-ctx.Done():
			}
		}()
	}
	if !awaitReady(ctx, c.urls()) {
		return context.Cause(ctx)
	}
	return nil
}

func (c *cast) urls() (urls []string) {
	for _, s := range c.servers {
		urls = append(urls, s.url)
	}
	return urls
}

func (c *cast) server(name string) *server {
	for _, s := range c.servers {
		if s.name == name {
			return s
		}
	}
	return nil
}

func (c *cast) roll() string {
	var parts []string
	for _, s := range c.servers {
		parts = append(parts, fmt.Sprintf("%s (pid %d)", s.name, s.pid()))
	}
	return strings.Join(parts, ", ")
}

// lastWords is what servers that have ended by themselves have left, for when the
// story could not be told to its end.
func (c *cast) lastWords() error {
	const tail = 800
	var errs []error
	for _, s := range c.servers {
		select {
		case <-s.exited:
		default:
			continue
		}
		if b, err := os.ReadFile(s.log); err == nil && len(b) > 0 {
			errs = append(errs, fmt.Errorf("%s: %s", s.name, b[max(0, len(b)-tail):]))
		}
	}
	return errors.Join(errs...)
}

// loopbackPorts finds free ports, below those that the kernel gives to outgoing
// connections.
func loopbackPorts(count int) (ports []int, err error) {
	for tries := 0; len(ports) < count; tries++ {
		port := 10_000 + rand.IntN(20_000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			if tries > 1000 {
				return nil, fmt.Errorf("find free ports: %w", err)
			}
			continue
		}
		defer l.Close() // all are held until all are known
		ports = append(ports, port)
	}
	return ports, nil
}

// stopBound is how long a process may take to be stopped by SIGSTOP.
const stopBound = 5 * time.Second

// stop stops a process, and sees that it is.
func (p *child) stop(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", p.pid(), err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stopBound, errors.New("it does not stop"))
	defer cancel()
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		var s syscall.WaitStatus
		pid, err := syscall.Wait4(p.pid(), &s, syscall.WUNTRACED|syscall.WNOHANG, nil)
		if err == nil && pid == p.pid() && s.Stopped() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop process %d: %w", p.pid(), context.Cause(ctx))
		case <-t.C:
		}
	}
}

func (p *child) wake() error {
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("wake process %d: %w", p.pid(), err)
	}
	return nil
}
