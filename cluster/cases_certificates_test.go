package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"fencepost/cluster/certs"
	"fencepost/cluster/certs/testca"
	"fencepost/fsm/fsmpb"
)

// Known cases of certificates: expiry, rotation, clock skew. Files are real, time is
// not; Raft's connections are TLS over pipes.

// tlsSim is what the nodes of a sim have in the way of certificates.
type tlsSim struct {
	t    *testing.T
	dir  string
	ca   *testca.CA
	skew map[string]time.Duration // by which a node's clock is ahead

	mu        sync.Mutex // guards what follows
	listening map[string]*pipeListener
	secures   map[string]*secure // of the node's present life
	logs      map[string]*bytes.Buffer
}

// setUp gives each node of the sim TLS for Raft, with a certificate of this life.
func (c *tlsSim) setUp(s *sim, life time.Duration) {
	c.dir, c.ca, c.skew = c.t.TempDir(), testca.New(c.t), map[string]time.Duration{}
	c.listening, c.secures, c.logs = map[string]*pipeListener{}, map[string]*secure{}, map[string]*bytes.Buffer{}
	c.ca.Write(c.dir)
	for i := range 3 {
		c.issue(fmt.Sprintf("n%d", i+1), life)
	}
	s.change = func(cfg *Config) {
		cfg.Logger = c.logger(cfg.Name)
		cfg.RaftTLS = c.open("raft", cfg.Name)
	}
	s.wire = c.wire
}

// issue gives a node a certificate that is valid from now, as its clock has it.
func (c *tlsSim) issue(name string, life time.Duration) {
	now := time.Now().Add(c.skew[name])
	c.ca.Issue(c.dir, name, now, now.Add(life), name)
}

func (c *tlsSim) open(use, name string) *certs.Source {
	c.t.Helper()
	ca, skew := filepath.Join(c.dir, "ca.crt"), c.skew[name]
	s, err := certs.Open(
		certs.Files{Cert: filepath.Join(c.dir, name+".crt"), Key: filepath.Join(c.dir, name+".key"), CA: ca, ClientCA: ca},
		certs.Options{Use: use, Host: name, Logger: c.logger(name), Now: func() time.Time { return time.Now().Add(skew) }})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c *tlsSim) logger(name string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: tlsLog{c, name}, Level: hclog.Info})
}

type tlsLog struct {
	c    *tlsSim
	name string
}

func (l tlsLog) Write(p []byte) (int, error) {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	if l.c.logs[l.name] == nil {
		l.c.logs[l.name] = new(bytes.Buffer)
	}
	return l.c.logs[l.name].Write(p)
}

// told is what a node's log has.
func (c *tlsSim) told(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.logs[name] == nil {
		return ""
	}
	return c.logs[name].String()
}

// pipeListener is where others reach a node, by pipes.
type pipeListener struct {
	arrives chan net.Conn
	closed  chan struct{}
	once    sync.Once
	name    string
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.arrives:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: l.name} }

func (c *tlsSim) dial(address string, timeout time.Duration) (net.Conn, error) {
	c.mu.Lock()
	l := c.listening[address]
	c.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("nobody listens at %s", address)
	}
	here, there := net.Pipe()
	select {
	case l.arrives <- there:
		return here, nil
	case <-l.closed:
		return nil, fmt.Errorf("nobody listens at %s any more", address)
	case <-time.After(timeout):
		return nil, context.DeadlineExceeded
	}
}

// wire makes the transport that a node has outside tests, but for the sockets.
func (c *tlsSim) wire(cfg Config) simTransport {
	l := &pipeListener{arrives: make(chan net.Conn), closed: make(chan struct{}), name: cfg.Name}
	layer := newStreams(l, l.Addr(), "c1", cfg.RaftTLS, cfg.Logger)
	layer.dial = c.dial
	c.mu.Lock()
	c.listening[cfg.RaftAddr], c.secures[cfg.Name] = l, layer.secure
	c.mu.Unlock()
	return &closing{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: 3, Timeout: cfg.RPC, MaxRPCsInFlight: 1, Logger: cfg.Logger.Named("transport"),
	})}
}

// closing also ends the connections that a process would take with it.
type closing struct{ *raft.NetworkTransport }

