package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A cable is what one host reaches a node by. Cut, it swallows what is sent, in
// both directions, and says nothing: no connection breaks, new ones are accepted.
type cable struct {
	listener net.Listener
	target   string
	wg       sync.WaitGroup

	mu    sync.Mutex // guards what follows
	cut   bool
	ended bool
	conns []net.Conn
}

func newCable(t *testing.T, target string) *cable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{listener: l, target: target}
	c.wg.Go(c.accept)
	t.Cleanup(c.close)
	return c
}

func (c *cable) url() string { return "http://" + c.listener.Addr().String() }

func (c *cable) accept() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return
		}
		if !c.keep(near) {
			continue
		}
		c.wg.Go(func() {
			far, err := net.Dial("tcp", c.target)
			if err != nil || !c.keep(far) {
				return // near stays open, and is heard by nobody
			}
			c.wg.Go(func() { c.pump(near, far) })
			c.pump(far, near)
		})
	}
}

// keep remembers a connection for close; false, and it is closed, if that was.
func (c *cable) keep(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		conn.Close()
		return false
	}
	c.conns = append(c.conns, conn)
	return true
}

func (c *cable) pump(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if c.isCut() {
			io.Copy(io.Discard, from)
			return
		}
		if n > 0 {
			to.Write(buf[:n])
		}
		if err != nil {
			to.Close()
			return
		}
	}
}

func (c *cable) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *cable) sever() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
}

func (c *cable) close() {
	c.listener.Close()
	c.mu.Lock()
	c.ended = true
	for _, conn := range c.conns {
		conn.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// ticking writes the time, in nanoseconds, about every 5 ms, and cannot be talked
// out of it.
const ticking = `trap "" TERM INT HUP; echo $$; while :; do date +%s%N; sleep 0.005; done`

// stamp is the time in a line of that output.
func stamp(t *testing.T, line string) time.Time {
	t.Helper()
	n, err := strconv.ParseInt(line, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, n)
}

// All nodes stop: the lease cannot be renewed, and a command that does not listen
// to a TERM is gone before its lease could be another's.
func TestP7_CommandIsGoneWhenNoNodeAnswers(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	c := startProcesses(t, 3)
	l := c.lock(t, "frozen", "--ttl", ttl.String(), "--", "sh", "-c", ticking)
	l.lines(3)
	for _, n := range c.nodes {
		c.signal(n, syscall.SIGSTOP)
	}
	stopped := time.Now()
	l.wantExit(exitLost)
	gone := time.Now()
	for _, n := range c.nodes {
		c.signal(n, syscall.SIGCONT)
	}
	lines := l.written()
	pid, _ := strconv.Atoi(lines[0])
	wantGone(t, []int{pid})
	// No renewal was granted after the stop, and the margin is a tenth of the TTL.
	if last, bound := stamp(t, lines[len(lines)-1]), stopped.Add(ttl*95/100); last.After(bound) {
		t.Errorf("last output %s after the nodes stopped, with a TTL of %s", last.Sub(stopped), ttl)
	}
	if d := gone.Sub(stopped); d < ttl/lossParts {
		t.Errorf("lost %s after the nodes stopped: that is too early", d)
	}
	for _, want := range []string{"cannot be renewed", "frozen"} {
		if !strings.Contains(l.errs.String(), want) {
			t.Errorf("no %q in stderr: %s", want, l.errs)
		}
	}
}

// Two hosts, one name: the first is cut off from all nodes. Its command's last
// output is before the first output of the second's. FENCEPOST_TEST_CUTS sets how
// many runs there are (make cuts: 50).
func TestP7_CutOffCommandEndsBeforeTheNextBegins(t *testing.T) {
	t.Parallel()
	runs := 2
	if s := os.Getenv("FENCEPOST_TEST_CUTS"); s != "" {
		var err error
		if runs, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	c := startProcesses(t, 3)
	least, most := time.Hour, time.Duration(0)
	for i := range runs {
		gap := c.cutOff(t, fmt.Sprintf("cut-%d", i))
		if gap <= 0 {
			t.Errorf("run %d: the first command wrote until %s after the second began", i, -gap)
		}
		least, most = min(least, gap), max(most, gap)
	}
	t.Logf("%d runs: from the first command's last output to the second's first %s to %s", runs, least, most)
}

// cutOff is one run; it returns the time between the two commands.
func (c *processes) cutOff(t *testing.T, name string) time.Duration {
	t.Helper()
	var cables []*cable
	var urls []string
	for _, n := range c.nodes {
		w := newCable(t, n.http)
		cables, urls = append(cables, w), append(urls, w.url())
	}
	const ttl = "1s"
	env := append(os.Environ(), "FENCEPOST_ENDPOINTS="+strings.Join(urls, ","))
	first := startLock(t, c.bin, env, name, "--ttl", ttl, "--", "sh", "-c", ticking)
	first.lines(3)
	second := c.lock(t, name, "--ttl", ttl, "--", "date", "+%s%N")
	c.untilQueued(name, 1)
	for _, w := range cables {
		w.sever()
	}
	second.wantExit(0)
	first.wantExit(exitLost)
	lines := first.written()
	pid, _ := strconv.Atoi(lines[0])
	wantGone(t, []int{pid})
	for _, w := range cables {
		w.close()
	}
	return stamp(t, second.written()[0]).Sub(stamp(t, lines[len(lines)-1]))
}
