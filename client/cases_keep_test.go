package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/cluster/bubble"
)

// The cases of public bug reports of lease services that a client can meet: first
// those of keeping a lease. Their numbers are those of our collection.

// A deposed leader that still answers: the client counts from its own sending, and
// so is told before anybody else is granted the lease.
func TestB02_LostBeforeTheOtherSideGrants(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, net := connect(t, nodes)
		b, _ := connect(t, nodes)
		l := mustAcquire(t, a, "a")
		sleep(7 * time.Second)
		net.set(says(noLeader)) // cut off from its peers, its client port open
		next := mustAcquire(t, b, "a", Wait(time.Minute))
		granted := time.Now()
		checkLost(t, l, LostDeadline)
		if l.Deadline().After(granted) || next.Token() <= l.Token() {
			t.Errorf("granted at %s, the first was told by %s", granted, l.Deadline())
		}
	})
}

// skewed are clocks that can jump, or stand still, while the timers of the process
// do not.
type skewed struct {
	mu         sync.Mutex // guards all
	mono, wall time.Duration
	still      *instant
}

func (s *skewed) read() instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := readClocks()
	if s.still != nil {
		return *s.still
	}
	return instant{mono: now.mono.Add(s.mono), wall: now.wall.Add(s.wall)}
}

func (s *skewed) jump(mono, wall time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mono, s.wall = s.mono+mono, s.wall+wall
}

// stop has the process see no time pass, and so do nothing, until it is continued.
func (s *skewed) stop() (continued func()) {
	now := s.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.still = &now
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.still = nil
	}
}

// Lost if either clock says so, before anything is sent, and whoever asks first.
func TestB10_SuspendedMachine(t *testing.T) {
	for clock, jump := range map[string][2]time.Duration{"wall": {0, 2 * ttl}, "monotonic": {2 * ttl, 0}, "both": {2 * ttl, 2 * ttl}} {
		for use, look := range map[string]func(*Client, *Lease) error{
			"put": func(c *Client, l *Lease) error {
				_, err := c.Put(context.Background(), "k", nil, l.Guard(Held))
				return err
			},
			"txn":     func(c *Client, l *Lease) error { _, err := l.Txn(context.Background(), Held); return err },
			"error":   func(_ *Client, l *Lease) error { return l.Err() },
			"context": func(_ *Client, l *Lease) error { l.Context().Err(); return context.Cause(l.Context()) },
			"nothing": func(_ *Client, l *Lease) error { sleep(ttl / lookParts); return context.Cause(l.Context()) },
		} {
			t.Run(clock+" clock, "+use, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					_, nodes := newCluster(t)
					c, net := connect(t, nodes)
					clocks := new(skewed)
					c.clocks = clocks.read
					l := mustAcquire(t, c, "a")
					sleep(time.Second)
					n := len(net.requests(""))
					clocks.jump(jump[0], jump[1])
					if err := look(c, l); !errors.Is(err, ErrLost) {
						t.Errorf("got %v", err)
					}
					checkLost(t, l, LostDeadline)
					if len(net.requests("")) != n {
						t.Error("something was sent")
					}
					sleep(time.Minute)
					checkLost(t, l, LostDeadline)
				})
			})
		}
	}
	t.Run("a wall clock that is set back ends nothing and lengthens nothing", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			_, nodes := newCluster(t)
			c, net := connect(t, nodes)
			clocks := new(skewed)
			c.clocks = clocks.read
			l := mustAcquire(t, c, "a")
			clocks.jump(0, -time.Hour)
			sleep(20 * time.Second)
			mustHold(t, l)
			sent := net.requests("/v1/renew")
			net.set(blackHole)
			<-l.Lost()
			if got, want := time.Since(sent[len(sent)-1].at), ttl-ttl/10; got > want {
				t.Errorf("lost after %s, want %s", got, want)
			}
		})
	})
}