func (c *closing) Close() error {
	c.CloseStreams()
	return c.NetworkTransport.Close()
}

// ends are when the connections of all nodes end.
func (c *tlsSim) ends() (list []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.secures {
		s.mu.Lock()
		for t := range s.open {
			list = append(list, t.end)
		}
		s.mu.Unlock()
	}
	return list
}

// keep renews a lease each second at whoever leads until it is stopped, and fails the
// test if a renewal is refused; renewed counts the others.
func (s *sim) keep(name string, token uint64) (stop func() (renewed int)) {
	done, ended := make(chan struct{}), make(chan int, 1)
	go func() {
		renewed := 0
		defer func() { ended <- renewed }()
		for {
			select {
			case <-done:
				return
			case <-s.t.Context().Done(): // the test has failed before it stopped this
				return
			case <-time.After(time.Second):
			}
			for _, n := range s.nodes {
				if n.now.Load().reading.Load() == nil {
					continue
				}
				if o, err := n.renew(name, token); err == nil && o.Code != fsmpb.Code_CODE_OK {
					s.t.Errorf("a renewal was refused: %v", o)
					return
				} else if err == nil {
					renewed++
				}
			}
		}
	}()
	return func() int { close(done); return <-ended }
}

// Certificates that live for 90 s are replaced after 60 s, again and again: no lease is
// lost, nobody restarts, and no connection outlives its certificate.
func TestP7_B78_RotationLosesNoLease(t *testing.T) {
	c := &tlsSim{t: t}
	inSimOn(t, func(s *sim) { c.setUp(s, 90*time.Second) }, func(t *testing.T, s *sim) {
		l := s.leader()
		held := l.mustAcquire("held", 5*time.Second)
		stop := s.keep("held", held.Token)
		term := l.Status().Term
		for range 5 {
			for range 60 {
				time.Sleep(time.Second)
				for _, end := range c.ends() {
					if late := time.Since(end); late > 2*expiredLook {
						t.Fatalf("a connection lives %s longer than its certificate", late)
					}
				}
			}
			for _, n := range s.nodes {
				c.issue(n.cfg.Name, 90*time.Second)
				time.Sleep(100 * time.Millisecond) // one after the other, as people do it
			}
		}
		time.Sleep(35 * time.Second) // the certificates before these have run out
		if renewed := stop(); renewed < 300 {
			t.Errorf("%d renewals in 335 s", renewed)
		}
		last := s.leader()
		if o, err := last.renew("held", held.Token); err != nil || o.Code != fsmpb.Code_CODE_OK {
			t.Fatalf("after five rotations: %v %v", o, err)
		}
		if now := last.Status().Term; now != term {
			t.Logf("there was an election, in term %d", now)
		}
		if len(c.ends()) < 4 {
			t.Errorf("%d connections are open", len(c.ends()))
		}
		for _, n := range s.nodes {
			if left := gauge(t, n.Node, "fencepost_certificate_expires_seconds"); left < 10 || left > 60 {
				t.Errorf("%s: the metric says %.0f s", n.cfg.Name, left)
			}
			if got := strings.Count(c.told(n.cfg.Name), "were read anew"); got != 5 {
				t.Errorf("%s: files were read anew %d times", n.cfg.Name, got)
			}
		}
		s.sameEverywhere()
	})
}

