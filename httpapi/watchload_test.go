package httpapi

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost/cluster"
)

// dialSmall connects with a small receive buffer, so that the server soon feels
// a reader that does not read.
func dialSmall(t *testing.T, url string) net.Conn {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
		})
		return errors.Join(err, failed)
	}}
	conn, err := d.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// descriptors are those that this process has open; -1 where that is not known.
func descriptors() int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(d)
}

// Two hundred readers that never read neither hold up the writer nor cost the
// twenty that do a single event; and when all have gone, so has all that they
// took.
func TestP13_B55_StoppedReadersHarmNobody(t *testing.T) {
	const stopped, live, events = 200, 20, 3000
	node := newMemory("n1")
	node.feed = cluster.NewFeed(2*events, stopped+live)
	h := New(node, Options{})
	defer h.Close()
	url, stop := serve(t, h)
	defer stop()
	goroutines, files := runtime.NumGoroutine(), descriptors()

	var conns []net.Conn
	for range stopped {
		w := watchOn(t, dialSmall(t, url), "/v1/watch")
		conns = append(conns, w.conn)
	}
	var wg sync.WaitGroup
	begin := node.index()
	for range live {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		w := watchOn(t, conn, "/v1/watch?from="+token10(begin+1))
		wg.Go(func() {
			if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Error(err)
			}
			for next := begin; next <= begin+events; {
				b, err := w.next()
				if err != nil {
					t.Errorf("at %d: %v", next, err)
					return
				}
				if b.id != token10(next) {
					if b.event != "" || next == begin { // only a beat may stand between
						t.Errorf("got %+v, want id %d", b, next)
						return
					}
					continue
				}
				next++
			}
		})
	}
	long := strings.Repeat("x", 200) // so that no socket takes everything
	for i := range events {
		node.grant(fmt.Sprint(long, i), long, 5000)
	}
	wg.Wait()
	for _, c := range conns {
		c.Close()
	}
	var now string
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		now = fmt.Sprintf("%d watchers, %d goroutines (%d before), %d descriptors (%d before)",
			node.feed.Watchers(), runtime.NumGoroutine(), goroutines, descriptors(), files)
		if node.feed.Watchers() == 0 && runtime.NumGoroutine() <= goroutines && descriptors() <= files {
			return
		}
	}
	t.Errorf("5 s after all readers have gone: %s", now)
}