// Renewals that are throttled, broken or refused for three TTLs: the work has
// stopped before the next holder begins, in each of 50 rounds; and then the first
// is a candidate again.
func TestB12_HolderIsTold(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"429": refuse(429, `{"status":429,"code":"too_many_requests"}`),
		"500": refuse(500, `{"status":500,"code":"internal"}`),
		"409": nil, // made for each round, since it names the token
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				_, nodes := newCluster(t)
				var terms sync.Map // token -> started and stopped
				a, net := connect(t, nodes, WithHooks(Hooks{
					Acquired: func(l *Lease) { terms.Store(l.Token(), "started") },
					Lost:     func(l *Lease, _ error) { was, _ := terms.Swap(l.Token(), "lost"); terms.Store(-int64(l.Token()), was) },
				}))
				b, _ := connect(t, nodes)
				for round := range 50 {
					l := mustAcquire(t, a, "a", Wait(time.Minute))
					sleep(time.Duration(round) * 137 * time.Millisecond)
					mustHold(t, l)
					h := answer
					if name == "409" {
						h = refuse(409, fmt.Sprintf(`{"status":409,"code":"lease_lost","reason":"expired","token":%d}`, l.Token()))
					}
					net.set(only("/v1/renew", says(h)))
					healed := time.AfterFunc(3*ttl, func() { net.set(nil) })
					var stopped time.Time
					worked := make(chan struct{})
					go func() {
						defer close(worked)
						<-l.Context().Done()
						stopped = time.Now()
					}()
					next := mustAcquire(t, b, "a", Wait(time.Minute))
					granted := time.Now()
					<-worked
					if !stopped.Before(granted) {
						t.Fatalf("round %d: stopped at %s, the next was granted at %s", round, stopped, granted)
					}
					synctest.Wait()
					if now, _ := terms.Load(l.Token()); now != "lost" {
						t.Fatalf("round %d: the hooks say %v", round, now)
					}
					if was, _ := terms.Load(-int64(l.Token())); was != "started" {
						t.Fatalf("round %d: told of the loss of a term that was %v", round, was)
					}
					healed.Stop()
					net.set(nil)
					again := time.Now()
					if err := next.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
					l2 := mustAcquire(t, a, "a", Wait(time.Minute))
					if l2.Token() <= next.Token() || time.Since(again) > 5*time.Second {
						t.Fatalf("round %d: token %d after %d, after %s", round, l2.Token(), next.Token(), time.Since(again))
					}
					l2.Release(t.Context())
				}
			})
		})
	}
}

// A refusal as lost is a loss at once; an overloaded node is not.
func TestB12_LostAtOnceWhenTheClusterSaysSo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, _ := connect(t, nodes)
		start := time.Now()
		l := mustAcquire(t, c, "a")
		if _, err := c.Release(t.Context(), "a", l.Token()); err != nil { // an operator's
			t.Fatal(err)
		}
		<-l.Lost()
		if got := time.Since(start); got > ttl/3 {
			t.Errorf("told after %s, want the next renewal", got)
		}
		checkLost(t, l, "released")
	})
}

// A process that was stopped for longer than its TTL learns first that it has
// lost, is not acquired anew, and the next holder has a greater token.
func TestB14_StoppedProcess(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, net := connect(t, nodes)
		clocks := new(skewed)
		a.clocks = clocks.read
		l := mustAcquire(t, a, "a")
		continued := clocks.stop()
		b, _ := connect(t, nodes)
		next := mustAcquire(t, b, "a", Wait(time.Minute))
		n := len(net.requests(""))
		continued()
		if _, err := a.Put(t.Context(), "k", []byte("old"), l.Guard(Latest)); !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want the loss", err)
		}
		if got := net.requests(""); len(got) != n {
			t.Errorf("sent %+v", got[n:])
		}
		sleep(time.Minute)
		checkLost(t, l, LostDeadline)
		if n := len(net.requests("/acquire")); n != 1 || next.Token() <= l.Token() {
			t.Errorf("%d acquires, tokens %d and %d", n, l.Token(), next.Token())
		}
	})
}

// A process that was stopped while a renewal was under way finds the good answer
// when it goes on, and that its deadline has passed: it has lost the lease, though
// the cluster has not ended it.
func TestB14_AnswerAfterThePauseRevivesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, net := connect(t, nodes)
		clocks := new(skewed)
		c.clocks = clocks.read
		l := mustAcquire(t, c, "a")
		var paused sync.Once
		net.set(only("/v1/renew", func(w http.ResponseWriter, r *http.Request, node http.Handler) {
			paused.Do(func() { clocks.jump(3500*time.Millisecond, 3500*time.Millisecond) }) // past the old deadline, not the new one
			node.ServeHTTP(w, r)
		}))
		sleep(ttl / 3)
		checkLost(t, l, LostDeadline)
		if held, _ := cluster.Held(); held != 1 {
			t.Error("the renewal did not get through")
		}
	})
}

