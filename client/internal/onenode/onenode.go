// Package onenode is a cluster for the tests of package client: the real state
// machine behind the real HTTP API, without Raft. Entries are committed at once, the
// cluster clock follows the time of the process, which in a synctest bubble is
// fake, and leases end when they are due. Any number of nodes serve the one
// state.
package onenode

import (
	"net/http"
	"sync"
	"time"

	"fencepost/cluster"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi"
)

// Cluster is the state, and what its nodes have in common.
type Cluster struct {
	began time.Time
	feed  *cluster.Feed

	mu      sync.Mutex // guards what follows
	state   *fsm.State
	decided map[string]cluster.Reply[*fsmpb.Outcome] // of requests that waited
	changed chan struct{}                            // closed at each entry
	due     *time.Timer                              // of the next Advance
	closed  bool
	leader  string
	nodes   []*httpapi.Handler
}

// New makes a cluster without nodes. The caller must Close it.
func New() *Cluster {
	return &Cluster{
		began: time.Now(), feed: cluster.NewFeed(1<<16, 10_000), state: fsm.New(),
		decided: make(map[string]cluster.Reply[*fsmpb.Outcome]), changed: make(chan struct{}),
	}
}

// Close ends the nodes' watches and stops the clock.
func (c *Cluster) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.due != nil {
		c.due.Stop()
	}
	for _, h := range c.nodes {
		h.Close()
	}
}

// Node is the API of another node. All can answer everything, and name the first
// one as the leader.
func (c *Cluster) Node(name string) http.Handler {
	c.apply(&fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{
		ClusterId: "c1", Node: &fsmpb.Node{Name: name, Id: name + "-id", HttpAddr: name, RaftAddr: name + ":2", Voter: true},
	}}})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader == "" {
		c.leader = "http://" + name
	}
	h := httpapi.New(&node{c, name}, httpapi.Options{Version: "test"})
	c.nodes = append(c.nodes, h)
	return h
}

// Held is how many leases are live, and Waiters how many wait.
func (c *Cluster) Held() (held, waiters int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	page, _ := c.state.Leases("", "", 1<<20)
	for _, l := range page {
		held += len(l.Holders)
	}
	c.state.AllWaiters(func(*fsm.Waiter) bool { waiters++; return true })
	return held, waiters
}

func (c *Cluster) apply(cmd *fsmpb.Command) cluster.Reply[*fsmpb.Outcome] {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	r := c.commit(cmd)
	c.advance()
	return r
}

// advance ends what is due. The caller has the mutex.
func (c *Cluster) advance() {
	if c.closed {
		return
	}
	now := uint64(time.Since(c.began).Milliseconds())
	next, ok := c.state.NextExpiryMS()
	for c.state.Ready() > 0 || ok && next <= now {
		c.commit(&fsmpb.Command{Op: &fsmpb.Command_Advance{Advance: &fsmpb.Advance{}}})
		next, ok = c.state.NextExpiryMS()
	}
	if c.due != nil {
		c.due.Stop()
	}
	if ok {
		c.due = time.AfterFunc(time.Until(c.began.Add(time.Duration(next)*time.Millisecond)), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.advance()
		})
	}
}

// commit applies an entry. The caller has the mutex.
func (c *Cluster) commit(cmd *fsmpb.Command) cluster.Reply[*fsmpb.Outcome] {
	index := c.state.Index() + 1
	cmd.NowMs, cmd.Term = uint64(time.Since(c.began).Milliseconds()), 1
	o, events, err := c.state.Apply(index, 1, cmd)
	if err != nil {
		panic(err) // a bug of ours: what cannot be applied stops a node
	}
	for _, e := range events {
		if d := e.Decided; d != nil {
			c.decided[d.RequestKey] = cluster.Reply[*fsmpb.Outcome]{Outcome: d.Outcome, Index: index}
		}
	}
	close(c.changed)
	c.changed = make(chan struct{})
	c.feed.Append(index, events)
	c.feed.Announce()
	return cluster.Reply[*fsmpb.Outcome]{Outcome: o, Index: index}
}
