package main

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fencepost/client"
)

// These are cases that other lease services are known to have got wrong and that
// need real processes. Each is named by its number in the collection of them.

// A single node is killed and read at once: its first answers have everything.
func TestP9_B33_ASingleNodeReadsWhatItHad(t *testing.T) {
	c := startProcesses(t, 1)
	n := c.nodes[0]
	token := c.mustAcquire("db", time.Hour)
	version := c.put("k", token, "v").number("version")
	for range 3 {
		c.kill(n)
		c.start(n)
		var lease answer
		eventually(t, "the node answers a read", func() bool {
			lease = c.get(n, "/v1/leases/db")
			return lease.status != 0 && lease.status != 503
		})
		if lease.status != 200 || lease.number("token") != token {
			t.Fatalf("the first answer: %s, want token %d", lease, token)
		}
		c.holdsValue("k", "v", version)
		expect(t, "another holder", c.mustDo("POST", "/v1/leases/db/acquire", `{"holder":"b"}`), 409, "lease_held", "")
	}
}

// All nodes are stopped and started in turn under load. A client of the library
// sees no error and holders lose nothing; plain requests see 503 with a time to
// come back, or 504 for what was under way, from a node that answers.
func TestP10_B35_ARollingRestart(t *testing.T) {
	c := startProcesses(t, 3)
	kept := c.mustAcquire("kept", 5*time.Second)
	var stop atomic.Bool
	var done atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		cl := c.client(c.nodes[i%3])
		wg.Go(func() {
			for name := fmt.Sprint("w", i); !stop.Load(); done.Add(1) {
				g, err := cl.Grant(t.Context(), name, client.Holder(name), client.TTL(time.Minute))
				if err == nil {
					_, err = cl.Put(t.Context(), name, []byte(name), client.Write{Token: g.Token, Guard: client.GuardHeld})
				}
				if err == nil {
					_, err = cl.Renew(t.Context(), name, g.Token, 0)
				}
				if err == nil {
					_, err = cl.Release(t.Context(), name, g.Token)
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				time.Sleep(10 * time.Millisecond) // the pace of a client
			}
		})
	}
	keeper := c.client(c.nodes[0])
	wg.Go(func() {
		for !stop.Load() {
			if _, err := keeper.Renew(t.Context(), "kept", kept, 0); err != nil {
				t.Errorf("kept: %v", err)
				return
			}
			time.Sleep(time.Second) // the pace of a holder
		}
	})
	var mu sync.Mutex
	answers := map[string]int{}
	for _, n := range c.nodes {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				a := c.do(n, "PUT", "/v1/kv/raw", "x", "Fencing-Token", fmt.Sprint(kept))
				mu.Lock()
				answers[fmt.Sprint(a.status, " ", a.text("code"))]++
				mu.Unlock()
				if a.status == 503 && a.header.Get("Retry-After") == "" || a.status >= 400 && a.status != 503 && a.status != 504 {
					t.Errorf("a plain request to %s: %s", n.name, a)
				}
				time.Sleep(5 * time.Millisecond) // the pace of a client
			}
		})
	}
	led := map[*process]bool{}
	for _, n := range c.nodes {
		led[c.leader()] = true
		before := done.Load()
		eventually(t, "the load goes on", func() bool { return done.Load() > before+20 || t.Failed() })
		c.signal(n, syscall.SIGTERM)
		n.waitGone(t)
		c.start(n)
		c.awaitReady(c.nodes...)
	}
	led[c.leader()] = true
	stop.Store(true)
	wg.Wait()
	c.holds("kept", kept)
	if len(led) < 2 {
		t.Error("leadership never moved: the fault did not land")
	}
	t.Logf("%d rounds by the library; plain requests: %v", done.Load(), answers)
}

// Eight programs take turns by the command line, each doing next to nothing.
func TestB50_EightTurnsTakeNoTime(t *testing.T) {
	c := startProcesses(t, 3)
	endpoints := c.nodes[0].url + "," + c.nodes[1].url + "," + c.nodes[2].url
	began := time.Now()
	var wg sync.WaitGroup
	var inside, turns atomic.Int64
	for range 8 {
		wg.Go(func() {
			code, token, errs := command(t, "", "acquire", "date", "--endpoints", endpoints, "--wait", "1m", "-o", "token")
			if code != exitDone || inside.Add(1) != 1 {
				t.Errorf("exit %d, %d inside: %s", code, inside.Load(), errs)
			}
			turns.Add(1)
			inside.Add(-1)
			if code, _, errs := command(t, "", "release", "date", "--endpoints", endpoints, "--token", strings.TrimSpace(token)); code != exitDone {
				t.Errorf("release: exit %d: %s", code, errs)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 2*time.Second || turns.Load() != 8 {
		t.Errorf("%d turns in %s, want 8 in 2 s at the most", turns.Load(), took)
	}
}

// B waits through a follower and C through the leader. Both nodes are killed, the
// follower first. Nobody is told of an error, and when the holder lets go at the
// new leader, B has the lease at once, then C.
func TestP12_B51_WaitingThroughNodesThatDie(t *testing.T) {
	c := startProcesses(t, 3)
	a := c.mustAcquire("db", time.Hour)
	leader, follower := c.leader(), c.follower()
	type grant struct {
		who   string
		token uint64
	}
	granted, failed := make(chan grant, 2), make(chan error, 2)
	for i, through := range []*process{follower, leader} {
		cl, who := c.client(through), string(rune('B'+i))
		go func() {
			g, err := cl.Grant(t.Context(), "db", client.Holder(who), client.TTL(time.Hour), client.Wait(time.Minute))
			if err != nil {
				failed <- fmt.Errorf("%s: %w", who, err)
				return
			}
			granted <- grant{who, g.Token}
		}()
		c.untilQueued("db", uint64(i+1))
	}
	next := func(want string) grant {
		t.Helper()
		select {
		case g := <-granted:
			if g.who != want {
				t.Fatalf("%s was granted the lease, want %s", g.who, want)
			}
			return g
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(2 * time.Second):
			t.Fatalf("nobody was granted the lease within 2 s, %s is next", want)
		}
		return grant{}
	}
	tickets := func() (tickets []uint64) {
		for _, e := range c.story("db") {
			if e.Kind == "queued" {
				tickets = append(tickets, e.Ticket)
			}
		}
		return tickets
	}
	before := fmt.Sprint(tickets())
	c.kill(follower)
	if c.leader() != leader {
		t.Fatal("leadership moved too early")
	}
	c.start(follower) // two are needed to go on
	c.awaitReady(follower)
	c.kill(leader)
	c.leader(leader)
	// Both are back in line by their clients' own doing, well within the time that
	// a new leader waits for them.
	c.mustAcquire("clock", 6*time.Second)
	eventually(t, "six seconds have passed", func() bool { return c.get(c.leader(leader), "/v1/leases/clock").body["held"] == false })
	select {
	case g := <-granted:
		t.Fatalf("%s was granted a lease that is held", g.who)
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	c.untilQueued("db", 2)
	if after := fmt.Sprint(tickets()); after != before {
		t.Errorf("places in the queue: %s, were %s", after, before)
	}
	c.release("db", a)
	b := next("B")
	c.holds("db", b.token)
	if len(granted) != 0 {
		t.Fatal("both were granted the lease")
	}
	c.release("db", b.token)
	c.holds("db", next("C").token)
}
