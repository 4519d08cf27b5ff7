package client

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/cluster/bubble"
)

// told collects lines, of hooks and of a log.
type told struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (s *told) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *told) Write(p []byte) (int, error) { s.add("%s", p); return len(p), nil }

func (s *told) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

// Hooks tell of each lease in order, and the log tells of what went wrong.
func TestHooksAndLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		var hooks, log told
		c, net := connect(t, nodes, WithLogger(slog.New(slog.NewTextHandler(&log, nil))), WithHooks(Hooks{
			Acquired:    func(l *Lease) { hooks.add("%s acquired", l.Name()) },
			Renewed:     func(l *Lease) { hooks.add("%s renewed", l.Name()) },
			RenewFailed: func(l *Lease, err error) { hooks.add("%s failed", l.Name()) },
			Lost:        func(l *Lease, err error) { hooks.add("%s lost: %v", l.Name(), isLost(err)) },
			Released:    func(l *Lease) { hooks.add("%s released", l.Name()) },
		}))
		l := mustAcquire(t, c, "a")
		sleep(2 * time.Second)
		l.Release(t.Context())
		synctest.Wait()
		mustAcquire(t, c, "b")
		synctest.Wait()
		if log.all() != "" {
			t.Errorf("logged without a reason: %s", log.all())
		}
		net.set(blackHole)
		sleep(ttl)
		want := "a acquired\na renewed\na released\nb acquired\nb failed\nb failed\nb lost: true"
		if got := hooks.all(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if got := log.all(); !strings.Contains(got, "lease lost") || !strings.Contains(got, "lease=b") || !strings.Contains(got, "renewal failed") {
			t.Errorf("logged %s", got)
		}
	})
}

// A log that blocks holds up no renewal and no signal.
func TestSlowLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		open := make(chan struct{})
		c, net := connect(t, nodes, WithLogger(slog.New(blocked{slog.DiscardHandler, open})))
		l, other := mustAcquire(t, c, "a"), mustAcquire(t, c, "b")
		net.set(only("/v1/renew", says(noLeader)))
		sleep(2 * time.Second)
		net.set(nil)
		sleep(time.Minute)
		mustHold(t, l)
		mustHold(t, other)
		net.set(blackHole)
		sleep(ttl)
		checkLost(t, l, LostDeadline)
		close(open)
	})
}

// blocked takes no line until it is opened.
type blocked struct {
	slog.Handler
	open chan struct{}
}

func (b blocked) Enabled(context.Context, slog.Level) bool  { return true }
func (b blocked) Handle(context.Context, slog.Record) error { <-b.open; return nil }

// A hook that ends its goroutine, as a failed test in it does, costs its lease, and
// the hooks after it are called.
func TestHookEndsItsGoroutine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		var hooks told
		c, _ := connect(t, nodes, WithHooks(Hooks{
			Acquired: func(l *Lease) {
				if l.Name() == "a" {
					runtime.Goexit()
				}
			},
			Lost: func(l *Lease, err error) { hooks.add("%s lost", l.Name()) },
		}))
		l, other := mustAcquire(t, c, "a"), mustAcquire(t, c, "b")
		synctest.Wait()
		checkLost(t, l, LostPanic)
		mustHold(t, other)
		if got := hooks.all(); got != "a lost" {
			t.Errorf("told %q", got)
		}
	})
}