// The leader's certificate runs out while the followers' are good: it hands over before,
// stays out of office, and takes part again once its files are replaced.
func TestP8_B78_ALeaderWhoseCertificateRunsOutGivesWay(t *testing.T) {
	c := &tlsSim{t: t}
	inSimOn(t, func(s *sim) { c.setUp(s, 24*time.Hour) }, func(t *testing.T, s *sim) {
		old := s.leader()
		held := old.mustAcquire("held", 5*time.Second)
		stop := s.keep("held", held.Token)
		c.issue(old.cfg.Name, 90*time.Second)
		time.Sleep(3 * time.Second)
		if s.leader() != old {
			t.Fatal("a fresh certificate is no reason to give way")
		}
		time.Sleep(80 * time.Second)
		next := s.leader(old)
		if old.Status().IsLeader {
			t.Error("the leader stays, though its certificate runs out")
		}
		if told := c.told(old.cfg.Name); !strings.Contains(told, "gives leadership away") {
			t.Errorf("its log does not say that it gives way: %s", told)
		}
		for range 120 {
			time.Sleep(time.Second)
			if old.ready.term() != 0 {
				t.Fatal("a node whose certificate has run out leads")
			}
		}
		if err := old.Ready(); err == nil || !strings.Contains(err.Error(), "run out") {
			t.Errorf("it is ready: %v", err)
		}
		if o, err := next.put("k", held.Token, "v"); err != nil || o.Code != fsmpb.Code_CODE_OK {
			t.Fatalf("without it: %v %v", o, err)
		}
		if told := c.told(next.cfg.Name); !strings.Contains(told, "check=expired") || !strings.Contains(told, "CN="+old.cfg.Name) {
			t.Errorf("the next leader does not say what it refuses: %s", told)
		}
		c.issue(old.cfg.Name, 24*time.Hour)
		s.sameEverywhere()
		time.Sleep(5 * time.Second)
		if err := old.Ready(); err != nil {
			t.Errorf("with a new certificate: %v", err)
		}
		if renewed := stop(); renewed < 180 {
			t.Errorf("%d renewals", renewed)
		}
	})
}

// The same for the certificate of its API, though Raft reaches it.
func TestB78_ALeaderWhoseAPICertificateRunsOutGivesWay(t *testing.T) {
	c := &tlsSim{t: t}
	inSimOn(t, func(s *sim) {
		c.setUp(s, 24*time.Hour)
		s.wire = nil
		s.change = func(cfg *Config) { cfg.HTTPTLS, cfg.Logger = c.open("http", cfg.Name), c.logger(cfg.Name) }
	}, func(t *testing.T, s *sim) {
		old := s.leader()
		held := old.mustAcquire("held", time.Hour)
		c.issue(old.cfg.Name, 90*time.Second)
		time.Sleep(83 * time.Second)
		next := s.leader(old)
		if !strings.HasPrefix(next.Status().LeaderURL, "https://") {
			t.Errorf("the leader is at %s", next.Status().LeaderURL)
		}
		// The others are cut off, and it could lead only alone: it does not come back.
		time.Sleep(10 * time.Minute)
		if old.ready.term() != 0 {
			t.Error("it leads again, without a certificate")
		}
		if l, _, err := s.leader(old).lease("held"); err != nil || !l.Live() || l.LastToken != held.Token {
			t.Errorf("the lease: %+v %v", l, err)
		}
		c.issue(old.cfg.Name, 24*time.Hour)
		time.Sleep(5 * time.Second)
		if _, err := s.leader(old).Transfer(t.Context(), old.cfg.Name); err != nil {
			t.Errorf("with a new one it may lead: %v", err)
		}
	})
}

// Nobody's certificate is valid any more: nothing works, nothing is lost, the logs say
// why, and new files are enough to go on.
func TestB78_NobodysCertificateIsValid(t *testing.T) {
	c := &tlsSim{t: t}
	inSimOn(t, func(s *sim) { c.setUp(s, 2*time.Minute) }, func(t *testing.T, s *sim) {
		held := s.leader().mustAcquire("held", time.Hour)
		time.Sleep(4 * time.Minute)
		for _, n := range s.nodes {
			if n.ready.term() != 0 {
				t.Errorf("%s leads", n.cfg.Name)
			}
			if told := c.told(n.cfg.Name); !strings.Contains(told, "the certificate has run out") || !strings.Contains(told, "check=expired") {
				t.Errorf("%s does not say why nothing works: %s", n.cfg.Name, told)
			}
			c.issue(n.cfg.Name, time.Hour)
		}
		if l, _, err := s.leader().lease("held"); err != nil || l == nil || l.LastToken != held.Token {
			t.Fatalf("the lease: %+v %v", l, err)
		}
		s.sameEverywhere()
	})
}

