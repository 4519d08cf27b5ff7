package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func expect(t *testing.T, what string, a answer, status int, code, reason string) {
	t.Helper()
	if a.status != status || a.text("code") != code || a.text("reason") != reason {
		t.Fatalf("%s: got %s, want %d %s %s", what, a, status, code, reason)
	}
}

// The fence holds against a superseded holder, through deletion and restart of
// every node; and numbers that are no tokens do no harm.
func TestP4_P5_P6_FenceOnRealProcesses(t *testing.T) {
	c := startProcesses(t, 3)
	a := c.mustAcquire("job", time.Minute)
	expect(t, "first write", c.put("k", a, "a"), 200, "", "")
	c.release("job", a)
	b := c.mustAcquire("job", time.Minute)
	if b <= a {
		t.Fatalf("token %d after %d", b, a)
	}
	// Before the new holder has written anything, the old one is refused.
	expect(t, "superseded", c.put("k", a, "late"), 412, "stale_token", "not_on_record")
	expect(t, "superseded, lease named", c.put("k", a, "late", "Fencing-Lease", "job"), 412, "stale_token", "newer_issued")
	expect(t, "new holder", c.put("k", b, "b"), 200, "", "")
	stale := c.put("k", a, "late")
	expect(t, "superseded", stale, 412, "stale_token", "not_on_record")
	if stale.number("watermark") != b {
		t.Fatalf("the refusal tells watermark %d, want %d", stale.number("watermark"), b)
	}
	expect(t, "delete", c.mustDo("DELETE", "/v1/kv/k", "", "Fencing-Token", fmt.Sprint(b)), 200, "", "")
	c.kill(c.nodes...)
	for _, n := range c.nodes {
		c.start(n)
	}
	c.awaitReady(c.nodes...)
	stale = c.put("k", a, "late")
	expect(t, "after delete and restart", stale, 412, "stale_token", "not_on_record")
	if stale.number("watermark") != b {
		t.Fatalf("after delete and restart the watermark is %d, want %d", stale.number("watermark"), b)
	}
	expect(t, "above the newest index", c.put("k", 1<<50, "x"), 422, "token_not_issued", "")
	expect(t, "an index that is no token", c.put("k", b+1, "x"), 412, "stale_token", "not_on_record")
	expect(t, "the next honest write", c.put("k", b, "b2"), 200, "", "")
	if got := c.mustDo("GET", "/v1/kv/k", ""); got.status != 200 || string(got.raw) != "b2" {
		t.Fatalf("read back: %s", got)
	}

	short := c.mustAcquire("short", 300*time.Millisecond)
	eventually(t, "the short lease ends", func() bool { return c.get(c.leader(), "/v1/leases/short").body["held"] == false })
	expect(t, "held after expiry", c.put("s", short, "x", "Fencing-Guard", "held"), 412, "stale_token", "not_held")
	expect(t, "latest after expiry", c.put("s", short, "x"), 200, "", "")
}

// Under load the leader is killed again and again: tokens rise, and what was
// acknowledged is there.
func TestP1_P9_KillTheLeaderUnderLoad(t *testing.T) {
	c := startProcesses(t, 3)
	var stop atomic.Bool
	var wg sync.WaitGroup
	type written struct {
		value   string
		version uint64
	}
	const workers = 4
	last := make([]written, workers)
	counts := make([]atomic.Int64, workers)
	for w := range workers {
		wg.Go(func() {
			var token uint64
			name := fmt.Sprintf("w%d", w)
			for i := 0; !stop.Load(); i++ {
				next := c.mustAcquire(name, 30*time.Second)
				if next <= token {
					t.Errorf("%s: token %d after %d", name, next, token)
					return
				}
				token = next
				value := fmt.Sprintf("%s-%d", name, i)
				a := c.put(name, token, value)
				if a.status != 200 || a.number("version") <= last[w].version {
					t.Errorf("%s: a write by the holder: %s after version %d", name, a, last[w].version)
					return
				}
				last[w] = written{value, a.number("version")}
				if a := c.release(name, token); a.status != 200 {
					t.Errorf("%s: release: %s", name, a)
					return
				}
				counts[w].Add(1)
			}
		})
	}
	for range 4 {
		before := counts[0].Load()
		l := c.leader()
		time.Sleep(200 * time.Millisecond) // load for the kill to meet; nothing is decided by it
		c.kill(l)
		c.leader(l)
		c.start(l)
		c.awaitReady(c.nodes...)
		eventually(t, "the load goes on", func() bool { return counts[0].Load() > before || t.Failed() })
	}
	stop.Store(true)
	wg.Wait()
	for w := range workers {
		if got := c.mustDo("GET", fmt.Sprintf("/v1/kv/w%d", w), ""); string(got.raw) != last[w].value {
			t.Errorf("w%d: read %q, the last acknowledged write was %q", w, got.raw, last[w].value)
		}
		if counts[w].Load() == 0 {
			t.Errorf("worker %d did nothing", w)
		}
	}
}

