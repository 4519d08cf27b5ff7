package main

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/client"
)

func (c *processes) client(first *process) *client.Client {
	c.t.Helper()
	endpoints := []string{first.url}
	for _, n := range c.nodes {
		if n != first {
			endpoints = append(endpoints, n.url)
		}
	}
	cl, err := client.New(endpoints)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cl.Close() })
	return cl
}

// untilQueued waits until so many wait for the lease.
func (c *processes) untilQueued(name string, length uint64) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%d wait for %s", length, name), func() bool {
		return c.get(c.leader(), "/v1/leases/"+name).number("queue_length") == length
	})
}

// Eight wait through different nodes while the leader is killed twice: they are
// granted the lease in the order in which they came, none is told of an error,
// and each hand-off is the entry of the release.
func TestP12_EightWaitersOverTwoKills(t *testing.T) {
	const waiters = 8
	c := startProcesses(t, 3)
	holder := c.mustAcquire("db", time.Hour)
	type grant struct {
		i     int
		token uint64
	}
	granted := make(chan grant, waiters)
	var wg sync.WaitGroup
	for i := range waiters {
		cl := c.client(c.nodes[i%len(c.nodes)])
		wg.Go(func() {
			g, err := cl.Grant(t.Context(), "db", client.Holder(fmt.Sprint(i)), client.TTL(time.Hour), client.Wait(time.Hour/12))
			if err != nil {
				t.Errorf("waiter %d: %v", i, err)
				granted <- grant{i: i}
				return
			}
			granted <- grant{i, g.Token}
		})
		c.untilQueued("db", uint64(i+1))
	}
	for want := range waiters {
		if want == 2 || want == 5 {
			l := c.leader()
			c.kill(l)
			c.leader(l)
			c.start(l)
			c.awaitReady(l)
		}
		freed := c.do(c.leader(), "POST", "/v1/leases/db/release", fmt.Sprintf(`{"token":%d}`, holder))
		if freed.status != 200 || freed.body["released"] != true {
			t.Fatalf("release %d: %s", want, freed)
		}
		g := <-granted
		if g.i != want {
			t.Fatalf("waiter %d was granted the lease, %d is next", g.i, want)
		}
		if index := freed.header.Get("Fencepost-Index"); index != strconv.FormatUint(g.token, 10) {
			t.Errorf("hand-off %d: token %d, and the release was entry %s", want, g.token, index)
		}
		holder = g.token
	}
	wg.Wait()
}

// metric is the value of a metric without labels.
func (c *processes) metric(n *process, name string) int {
	c.t.Helper()
	for line := range strings.Lines(string(c.get(n, "/metrics").raw)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				c.t.Fatal(err)
			}
			return int(v)
		}
	}
	c.t.Fatalf("%s tells no %s", n.name, name)
	return 0
}

// Thousands of clients that wait, through all nodes, and go away without a word
// leave nothing behind.
func TestB55_AbandonedRequestsLeaveNothing(t *testing.T) {
	const abandoned = 5000
	// Nobody else is to lead meanwhile, on a busy machine either: that would end the waits.
	c := startProcesses(t, 3, "--heartbeat-timeout", "5s", "--election-timeout", "5s", "--leader-lease", "5s")
	c.mustAcquire("db", time.Hour)
	type counts struct{ goroutines, files int }
	count := func(n *process) counts {
		return counts{c.metric(n, "go_goroutines"), c.metric(n, "process_open_fds")}
	}
	before := map[*process]counts{}
	for _, n := range c.nodes {
		before[n] = count(n)
	}
	conns := make([]net.Conn, abandoned)
	for i := range conns {
		n := c.nodes[i%len(c.nodes)]
		conn, err := net.Dial("tcp", n.http)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns[i] = conn
		const body = `{"holder":"gone","wait_ms":300000}`
		if _, err := fmt.Fprintf(conn, "POST /v1/leases/db/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			t.Fatal(err)
		}
	}
	c.untilQueued("db", abandoned)
	for _, conn := range conns {
		if err := conn.SetReadDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Fatalf("one of them does not wait: %v", err)
		}
	}
	left := time.Now()
	for _, conn := range conns {
		conn.Close()
	}
	for _, n := range c.nodes {
		const slack = 40 // connections between the nodes come and go
		eventually(t, n.name+" is as it was", func() bool {
			now := count(n)
			return c.metric(n, "fencepost_waiters") == 0 && now.goroutines <= before[n].goroutines+slack && now.files <= before[n].files+slack
		})
	}
	t.Logf("all was as before %s after they left", time.Since(left).Round(10*time.Millisecond))
}
