package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"fencepost/cluster/certs"
)

// Every Raft connection begins with this and the cluster id, so that nodes of
// two clusters that got each other's addresses cannot speak.
const (
	greetingMagic = "FPRAFT1\n"
	greetingBound = 5 * time.Second
)

// streams is Raft's way to the other nodes of one cluster.
type streams struct {
	net.Listener
	advertised net.Addr
	greeting   string
	log        hclog.Logger
	secure     *secure // nil: no TLS
	dial       func(address string, timeout time.Duration) (net.Conn, error)

	greetings greetings
	greeted   chan net.Conn
	done      chan struct{}
	once      sync.Once
	wg        sync.WaitGroup
}

// listen makes the streams of a cluster; over plain TCP if there are no certificates.
func listen(addr, advertise, clusterID string, tls *certs.Source, log hclog.Logger) (*streams, error) {
	adv, err := net.ResolveTCPAddr("tcp", advertise)
	if err != nil {
		return nil, fmt.Errorf("resolve the Raft address that others use: %w", err)
	}
	if adv.IP == nil || adv.IP.IsUnspecified() {
		return nil, fmt.Errorf("others cannot reach Raft at %q: name an address of this node", advertise)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for Raft: %w", err)
	}
	return newStreams(l, adv, clusterID, tls, log), nil
}

func newStreams(l net.Listener, advertised net.Addr, clusterID string, tls *certs.Source, log hclog.Logger) *streams {
	s := &streams{
		Listener: l, advertised: advertised, greeting: greetingMagic + clusterID, log: log, secure: newSecure(tls), dial: dialTCP,
		greeted: make(chan net.Conn), done: make(chan struct{}),
	}
	s.wg.Go(s.accept)
	if s.secure != nil {
		s.wg.Go(func() { s.secure.sweep(s.done) })
	}
	return s
}

func (s *streams) accept() {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.log.Warn("accept a Raft connection", "error", err)
			select {
			case <-time.After(100 * time.Millisecond): // out of descriptors, most likely
			case <-s.done:
				return
			}
			continue
		}
		if !s.greetings.add(c) {
			c.Close()
			continue
		}
		s.wg.Go(func() { s.greet(c) })
	}
}

// greet hands the connection to Raft if it is of this cluster.
func (s *streams) greet(raw net.Conn) {
	c, ours := s.welcome(raw)
	s.greetings.done(raw)
	if !ours {
		c.Close()
		return
	}
	select {
	case s.greeted <- c:
	case <-s.done:
		c.Close()
	}
}

// welcome hears who has connected, and says whether it is of this cluster. The
// connection that it returns is the one to use, or to close.
func (s *streams) welcome(c net.Conn) (_ net.Conn, ours bool) {
	bound := time.Now().Add(greetingBound) // of the handshake and the greeting together
	if s.secure != nil {
		secured, err := s.secure.accepted(c, greetingBound) // which has said why not
		if err != nil {
			return c, false
		}
		c = secured
	}
	c.SetReadDeadline(bound)
	got := make([]byte, len(s.greeting))
	if _, err := io.ReadFull(c, got); err != nil {
		return c, false
	} else if string(got) != s.greeting {
		s.log.Warn("refused a Raft connection of another cluster", "from", c.RemoteAddr().String())
		return c, false
	}
	c.SetReadDeadline(time.Time{})
	return c, true
}

func (s *streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.greeted:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

func (s *streams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := s.dial(string(address), timeout)
	if err != nil {
		return nil, err
	}
	if s.secure != nil {
		secured, err := s.secure.dialled(c, string(address), timeout)
		if err != nil {
			c.Close()
			return nil, err
		}
		c = secured
	}
	c.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := io.WriteString(c, s.greeting); err != nil {
		c.Close()
		return nil, err
	}
	c.SetWriteDeadline(time.Time{})
	return &sizedConn{Conn: c}, nil
}

func dialTCP(address string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout, KeepAlive: 5 * time.Second}
	return d.Dial("tcp", address)
}

// sizedConn gives a message the time that its size takes. Raft bounds every
// exchange alike, so that a follower behind by large entries on a slow link
// would be sent the same message for ever. One goroutine uses it at a time.
type sizedConn struct {
	net.Conn
	bound time.Duration // of this exchange, as Raft set it
	sent  int           // of this exchange
}

// sizedChunk is how much is written before the deadline is looked at again.
const sizedChunk = 256 << 10

func (c *sizedConn) SetDeadline(t time.Time) error {
	c.sent, c.bound = 0, time.Until(t)
	if t.IsZero() {
		c.bound = 0
	}
	return c.Conn.SetDeadline(t)
}

func (c *sizedConn) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		chunk := b[:min(len(b), sizedChunk)]
		if c.sent += len(chunk); c.bound > 0 && c.sent > sizedChunk {
			if err := c.Conn.SetDeadline(time.Now().Add(c.bound + timeFor(c.sent))); err != nil {
				return n, err
			}
		}
		var k int
		k, err = c.Conn.Write(chunk)
		n, b = n+k, b[len(chunk):]
	}
	return n, err
}

func (s *streams) Addr() net.Addr { return s.advertised }

func (s *streams) Close() error {
	var err error
	s.once.Do(func() {
		close(s.done)
		err = s.Listener.Close()
		s.greetings.close()
		s.wg.Wait()
	})
	return err
}
