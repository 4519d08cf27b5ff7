package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// addNode starts one more server that knows the others, and waits until it has a vote.
func (c *processes) addNode(name string) *process {
	c.t.Helper()
	ports := freePorts(c.t, 2)
	n := &process{
		name: name, dir: filepath.Join(c.t.TempDir(), "data"),
		http: fmt.Sprintf("127.0.0.1:%d", ports[0]), raft: fmt.Sprintf("127.0.0.1:%d", ports[1]),
	}
	n.url = "http://" + n.http
	peers := []string{n.url}
	for _, m := range c.nodes {
		peers = append(peers, m.url)
	}
	n.args = []string{
		"server", "--name", n.name, "--data-dir", n.dir, "--http-addr", n.http, "--raft-addr", n.raft,
		"--peers", strings.Join(peers, ","), "--expect", "3",
	}
	c.nodes = append(c.nodes, n)
	c.start(n)
	c.awaitReady(n)
	c.awaitRole(name, "voter")
	return n
}

// member is what the leader says of a node; nil: it is no member.
func (c *processes) member(name string) map[string]any {
	for _, m := range c.mustDo("GET", "/v1/cluster", "").list("nodes") {
		if m["name"] == name {
			return m
		}
	}
	return nil
}

func (c *processes) awaitRole(name, role string) {
	c.t.Helper()
	eventually(c.t, name+" is a "+role, func() bool {
		m := c.member(name)
		return m != nil && m["role"] == role && m["healthy"] == true
	})
}

// awaitMembers waits until the state has all nodes, which is a moment later than their
// being ready.
func (c *processes) awaitMembers() {
	c.t.Helper()
	for _, n := range c.nodes {
		c.awaitRole(n.name, "voter")
	}
}

// forget leaves a node out of what follows; its process goes on.
func (c *processes) forget(n *process) {
	var rest []*process
	for _, m := range c.nodes {
		if m != n {
			rest = append(rest, m)
		}
	}
	c.nodes = rest
}

// command runs the program as people do, against some nodes.
func (c *processes) command(nodes []*process, args ...string) (out string, code int) {
	c.t.Helper()
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.url)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code = run(ctx, append(args, "--endpoints", strings.Join(urls, ",")), strings.NewReader(""), &stdout, &stderr)
	return stdout.String() + stderr.String(), code
}

// remove ends a membership through any node. A repetition after an answer that told
// nothing may find it done.
func (c *processes) remove(name string) {
	c.t.Helper()
	if a := c.mustDo("DELETE", "/v1/cluster/members/"+name, ""); a.status != 200 && a.status != 404 {
		c.t.Fatalf("remove %s: %s", name, a)
	}
}

// undisturbed marks where the nodes' logs are; the returned function fails the test if
// their term has risen though none of them stood for election. One that does on a busy
// machine is nobody's fault.
func (c *processes) undisturbed() (check func()) {
	c.t.Helper()
	at := map[*process]int{}
	logOf := func(n *process) []byte {
		b, err := os.ReadFile(n.dir + ".log")
		if err != nil {
			c.t.Fatal(err)
		}
		return b
	}
	for _, n := range c.nodes {
		at[n] = len(logOf(n))
	}
	term := c.get(c.leader(), "/v1/cluster").number("term")
	return func() {
		c.t.Helper()
		now := c.get(c.leader(), "/v1/cluster").number("term")
		own := false
		for n, from := range at {
			own = own || bytes.Contains(logOf(n)[from:], []byte("starting election"))
		}
		if now != term && !own {
			c.t.Errorf("term %d, was %d: a node that was removed disturbs the others", now, term)
		}
	}
}

// The leader is removed under load: it hands over, nothing that was acknowledged is
// lost, and the process that goes on running disturbs nobody, answers nothing, says
// why, and stays out over a restart. Wiped, it is a member again.
func TestP9_B77_RemovingTheLeader(t *testing.T) {
	c := startProcesses(t, 3)
	c.awaitMembers()
	load := startSteadyLoad(t, c, 3)
	removed := c.leader()
	load.advance(20)
	c.remove(removed.name)
	all := c.nodes
	c.forget(removed)
	next := c.leader()
	load.advance(20)
	if m := c.member(removed.name); m != nil {
		t.Fatalf("still listed: %v", m)
	}
	expect(t, "once more", c.do(next, "DELETE", "/v1/cluster/members/"+removed.name, ""), 404, "not_found", "")
	saysSo := func(when string) {
		t.Helper()
		eventually(t, when+" it says that it was removed", func() bool {
			ready, live, status := c.get(removed, "/readyz"), c.get(removed, "/livez"), c.get(removed, "/v1/cluster")
			return ready.status == 503 && strings.Contains(ready.text("detail"), "removed") &&
				live.status == 503 && strings.Contains(live.text("detail"), "removed") && status.body["removed"] == true
		})
		for _, path := range []string{"/v1/kv/steady/0", "/v1/kv/steady/0?consistency=stale", "/v1/leases/steady-0?consistency=stale"} {
			expect(t, when+" GET "+path, c.get(removed, path), 503, "no_leader", "")
		}
	}
	saysSo("while it runs")
	check := c.undisturbed()
	c.kill(removed)
	c.start(removed)
	saysSo("restarted")
	load.advance(20)
	check()
	out, code := c.command([]*process{removed, next}, "cluster", "status")
	if code != 0 || !strings.Contains(out, "REMOVED: "+removed.url) || !strings.Contains(out, next.name) {
		t.Errorf("cluster status: %d\n%s", code, out)
	}
	if out, code := c.command([]*process{next}, "cluster", "join", removed.url); code != 1 || !strings.Contains(out, "was removed from its cluster") {
		t.Errorf("cluster join: %d\n%s", code, out)
	}
	if out, code := c.command([]*process{next}, "cluster", "join", next.url); code != 0 || !strings.Contains(out, "is a member") {
		t.Errorf("cluster join of a member: %d\n%s", code, out)
	}
	if log, _ := os.ReadFile(removed.dir + ".log"); !bytes.Contains(log, []byte("this node was removed from its cluster")) {
		t.Error("its log does not say that it was removed")
	}
	c.kill(removed)
	if err := os.RemoveAll(removed.dir); err != nil {
		t.Fatal(err)
	}
	c.nodes = all
	c.start(removed)
	c.awaitReady(removed)
	c.awaitRole(removed.name, "voter")
	load.finish()
}