// A node's clock is two hours ahead. Where certificates live for an hour it takes
// everybody's for expired, and one that it issued itself is not yet valid for the others.
// Each log says so with both times, and the others go on.
func TestB78_AClockTwoHoursAhead(t *testing.T) {
	c := &tlsSim{t: t}
	inSimOn(t, func(s *sim) { c.setUp(s, time.Hour) }, func(t *testing.T, s *sim) {
		l := s.leader()
		held := l.mustAcquire("held", 5*time.Second)
		stop := s.keep("held", held.Token)
		var ahead *simNode
		for _, n := range s.nodes {
			if n != l {
				ahead = n
			}
		}
		name := ahead.cfg.Name
		reboot := func() {
			ahead.stop()
			ahead.restart()
			time.Sleep(time.Minute)
			if now := s.leader(); now != l {
				t.Errorf("%s leads instead of %s", now.cfg.Name, l.cfg.Name)
			}
		}
		c.skew[name] = 2 * time.Hour
		reboot() // with the certificate that it had
		if told := c.told(name); !strings.Contains(told, "check=expired") || !strings.Contains(told, time.Now().UTC().Add(2*time.Hour).Format("2006-01-02T15:")) {
			t.Errorf("its log: %s", told)
		}
		c.issue(name, time.Hour)
		reboot() // with one that begins in two hours
		if told := c.told(l.cfg.Name); !strings.Contains(told, `check="not yet valid"`) ||
			!strings.Contains(told, "valid from "+time.Now().UTC().Add(2*time.Hour-2*time.Minute).Format("2006-01-02T15:")) {
			t.Errorf("the leader's log: %s", told)
		}
		if renewed := stop(); renewed < 100 {
			t.Errorf("%d renewals", renewed)
		}
		c.skew[name] = 0
		c.issue(name, time.Hour)
		reboot()
		s.sameEverywhere()
	})
}

// Who reaches the Raft port without a certificate of the cluster's authority says
// nothing to Raft: not in plain text, not without a certificate, not with one of another
// authority; nor another cluster with one of this authority.
func TestB78_StrangersCannotSpeakOnTheRaftPort(t *testing.T) {
	dir, otherDir := t.TempDir(), t.TempDir()
	ca, other := testca.New(t), testca.New(t)
	ours := ca.Write(dir)
	theirs := other.Write(otherDir)
	open := func(by *testca.CA, dir, trusts string) *certs.Source {
		t.Helper()
		f := certs.Files{CA: trusts, ClientCA: trusts}
		if by != nil {
			f.Cert, f.Key = by.Issue(dir, "n", time.Now().Add(-time.Hour), time.Now().Add(time.Hour), "127.0.0.1")
		}
		s, err := certs.Open(f, certs.Options{Use: "raft"})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	id, otherID := fmt.Sprintf("%032d", 1), fmt.Sprintf("%032d", 2)
	addr := freeAddrs(t, 1)[0]
	mine, err := listen(addr, addr, id, open(ca, dir, ours), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	dial := func(id string, c *certs.Source) (net.Conn, error) {
		from := &streams{greeting: greetingMagic + id, dial: dialTCP, secure: newSecure(c)}
		return from.Dial(raft.ServerAddress(addr), 5*time.Second)
	}
	for _, stranger := range []struct {
		what, id string
		certs    *certs.Source
	}{
		{"plain text", id, nil},
		{"no certificate", id, open(nil, "", ours)},
		{"a certificate of another authority", id, open(other, otherDir, ours)},
		{"another authority altogether", id, open(other, otherDir, theirs)},
		{"another cluster", otherID, open(ca, dir, ours)},
	} {
		c, err := dial(stranger.id, stranger.certs)
		if err != nil {
			continue // refused in the handshake
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err = c.Read(make([]byte, 1)) // TLS may have an alert to show, and then it is closed
		if ne, ok := err.(net.Error); err == nil && stranger.certs != nil || ok && ne.Timeout() {
			t.Errorf("%s: answered, or not cut off: %v", stranger.what, err)
		}
		c.Close()
		select {
		case <-mine.greeted:
			t.Fatalf("%s: got through to Raft", stranger.what)
		default:
		}
	}
	c, err := dial(id, open(ca, dir, ours))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	in, err := mine.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	got := make([]byte, 5)
	if _, err := io.ReadFull(in, got); err != nil || string(got) != "hello" {
		t.Fatalf("a member said %q, %v", got, err)
	}
}