// All nodes are killed at once and come back in any order, one of them late.
func TestP9_B36_KillAllAtOnce(t *testing.T) {
	c := startProcesses(t, 3)
	var newest uint64
	for round := range 3 {
		held := c.mustAcquire(fmt.Sprintf("held%d", round), time.Minute)
		expect(t, "write", c.put(fmt.Sprintf("k%d", round), held, fmt.Sprint(round)), 200, "", "")
		if held <= newest {
			t.Fatalf("token %d after %d", held, newest)
		}
		newest = held
		c.kill(c.nodes...)
		order := rand.Perm(3)
		c.start(c.nodes[order[0]])
		c.start(c.nodes[order[1]])
		c.awaitReady(c.nodes[order[0]], c.nodes[order[1]])
		for i := range round + 1 {
			name := fmt.Sprintf("held%d", i)
			if a := c.mustDo("GET", "/v1/leases/"+name, ""); a.body["held"] != true {
				t.Fatalf("round %d: %s: %s", round, name, a)
			}
			if a := c.mustDo("GET", fmt.Sprintf("/v1/kv/k%d", i), ""); string(a.raw) != fmt.Sprint(i) {
				t.Fatalf("round %d: k%d: %s", round, i, a)
			}
		}
		c.start(c.nodes[order[2]])
		c.awaitReady(c.nodes...)
	}
}

// The leader is stopped for longer than the TTL and goes on afterwards. The
// holder renews at the others and loses nothing.
func TestP7_HolderOutlivesAPausedLeader(t *testing.T) {
	c := startProcesses(t, 3)
	const ttl = 1500 * time.Millisecond
	token := c.mustAcquire("job", ttl)
	l := c.leader()
	var stop atomic.Bool
	var wg sync.WaitGroup
	var renewals atomic.Int64
	wg.Go(func() {
		for !stop.Load() {
			for _, n := range c.nodes {
				if n == l {
					continue
				}
				a := c.do(n, "POST", "/v1/leases/job/renew", fmt.Sprintf(`{"token":%d}`, token))
				if a.status == 409 {
					t.Errorf("a renewal was refused: %s", a)
					return
				}
				if a.status == 200 {
					renewals.Add(1)
				}
			}
			time.Sleep(50 * time.Millisecond) // the pace of a client
		}
	})
	c.signal(l, syscall.SIGSTOP)
	next := c.leader(l)
	eventually(t, "the pause is longer than the TTL, by the new leader's clock", func() bool {
		a := c.get(next, "/v1/leases/job")
		return a.number("renewals") > 40 || t.Failed()
	})
	c.signal(l, syscall.SIGCONT)
	c.awaitReady(c.nodes...)
	before := renewals.Load()
	eventually(t, "renewals go on", func() bool { return renewals.Load() > before+5 || t.Failed() })
	stop.Store(true)
	wg.Wait()
	a := c.mustDo("GET", "/v1/leases/job", "")
	if a.body["held"] != true || a.number("token") != token {
		t.Fatalf("after the pause: %s", a)
	}
}

// A wiped node is a new node: it neither forms a second cluster nor votes as
// its former self, and takes its old name's place.
func TestP9_WipedNodeIsANewNode(t *testing.T) {
	c := startProcesses(t, 3)
	token := c.mustAcquire("job", time.Minute)
	wiped := c.follower()
	id := func(n *process) (id, cluster string) {
		a := c.get(n, "/v1/cluster/formation")
		return a.text("id"), a.text("cluster_id")
	}
	oldID, cluster := id(wiped)
	c.kill(wiped)
	if err := os.RemoveAll(wiped.dir); err != nil {
		t.Fatal(err)
	}
	c.start(wiped)
	c.awaitReady(wiped)
	newID, newCluster := id(wiped)
	if newID == oldID || newCluster != cluster {
		t.Fatalf("id %s, was %s; cluster %s, was %s", newID, oldID, newCluster, cluster)
	}
	eventually(t, "it is a voter in its old name's place", func() bool {
		voters, others := 0, 0
		for _, m := range c.mustDo("GET", "/v1/cluster", "").list("nodes") {
			if m["id"] == oldID {
				others++
			}
			if m["role"] == "voter" {
				voters++
			}
		}
		return voters == 3 && others == 0
	})
	// It counts now: with it and one other the cluster goes on.
	l := c.leader()
	if l == wiped {
		l = c.follower()
	}
	c.kill(l)
	if a := c.mustDo("GET", "/v1/leases/job", ""); a.number("token") != token {
		t.Fatalf("after the replacement: %s", a)
	}
}

// A stop by SIGTERM leaves no process and no port, and ends with 0.
func TestStopLeavesNothing(t *testing.T) {
	c := startProcesses(t, 3)
	for _, n := range c.nodes {
		c.signal(n, syscall.SIGTERM)
		n.waitGone(t)
		if code := n.life.Load().cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%s ended with %d", n.name, code)
		}
		for _, addr := range []string{n.http, n.raft} {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Errorf("%s is still taken: %v", addr, err)
				continue
			}
			l.Close()
		}
		if left, _ := filepath.Glob(filepath.Join(n.dir, "*.tmp")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// What people watch is there: ours, Raft's and the log store's, which come by a
// way that a build tag or a version can silently cut; and no name of a lease.
func TestMetricsOfARealNode(t *testing.T) {
	c := startProcesses(t, 3)
	token := c.mustAcquire("secret-name", time.Minute)
	c.put("k", token-1, "refused")
	text := string(c.get(c.leader(), "/metrics").raw)
	for _, want := range []string{
		"fencepost_is_leader 1", "fencepost_has_leader 1", "fencepost_leases_held 1", "fencepost_grants_total 1",
		`fencepost_stale_writes_refused_total{reason="not_on_record"} 1`, "fencepost_commit_seconds_count",
		"fencepost_leader_changes_total", "fencepost_raft_apply", "fencepost_log_append_seconds_count", "fencepost_raft_boltdb_freelistBytes", "fencepost_http_request_seconds_count",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	if strings.Contains(text, "secret-name") {
		t.Error("/metrics tells the name of a lease")
	}
	if t.Failed() {
		t.Log(text)
	}
}