func TestB14_SlowHookStopsNoRenewal(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		release := make(chan struct{})
		var lost time.Time
		c, net := connect(t, nodes, WithHooks(Hooks{
			Acquired: func(*Lease) { <-release },
			Renewed:  func(*Lease) { <-release },
			Lost:     func(*Lease, error) { lost = time.Now() },
		}))
		l, other := mustAcquire(t, c, "a"), mustAcquire(t, c, "b")
		sleep(time.Minute)
		mustHold(t, l)
		mustHold(t, other)
		net.set(blackHole)
		sleep(ttl)
		checkLost(t, l, LostDeadline) // the signal does not wait for the hooks
		close(release)
		synctest.Wait()
		if lost.IsZero() {
			t.Error("the hook of the loss was not called")
		}
	})
}

func TestB14_PanicsAreNotSilence(t *testing.T) {
	t.Run("of a hook: its lease is lost, the others are kept", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			_, nodes := newCluster(t)
			c, _ := connect(t, nodes, WithHooks(Hooks{Renewed: func(l *Lease) {
				if l.Name() == "bad" {
					panic("mine")
				}
			}}))
			bad := mustAcquire(t, c, "bad")
			var good []*Lease
			for i := range 9 {
				good = append(good, mustAcquire(t, c, fmt.Sprint("good", i)))
			}
			sleep(time.Minute)
			checkLost(t, bad, LostPanic)
			for _, l := range good {
				mustHold(t, l)
			}
		})
	})
	t.Run("of the transport: the next attempt renews, or all are lost in time", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			_, nodes := newCluster(t)
			c, net := connect(t, nodes)
			var panics bool
			var mu sync.Mutex
			real := c.http.Transport
			c.http.Transport = transport(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				now := panics
				mu.Unlock()
				if now && strings.HasSuffix(r.URL.Path, "/renew") {
					panic("mine")
				}
				return real.RoundTrip(r)
			})
			set := func(p bool) { mu.Lock(); panics = p; mu.Unlock() }
			l := mustAcquire(t, c, "a")
			set(true)
			sleep(2 * time.Second)
			set(false)
			sleep(time.Minute)
			mustHold(t, l)
			last := net.requests("/v1/renew")
			set(true)
			<-l.Lost()
			if got := time.Since(last[len(last)-1].at); got != ttl-ttl/10 {
				t.Errorf("lost %s after the last sending", got)
			}
		})
	})
}

// One error in the middle of a renewal, and leases made later, are kept all the
// same; one that is released by force costs one signal.
func TestB15_OneErrorSilencesNoOtherLease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		lost := make(chan string, 20)
		c, net := connect(t, nodes, WithHooks(Hooks{Lost: func(l *Lease, _ error) { lost <- l.Name() }}))
		first := mustAcquire(t, c, "first")
		net.set(only("/v1/renew", says(noLeader)))
		sleep(2 * time.Second)
		net.set(nil)
		second := mustAcquire(t, c, "second")
		sleep(5 * ttl)
		mustHold(t, first)
		mustHold(t, second)

		var ten []*Lease
		for i := range 10 {
			ten = append(ten, mustAcquire(t, c, fmt.Sprint("ten", i)))
		}
		sleep(ttl)
		forced := time.Now()
		if _, err := c.Release(t.Context(), "ten4", ten[4].Token()); err != nil {
			t.Fatal(err)
		}
		if name := <-lost; name != "ten4" || time.Since(forced) > ttl/3+time.Second {
			t.Errorf("%s lost after %s", name, time.Since(forced))
		}
		sleep(5 * ttl)
		if len(lost) > 0 {
			t.Errorf("%d more were lost", len(lost))
		}
		for i, l := range ten {
			if i != 4 {
				mustHold(t, l)
			}
		}
	})
}