// A node that was away when it was removed learns it when it comes back.
func TestB77_RemovedWhileItWasAway(t *testing.T) {
	c := startProcesses(t, 3)
	c.awaitMembers()
	away := c.follower()
	c.kill(away)
	eventually(t, "the leader sees it gone", func() bool { return c.member(away.name)["healthy"] == false })
	c.remove(away.name)
	c.forget(away)
	check := c.undisturbed()
	c.start(away)
	eventually(t, "it says that it was removed", func() bool { return c.get(away, "/v1/cluster").body["removed"] == true })
	if m := c.member(away.name); m != nil {
		t.Fatalf("it has joined by itself: %v", m)
	}
	check()
}

// Members are added while they cannot be reached: they get no vote, writes go on with
// one good node down, and they are removed again.
func TestB76_UnreachableMembersCostNothing(t *testing.T) {
	c := startProcesses(t, 3)
	c.awaitMembers()
	token := c.mustAcquire("job", time.Minute)
	ports := freePorts(t, 4)
	for i, name := range []string{"n4", "n5"} {
		body := fmt.Sprintf(`{"name":%q,"id":"%s-dead","raft_addr":"127.0.0.1:%d","http_addr":"127.0.0.1:%d"}`, name, name, ports[2*i], ports[2*i+1])
		expect(t, "add "+name, c.mustDo("POST", "/v1/cluster/members", body), 200, "", "")
	}
	victim := c.follower()
	c.kill(victim)
	expect(t, "write with one good node down", c.put("k", token, "v"), 200, "", "")
	for _, name := range []string{"n4", "n5"} {
		if m := c.member(name); m["role"] != "nonvoter" || m["healthy"] == true {
			t.Errorf("%s: %v", name, m)
		}
	}
	out, _ := c.command(c.nodes, "cluster", "status")
	if !strings.Contains(out, "WARNING: one more failure") {
		t.Errorf("cluster status does not warn:\n%s", out)
	}
	for _, n := range c.nodes {
		if n == victim {
			continue
		}
		expect(t, "a voter that is needed", c.mustDo("DELETE", "/v1/cluster/members/"+n.name, ""), 409, "would_lose_quorum", "")
	}
	for _, name := range []string{"n4", "n5"} {
		c.remove(name)
	}
	expect(t, "write afterwards", c.put("k", token, "w"), 200, "", "")
}

// A node comes back with other addresses; they are recorded, and used: with it and one
// other the cluster goes on. One after the other, all nodes move.
func TestB76_AddressesChangeWithoutSurgery(t *testing.T) {
	c := startProcesses(t, 3)
	c.awaitMembers()
	token := c.mustAcquire("job", time.Minute)
	for _, n := range c.nodes {
		c.signal(n, syscall.SIGTERM)
		n.waitGone(t)
		ports := freePorts(t, 2)
		was := n.http
		n.http, n.raft = fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
		n.url = "http://" + n.http
		for i, a := range n.args {
			switch n.args[max(i-1, 0)] {
			case "--http-addr":
				n.args[i] = n.http
			case "--raft-addr":
				n.args[i] = n.raft
			case "--peers":
				n.args[i] = strings.ReplaceAll(a, was, n.http)
			}
		}
		c.start(n)
		c.awaitReady(n)
		eventually(t, n.name+" is recorded anew", func() bool {
			m := c.member(n.name)
			return m["http_addr"] == n.http && m["raft_addr"] == n.raft && m["healthy"] == true && m["role"] == "voter"
		})
	}
	l := c.leader()
	c.kill(l)
	c.leader(l)
	expect(t, "write after a failover between new addresses", c.put("k", token, "v"), 200, "", "")
	c.start(l)
	c.awaitReady(c.nodes...)
}

