package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// slowLinks is the other half of N8: all that nodes say to each other arrives late.
// They reach each other through a relay each, whose address they advertise, since
// the kernel here cannot delay packets.
type slowLinks struct {
	r      *rand.Rand
	relays []*relay
}

func (a *slowLinks) prepare(_ context.Context, c *cluster) (undo func() error, err error) {
	undo = func() error {
		var errs []error
		for _, r := range a.relays {
			errs = append(errs, r.close())
		}
		return errors.Join(errs...)
	}
	for i, n := range c.nodes {
		r, err := newRelay(relayAddr(i)+":0", n.raft)
		if err != nil {
			return undo, err
		}
		a.relays = append(a.relays, r)
		n.args = append(n.args, "--advertise-raft", r.listener.Addr().String())
	}
	return undo, nil
}

func relayAddr(i int) string { return fmt.Sprintf("127.0.0.%d", 31+i) }

func (a *slowLinks) land(_ context.Context, c *cluster) (*landing, error) {
	late := between(a.r, 20*time.Millisecond, 400*time.Millisecond)
	hold := between(a.r, 4*time.Second, 8*time.Second)
	at := c.recorder.Now()
	before := a.delayed()
	for _, r := range a.relays {
		r.delay.Store(int64(late))
	}
	return &landing{
		at: at, what: fmt.Sprintf("what nodes say is %s to %s late, for %s", late.Round(time.Millisecond), (2 * late).Round(time.Millisecond), hold.Round(time.Millisecond)), hold: hold,
		heal: func(context.Context) (string, error) {
			for _, r := range a.relays {
				r.delay.Store(0)
			}
			n := a.delayed() - before
			if n == 0 {
				return "", errMissed
			}
			return fmt.Sprintf("%d pieces were late", n), nil
		},
	}, nil
}

func (a *slowLinks) delayed() (n int64) {
	for _, r := range a.relays {
		n += r.delayed.Load()
	}
	return n
}

// A relay hands on what connections carry, in order and late.
type relay struct {
	listener net.Listener
	target   string
	delay    atomic.Int64 // ns; each piece is late by this to twice this
	delayed  atomic.Int64 // pieces that were

	wg   sync.WaitGroup
	mu   sync.Mutex // guards open
	open map[net.Conn]bool
}

func newRelay(addr, target string) (*relay, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, target: target, open: make(map[net.Conn]bool)}
	r.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.join(c) })
		}
	})
	return r, nil
}

// keep notes a connection, to be closed with the relay.
func (r *relay) keep(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[c] = true
}

func (r *relay) drop(c net.Conn) {
	c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
}

func (r *relay) join(from net.Conn) {
	r.keep(from)
	defer r.drop(from)
	to, err := net.DialTimeout("tcp", r.target, time.Second)
	if err != nil {
		return
	}
	r.keep(to)
	defer r.drop(to)
	var both sync.WaitGroup
	for _, ends := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			r.carry(ends[0], ends[1])
			// Whoever is cut off in one direction is in the other.
			from.Close()
			to.Close()
		})
	}
	both.Wait()
}

type piece struct {
	data []byte
	at   time.Time // when it is handed on
}

// carry hands on one direction. The queue is bounded, as a link's is.
func (r *relay) carry(from io.Reader, to io.Writer) {
	queue := make(chan piece, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		var err error
		for p := range queue {
			if err != nil {
				continue // so that the reader never waits for us
			}
			time.Sleep(time.Until(p.at))
			_, err = to.Write(p.data)
		}
	})
	defer writer.Wait()
	defer close(queue)
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			p := piece{data: buffer[:n], at: time.Now()}
			if d := r.delay.Load(); d > 0 {
				p.at = p.at.Add(time.Duration(d + rand.Int64N(d)))
				r.delayed.Add(1)
			}
			queue <- p
		}
		if err != nil {
			return
		}
	}
}

func (r *relay) close() error {
	err := r.listener.Close()
	r.mu.Lock()
	for c := range r.open {
		c.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
	return err
}
