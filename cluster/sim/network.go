package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

var errUnreachable = errors.New("no route to host")

// network connects hosts by name, nodes and clients. Each direction between two
// hosts is a link of its own.
type network struct {
	mu    sync.Mutex // guards what follows
	rng   *rand.Rand
	links map[[2]string]*link
	hosts map[string]*listener // that accept connections
	conns map[*conn]struct{}
	boots map[string]int // how often a host has crashed

	installs atomic.Int64 // of snapshots, that went well
}

func newNetwork(rng *rand.Rand) *network {
	return &network{rng: rng, links: make(map[[2]string]*link), hosts: make(map[string]*listener), conns: make(map[*conn]struct{}), boots: make(map[string]int)}
}

// link is one direction between two hosts.
type link struct {
	mu     sync.Mutex // guards what follows
	open   chan struct{}
	closed bool // open is not closed: what is sent is held
	rng    *rand.Rand
	delay  time.Duration
	held   uint64 // sendings that had to wait
}

func (n *network) link(from, to string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.links[[2]string{from, to}]
	if l == nil {
		l = &link{open: make(chan struct{}), rng: rand.New(rand.NewPCG(n.rng.Uint64(), n.rng.Uint64()))}
		close(l.open)
		n.links[[2]string{from, to}] = l
	}
	return l
}

// cut holds back what is sent from now on, as a network does that loses packets
// and a sender that sends them again.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed, l.open = true, make(chan struct{})
	}
}

func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		l.closed = false
		close(l.open)
	}
	l.delay = 0
}

func (l *link) slow(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

// wayBound is how long anything is on its way at the most over a sound link. It takes
// some time always: else a question and its answer would be one instant, between
// which nothing can happen.
const wayBound = time.Millisecond

// pass waits until something that is sent has arrived, or ctx ends.
func (l *link) pass(ctx context.Context) error {
	l.mu.Lock()
	open, delay := l.open, l.delay+between(l.rng, 0, wayBound)
	if l.closed {
		l.held++
	}
	l.mu.Unlock()
	select {
	case <-open:
	case <-ctx.Done():
		return errUnreachable
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errUnreachable
	}
}

func (l *link) heldBack() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// between is both directions.
func (n *network) between(a, b string) []*link { return []*link{n.link(a, b), n.link(b, a)} }

// listener accepts the connections to one host.
type listener struct {
	net   *network
	host  string
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (n *network) listen(host string) *listener {
	l := &listener{net: n, host: host, conns: make(chan net.Conn), done: make(chan struct{})}
	n.mu.Lock()
	n.hosts[host] = l
	n.mu.Unlock()
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *listener) Addr() net.Addr { return address(l.host) }

type address string

func (a address) Network() string { return "sim" }
func (a address) String() string  { return string(a) }

// dialer is the way from a host to others, for an http.Transport.
func (n *network) dialer(from string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		to, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		for _, l := range n.between(from, to) {
			if err := l.pass(ctx); err != nil {
				return nil, &net.OpError{Op: "dial", Net: "sim", Err: err}
			}
		}
		n.mu.Lock()
		l := n.hosts[to]
		n.mu.Unlock()
		refused := &net.OpError{Op: "dial", Net: "sim", Err: fmt.Errorf("%s refuses connections", to)}
		if l == nil {
			return nil, refused
		}
		near, far := net.Pipe()
		a := n.conn(near, from, to)
		select {
		case l.conns <- n.conn(far, to, from):
			return a, nil
		case <-l.done:
		case <-ctx.Done():
		}
		a.Close()
		return nil, refused
	}
}

func (n *network) epoch(host string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.boots[host]
}

// drop takes a host off the network: nothing that it sends from now on arrives.
func (n *network) drop(host string) {
	n.mu.Lock()
	n.boots[host]++
	if l := n.hosts[host]; l != nil {
		l.Close()
		delete(n.hosts, host)
	}
	var of []*conn
	for c := range n.conns {
		if c.from == host || c.to == host {
			of = append(of, c)
		}
	}
	n.mu.Unlock()
	for _, c := range of {
		c.Close()
	}
}

// conn is one end of a connection. What it writes goes over its link.
type conn struct {
	net.Conn
	net      *network
	from, to string
	ctx      context.Context
	cancel   context.CancelFunc

	mu       sync.Mutex // guards deadline
	deadline time.Time  // of writes
}

func (n *network) conn(c net.Conn, from, to string) *conn {
	out := &conn{Conn: c, net: n, from: from, to: to}
	out.ctx, out.cancel = context.WithCancel(context.Background())
	n.mu.Lock()
	n.conns[out] = struct{}{}
	n.mu.Unlock()
	return out
}

func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	deadline := c.deadline
	c.mu.Unlock()
	ctx := c.ctx
	if !deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	if err := c.net.link(c.from, c.to).pass(ctx); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) Close() error {
	c.cancel()
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return c.Conn.Close()
}

func (c *conn) LocalAddr() net.Addr  { return address(c.from) }
func (c *conn) RemoteAddr() net.Addr { return address(c.to) }

// heal opens all links.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		l.heal()
	}
}

// of are all links from and to a host.
func (n *network) of(host string) (all []*link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ends, l := range n.links {
		if ends[0] == host || ends[1] == host {
			all = append(all, l)
		}
	}
	return all
}
