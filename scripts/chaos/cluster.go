package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

const (
	nodeCount   = 3
	httpPort    = 7001
	raftPort    = 7101
	askBound    = 1500 * time.Millisecond // longer than a node asks others for its answer
	leaderBound = 20 * time.Second
	// keptEntries is more than any run makes: logs are never compacted, so that
	// each node's has every entry from the first.
	keptEntries = 100_000_000
)

// A cluster is three server processes with their clients' ways to them.
type cluster struct {
	bin      string
	dir      string // all that the run leaves behind
	nodes    []*node
	recorder *check.Recorder // its clock is everybody's
	proxies  []*replyProxy   // one before each node, or none
	wall     *firewall       // nil: we are in no namespace of our own

	mu    sync.Mutex // guards ended
	ended []string   // processes that ended and were not meant to
}

// newCluster lays out a cluster in dir; nothing is started. Outside a namespace the
// nodes take free ports.
func newCluster(bin, dir string, inside bool, wall *firewall) (*cluster, error) {
	c := &cluster{bin: bin, dir: dir, recorder: check.NewRecorder(), wall: wall}
	var peers []string
	for i := range nodeCount {
		n := &node{name: fmt.Sprintf("n%d", i+1), addr: nodeAddr(i), exits: c.note}
		n.dir, n.log = filepath.Join(dir, n.name), filepath.Join(dir, n.name+".log")
		ports := []int{httpPort, raftPort}
		if inside {
			n.uid = nodeUser(i)
		} else {
			var err error
			if ports, err = freePorts(n.addr, 2); err != nil {
				return nil, err
			}
		}
		n.http, n.raft = fmt.Sprintf("%s:%d", n.addr, ports[0]), fmt.Sprintf("%s:%d", n.addr, ports[1])
		n.launch = func(n *node) *exec.Cmd { return exec.Command(bin, n.arguments()...) }
		peers = append(peers, n.url())
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		n.args = []string{
			"--peers", strings.Join(peers, ","), "--expect", fmt.Sprint(nodeCount),
			"--snapshot-entries", fmt.Sprint(keptEntries), "--trailing-entries", fmt.Sprint(keptEntries),
		}
	}
	return c, nil
}

// arguments are the node's, with what may have been replaced since it was laid out.
func (n *node) arguments() []string {
	return append([]string{"server", "--name", n.name, "--data-dir", n.dir, "--http-addr", n.http, "--raft-addr", n.raft}, n.args...)
}

func freePorts(addr string, count int) (ports []int, err error) {
	for range count {
		l, err := net.Listen("tcp", addr+":0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // all are held until all are known
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func (c *cluster) note(n *node, how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = append(c.ended, fmt.Sprintf("%s ended by itself: %s", n.name, how))
}

// start starts all nodes and waits until they are ready.
func (c *cluster) start(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	return c.whole(ctx)
}

// whole waits until every node runs and is ready.
func (c *cluster) whole(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := n.restart(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stop ends all nodes, at once so that the last are not left without a quorum.
func (c *cluster) stop() error {
	errs := make([]error, len(c.nodes))
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		wg.Go(func() { errs[i] = n.stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// endpoints are the URLs for clients, beginning with the i-th.
func (c *cluster) endpoints(i int) (urls []string) {
	for j := range c.nodes {
		at := (i + j) % len(c.nodes)
		if c.proxies != nil {
			urls = append(urls, c.proxies[at].url())
		} else {
			urls = append(urls, c.nodes[at].url())
		}
	}
	return urls
}

// claim takes one of the nodes for an attack, nil if others have all of them.
func claim(of ...*node) *node {
	for _, n := range of {
		if n.claim() {
			return n
		}
	}
	return nil
}

// A leadership is who leads, by its own word, and in which term.
type leadership struct {
	node *node
	term uint64
}

// leader asks all nodes until one says of itself that it leads, in a term above.
func (c *cluster) leader(ctx context.Context, above uint64) (leadership, error) {
	ctx, cancel := context.WithTimeout(ctx, leaderBound)
	defer cancel()
	for {
		var best leadership
		for _, n := range c.nodes {
			if s := status(ctx, n); s != nil && s.Leader == n.name && s.Term > max(above, best.term) {
				best = leadership{n, s.Term}
			}
		}
		if best.node != nil {
			return best, nil
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return best, fmt.Errorf("no leader above term %d within %s", above, leaderBound)
		}
	}
}

// successorBound is how long a fault stays for another leader to be seen, beyond the
// time that it was meant to stay.
const successorBound = 5 * time.Second

// successor waits for a leader in a term above; the zero leadership: none was seen,
// which may be another fault's doing.
func (c *cluster) successor(ctx context.Context, above uint64) leadership {
	ctx, cancel := context.WithTimeout(ctx, successorBound)
	defer cancel()
	l, err := c.leader(ctx, above)
	if err != nil {
		return leadership{}
	}
	return l
}

// succeeded says who followed a leader that was hit: the successor that was seen
// then, or whoever leads now in a later term.
func (c *cluster) succeeded(ctx context.Context, hit, seen leadership) (evidence string, err error) {
	if seen.node == nil {
		if seen, err = c.leader(ctx, 0); err != nil {
			return "", err
		}
		if seen.term <= hit.term {
			return "", fmt.Errorf("%w: %s still leads in term %d", errMissed, seen.node.name, seen.term)
		}
		return fmt.Sprintf("%s leads in term %d, after the fault", seen.node.name, seen.term), nil
	}
	return fmt.Sprintf("%s led in term %d", seen.node.name, seen.term), nil
}

// claimLeader takes the leader for an attack.
func (c *cluster) claimLeader(ctx context.Context) (leadership, error) {
	l, err := c.leader(ctx, 0)
	if err == nil && !l.node.claim() {
		return l, errBusy
	}
	return l, err
}

// others are the nodes but one.
func (c *cluster) others(than *node) (list []*node) {
	for _, n := range c.nodes {
		if n != than {
			list = append(list, n)
		}
	}
	return list
}

// status is what a node tells of the cluster, nil if nothing.
func status(ctx context.Context, n *node) *wire.Cluster {
	if !n.running() {
		return nil
	}
	code, body, err := ask(ctx, n.url()+"/v1/cluster")
	s := new(wire.Cluster)
	if err != nil || code != http.StatusOK || json.Unmarshal(body, s) != nil {
		return nil
	}
	return s
}

// ask is one request on a connection of its own, with little patience.
func ask(ctx context.Context, url string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}
