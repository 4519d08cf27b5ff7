package cluster

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"fencepost/cluster/bubble"
	"fencepost/cluster/certs"
	"fencepost/cluster/certs/testca"
)

// silent opens connections from this address that say nothing.
func silent(t *testing.T, from, to string, count int) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	for range count {
		c, err := d.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
}

// However many connections say nothing, from elsewhere or from the own host, a member
// gets in; without that the first of them would stop every election.
func TestS9_SilentConnectionsKeepNoMemberOut(t *testing.T) {
	for _, secured := range []bool{false, true} {
		for _, from := range []string{"127.0.0.9", "127.0.0.1"} {
			t.Run(fmt.Sprintf("from %s, TLS %v", from, secured), func(t *testing.T) {
				var source *certs.Source
				if secured {
					dir, ca := t.TempDir(), testca.New(t)
					f := certs.Files{CA: ca.Write(dir)}
					f.ClientCA = f.CA
					f.Cert, f.Key = ca.Issue(dir, "n", time.Now().Add(-time.Hour), time.Now().Add(time.Hour), "127.0.0.1")
					var err error
					if source, err = certs.Open(f, certs.Options{Use: "raft"}); err != nil {
						t.Fatal(err)
					}
				}
				addr := freeAddrs(t, 1)[0]
				mine, err := listen(addr, addr, strings.Repeat("1", 32), source, hclog.NewNullLogger())
				if err != nil {
					t.Fatal(err)
				}
				defer mine.Close()
				for range 5 {
					silent(t, from, addr, 2*maxGreetings)
					c, err := mine.Dial(raft.ServerAddress(addr), 10*time.Second)
					if err != nil {
						t.Fatalf("a member is kept out: %v", err)
					}
					defer c.Close()
					select {
					case in := <-mine.greeted:
						in.Close()
					case <-time.After(10 * time.Second):
						t.Fatal("a member is kept out")
					}
				}
				mine.greetings.mu.Lock()
				defer mine.greetings.mu.Unlock()
				if n := len(mine.greetings.open); n > maxGreetings {
					t.Errorf("%d connections have not said who they are, and have a place", n)
				}
			})
		}
	}
}

// A stranger's flood costs the stranger its own places, not those of members that are
// just saying who they are.
func TestS9_TheHostWithMostLosesItsOldest(t *testing.T) {
	var g greetings
	made := map[string][]*fromHost{}
	add := func(host string) *fromHost {
		c := &fromHost{address: host + ":1"}
		made[host] = append(made[host], c)
		if !g.add(c) {
			t.Fatal("no place")
		}
		return c
	}
	member := add("10.0.0.1")
	for range 3 * maxGreetings {
		add("192.0.2.7")
	}
	other := add("10.0.0.2")
	if member.closed || other.closed {
		t.Error("a member lost its place to a stranger")
	}
	for i, c := range made["192.0.2.7"] {
		if want := i < 3*maxGreetings-(maxGreetings-2); c.closed != want {
			t.Fatalf("connection %d of the stranger: closed %v", i, c.closed)
		}
	}
	g.done(member)
	g.done(member) // as one does that was closed for want of room
	if len(g.open) != maxGreetings-1 {
		t.Errorf("%d places are taken", len(g.open))
	}
	g.close()
	if g.add(&fromHost{address: "10.0.0.1:1"}) || !other.closed {
		t.Error("after the close there are connections still")
	}
}

type fromHost struct {
	net.Conn
	address string
	closed  bool
}

func (c *fromHost) RemoteAddr() net.Addr { return &net.UnixAddr{Name: c.address} }
func (c *fromHost) Close() error         { c.closed = true; return nil }

// Stopping waits for nobody who says nothing.
func TestStreamsCloseEndsGreetings(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := &pipeListener{arrives: make(chan net.Conn), closed: make(chan struct{}), name: "n1"}
		s := newStreams(l, l.Addr(), "c1", nil, hclog.NewNullLogger())
		for range 10 {
			here, there := net.Pipe()
			defer here.Close()
			l.arrives <- there
		}
		time.Sleep(time.Second)
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it waited %s for connections that say nothing", took)
		}
	})
}