// An answer to a renewal that is malformed, or leaves a lease out, is no renewal.
func TestB15_AnswersThatLeaveALeaseOut(t *testing.T) {
	for name, body := range map[string]string{
		"empty": `{"results":[]}`, "null": `null`, "html": `<html>`, "another lease": `{"results":[{"name":"b","token":1,"expires_in_ms":5000}]}`,
		"another code": `{"results":[{"name":"a","token":%d,"code":"forbidden"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				_, nodes := newCluster(t)
				c, net := connect(t, nodes)
				start := time.Now()
				l := mustAcquire(t, c, "a")
				if strings.Contains(body, "%d") {
					body = fmt.Sprintf(body, l.Token())
				}
				net.set(only("/v1/renew", says(ok(body))))
				<-l.Lost()
				if got := time.Since(start); got != ttl-ttl/10 {
					t.Errorf("lost after %s", got)
				}
				if n := len(net.requests("/v1/renew")); n < 3 || n > 30 {
					t.Errorf("%d attempts", n)
				}
			})
		})
	}
}

// Renewals whose answers are lost: the lease is kept with the same token.
func TestB16_AnswerOfARenewalIsLost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		c, net := connect(t, nodes)
		l := mustAcquire(t, c, "a")
		n := 0
		var mu sync.Mutex
		net.set(only("/v1/renew", func(w http.ResponseWriter, r *http.Request, node http.Handler) {
			mu.Lock()
			n++
			lose := n == 3 || n == 5 || n == 6
			mu.Unlock()
			if lose {
				answerLost(w, r, node)
			}
			node.ServeHTTP(w, r)
		}))
		sleep(time.Minute)
		mustHold(t, l)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		net.set(slow(10 * time.Millisecond))
		if _, err := c.Renew(ctx, "a", l.Token(), 0); !errors.Is(err, ErrUnknown) {
			t.Errorf("got %v, want unknown", err)
		}
		net.set(nil)
		if r, err := c.Renew(t.Context(), "a", l.Token(), 0); err != nil || r.Token != l.Token() {
			t.Errorf("got %+v, %v", r, err)
		}
	})
}

// A renewal creates nothing, and a later acquisition is a new one, which is kept.
func TestB18_RenewingWhatHasEnded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		cluster, nodes := newCluster(t)
		c, _ := connect(t, nodes)
		g, err := c.Grant(t.Context(), "a", TTL(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		sleep(3 * time.Second)
		if _, err := c.Renew(t.Context(), "a", g.Token, 0); !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want lost", err)
		}
		if held, _ := cluster.Held(); held != 0 {
			t.Error("a renewal made a lease")
		}
		l := mustAcquire(t, c, "a", TTL(2*time.Second))
		sleep(10 * time.Second)
		mustHold(t, l)
		if l.Token() <= g.Token || l.PreviousToken() != g.Token {
			t.Errorf("token %d and previous %d after %d", l.Token(), l.PreviousToken(), g.Token)
		}
	})
}

// What took longer than its own validity is not handed out, and is given back.
func TestB19_ExpiredOnArrival(t *testing.T) {
	t.Run("acquire", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			cluster, nodes := newCluster(t)
			const short = 500 * time.Millisecond
			c, net := connect(t, nodes)
			net.set(only("/acquire", slow(short+time.Second)))
			l, err := c.Acquire(t.Context(), "a", TTL(short))
			var lost *LostError
			if l != nil || !errors.As(err, &lost) || lost.Reason != LostDeadline {
				t.Fatalf("got %+v, %v", l, err)
			}
			synctest.Wait()
			if n := len(net.requests("/release")); n != 1 {
				t.Errorf("%d releases", n)
			}
			// While it is still live for the cluster, since less is left than the margin.
			net.set(only("/acquire", slow(short-20*time.Millisecond)))
			if _, err := c.Acquire(t.Context(), "b", TTL(short)); !errors.Is(err, ErrLost) {
				t.Errorf("got %v", err)
			}
			synctest.Wait()
			if held, _ := cluster.Held(); held != 0 {
				t.Error("not given back")
			}
		})
	})
	t.Run("renewal", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			_, nodes := newCluster(t)
			c, net := connect(t, nodes, WithAttemptTimeout(time.Minute))
			start := time.Now()
			l := mustAcquire(t, c, "a")
			net.set(only("/v1/renew", slow(ttl+time.Second)))
			<-l.Lost()
			if got := time.Since(start); got != ttl-ttl/10 {
				t.Errorf("lost after %s", got)
			}
			sleep(time.Minute)
			checkLost(t, l, LostDeadline)
		})
	})
}

// A wait at the leader is not counted against the lease.
func TestP7_WaitingIsNotCounted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		_, nodes := newCluster(t)
		a, _ := connect(t, nodes)
		b, _ := connect(t, nodes)
		l := mustAcquire(t, a, "a")
		time.AfterFunc(10*time.Second, func() { l.Release(context.Background()) })
		next := mustAcquire(t, b, "a", Wait(time.Minute))
		if got, want := time.Until(next.Deadline()), ttl-ttl/10; got > want || got < want-10*time.Millisecond {
			t.Errorf("the deadline is in %s, want %s", got, want)
		}
	})
}
