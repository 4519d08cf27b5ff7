package cluster

import (
	"context"
	"net"
	"sync"
	"time"

	"fencepost/cluster/certs"
)

// expiredLook is how often connections are looked at whose certificates may have run out.
const expiredLook = time.Second

// secure is TLS under the streams of a cluster. Both sides show a certificate of the
// cluster's authority, before anything else is said.
type secure struct {
	certs *certs.Source

	mu   sync.Mutex // guards open
	open map[*termed]struct{}
}

// termed is a connection that lasts as long as the certificates that it was made with:
// Raft keeps its connections for ever, and nobody would look at them again.
type termed struct {
	net.Conn
	raw net.Conn // below TLS
	end time.Time
	of  *secure
}

func newSecure(c *certs.Source) *secure {
	if c == nil {
		return nil
	}
	return &secure{certs: c, open: make(map[*termed]struct{})}
}

// accepted is the connection once the one who dialled has shown who it is.
func (s *secure) accepted(raw net.Conn, bound time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	c, end, err := s.certs.Server(ctx, raw)
	if err != nil {
		return nil, err
	}
	return s.keep(c, raw, end), nil
}

// dialled is the connection once the one at this address has shown that it is there.
func (s *secure) dialled(raw net.Conn, address string, bound time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	c, end, err := s.certs.Client(ctx, raw, certs.HostOf(address))
	if err != nil {
		return nil, err
	}
	return s.keep(c, raw, end), nil
}

func (s *secure) keep(c, raw net.Conn, end time.Time) *termed {
	t := &termed{Conn: c, raw: raw, end: end, of: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[t] = struct{}{}
	return t
}

func (t *termed) Close() error {
	t.of.mu.Lock()
	delete(t.of.open, t)
	t.of.mu.Unlock()
	return t.Conn.Close()
}

// sweep closes connections whose time is over until done is closed. Whoever uses one
// makes another, if it has a certificate for that.
func (s *secure) sweep(done <-chan struct{}) {
	t := time.NewTicker(expiredLook)
	defer t.Stop()
	for {
		select {
		case <-done:
			return
		case <-t.C:
		}
		now := s.certs.Now()
		var over []*termed
		s.mu.Lock()
		for c := range s.open {
			if now.After(c.end) {
				over = append(over, c)
			}
		}
		s.mu.Unlock()
		for _, c := range over {
			c.raw.Close() // not a word more; its user, who sees it, closes the rest
		}
	}
}