// Leadership goes where it is sent, by every node that is asked, and nowhere else.
func TestTransfer(t *testing.T) {
	c := startProcesses(t, 3)
	c.awaitMembers()
	load := startSteadyLoad(t, c, 2)
	for range 2 {
		for _, n := range c.nodes {
			load.advance(3)
			out, code := c.command(c.nodes, "cluster", "transfer", "--to", n.name)
			if code != 0 || out != n.name+" leads\n" {
				t.Fatalf("transfer to %s: %d %s", n.name, code, out)
			}
			expect(t, "to the leader itself", c.mustDo("POST", "/v1/cluster/transfer", fmt.Sprintf(`{"to":%q}`, n.name)), 200, "", "")
		}
	}
	before := c.leader()
	if a := c.mustDo("POST", "/v1/cluster/transfer", ""); a.status != 200 || a.text("leader") == before.name {
		t.Errorf("to anybody: %s, was %s", a, before.name)
	}
	load.finish()
	expect(t, "to nobody", c.mustDo("POST", "/v1/cluster/transfer", `{"to":"n9"}`), 404, "not_found", "")
	down := c.follower()
	c.signal(down, syscall.SIGSTOP)
	expect(t, "to one that stands still", c.do(c.leader(down), "POST", "/v1/cluster/transfer", fmt.Sprintf(`{"to":%q}`, down.name)), 409, "not_eligible", "")
	c.signal(down, syscall.SIGCONT)
}

// L and F1 have acknowledged what F2 has never seen. F1 is wiped and comes back under
// its name, and L dies: F2 and the new F1 are two of three by their names, and must
// not go on without what was acknowledged. With L back all of it is there.
func TestP9_WipedVoterDoesNotVote(t *testing.T) {
	c := startProcesses(t, 3)
	c.awaitMembers()
	l := c.leader()
	var f1, f2 *process
	for _, n := range c.nodes {
		if n != l && f1 == nil {
			f1 = n
		} else if n != l {
			f2 = n
		}
	}
	token := c.mustAcquire("job", time.Minute)
	c.signal(f2, syscall.SIGSTOP)
	for i := range 20 {
		expect(t, "write", c.do(l, "PUT", fmt.Sprintf("/v1/kv/k%d", i), "acknowledged", "Fencing-Token", fmt.Sprint(token)), 200, "", "")
	}
	c.kill(f1)
	if err := os.RemoveAll(f1.dir); err != nil {
		t.Fatal(err)
	}
	c.start(f1)
	c.kill(l)
	c.signal(f2, syscall.SIGCONT)
	eventually(t, "f2 knows no leader", func() bool { return c.get(f2, "/readyz").status == 503 })
	eventually(t, "f1 waits for a cluster", func() bool {
		log, _ := os.ReadFile(f1.dir + ".log")
		return bytes.Contains(log, []byte("waiting for a cluster"))
	})
	deadline := time.Now().Add(5 * time.Second) // twenty elections' time
	for time.Now().Before(deadline) {
		for _, n := range []*process{f1, f2} {
			if a := c.do(n, "PUT", "/v1/kv/k0", "late", "Fencing-Token", fmt.Sprint(token)); a.status != 503 {
				t.Fatalf("%s goes on without what was acknowledged: %s", n.name, a)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.start(l)
	c.awaitReady(c.nodes...)
	c.awaitRole(f1.name, "voter")
	for i := range 20 {
		if a := c.mustDo("GET", fmt.Sprintf("/v1/kv/k%d", i), ""); string(a.raw) != "acknowledged" {
			t.Fatalf("k%d is lost: %s", i, a)
		}
	}
	if next := c.mustAcquire("other", time.Minute); next <= token {
		t.Fatalf("token %d after %d", next, token)
	}
}

// From three to five members and back to three, with every first node replaced, under
// load: no call fails, tokens rise, and all that was acknowledged is there.
func TestP1_P9_EveryNodeReplacedUnderLoad(t *testing.T) {
	c := startProcesses(t, 3)
	c.awaitMembers()
	first := append([]*process(nil), c.nodes...)
	load := startSteadyLoad(t, c, 3)
	load.advance(5)
	for _, name := range []string{"n4", "n5"} {
		load.follow(c.addNode(name))
		load.advance(5)
	}
	replace := func(old *process) {
		t.Helper()
		out, code := c.command(c.nodes, "cluster", "remove", old.name)
		if code != 0 {
			t.Fatalf("remove %s: %d %s", old.name, code, out)
		}
		load.advance(5)
		c.signal(old, syscall.SIGTERM)
		old.waitGone(t)
		c.forget(old)
		load.advance(5)
	}
	replace(first[0])
	replace(first[1])
	load.follow(c.addNode("n6"))
	load.advance(5)
	replace(first[2])
	for _, n := range first {
		if m := c.member(n.name); m != nil {
			t.Errorf("%s is still a member: %v", n.name, m)
		}
	}
	c.awaitReady(c.nodes...)
	load.finish()
}
