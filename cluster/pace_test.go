package cluster

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/cluster/bubble"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// However many records come due, they go in time: a table that fills faster
// than it is emptied would refuse everything new in the end.
func TestOldRecordsLeaveAsFastAsTheyCame(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		const count = 6000
		for i := range count {
			_, err := l.Release(t.Context(), time.Now(), &fsmpb.Release{
				Name: "x", Token: 1, Request: &fsmpb.Request{Key: fmt.Sprint(i), Path: "p", ServerMade: true},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		requests := func() (n int) {
			l.machine.view(func(st *fsm.State) { n = st.Counts().Requests })
			return n
		}
		if got := requests(); got != count {
			t.Fatalf("%d requests are remembered, want %d", got, count)
		}
		time.Sleep(fsm.KeepServerMadeMS*time.Millisecond + 2*removeLate)
		if got := requests(); got > 0 {
			t.Fatalf("%d of %d are still remembered %s after they were due", got, count, 2*removeLate)
		}
	})
}

// A name whose former identity is in the records, but not in Raft's
// configuration any more, can be taken: its leader died in the middle. So can
// the address of one that is in the configuration, was never recorded, and is
// not alive. What is alive is not to be had.
func TestJoinOfAWipedNode(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		record := func(name, id, addr string) *fsmpb.Node {
			return &fsmpb.Node{Name: name, Id: id, RaftAddr: addr, HttpAddr: "h:1", Voter: true, Understands: 1}
		}
		joined := func(n *fsmpb.Node, gone string) {
			t.Helper()
			var err error
			for range 100 { // until heartbeats to its former self have failed
				if err = l.Join(t.Context(), n); err == nil {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if err != nil {
				t.Fatalf("%s cannot come back: %v", n.Id, err)
			}
			if _, ok := l.member.Load().server(n.Id); !ok {
				t.Fatalf("%s is not in Raft's configuration", n.Id)
			}
			if _, ok := l.member.Load().server(gone); ok {
				t.Fatalf("%s is still in Raft's configuration", gone)
			}
			for _, m := range l.machine.members() {
				if m.Id == gone {
					t.Fatalf("%s is still on record", gone)
				}
			}
		}
		set := func(n *fsmpb.Node) {
			t.Helper()
			c := &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{Node: n, ClusterId: "c1"}}}
			if _, err := l.propose(t.Context(), time.Now(), c); err != nil {
				t.Fatal(err)
			}
		}
		set(record("n9", "ghost", "n9"))
		joined(record("n9", "id9", "n9"), "ghost")
		joined(record("other-name", "id10", "n9"), "id9")
		if err := change(t.Context(), l.member.Load().raft.AddNonvoter("unrecorded", "n11", 0, 0)); err != nil {
			t.Fatal(err)
		}
		joined(record("n11", "id11", "n11"), "unrecorded")

		before := l.Status().Index
		for _, n := range []*fsmpb.Node{record(l.cfg.Name, "id8", "n8"), record("n8", "id8", l.cfg.RaftAddr)} {
			if err := l.Join(t.Context(), n); err != ErrNameInUse {
				t.Errorf("join of %v: %v", n, err)
			}
		}
		if l.Status().Index != before {
			t.Error("a refused join left an entry")
		}
	})
}

// A pause is dealt with before the process counts as running again.
func TestP10_APauseDropsReadinessFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPauses(200 * time.Millisecond)
		p.stamp.Store(int64(-time.Hour))
		seen := make(chan bool, 1)
		go p.watch(t.Context(), func() {
			select {
			case seen <- p.running():
			default:
			}
		})
		// watch stamps when it begins; then it stands still, as far as it can see.
		synctest.Wait()
		p.stamp.Store(int64(-time.Hour))
		if <-seen {
			t.Fatal("while the pause was dealt with, the process already counted as running")
		}
	})
}

// A large message on a slow link gets the time that its size takes; a small one
// to somebody who does not read does not.
func TestLargeMessagesGetTimeForTheirSize(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := &sizedConn{Conn: near}
		const size = 16 << 20
		go func() {
			buf := make([]byte, 1<<20)
			for range size / len(buf) {
				time.Sleep(200 * time.Millisecond) // 5 MiB/s
				if _, err := io.ReadFull(far, buf); err != nil {
					return
				}
			}
		}()
		c.SetDeadline(time.Now().Add(500 * time.Millisecond))
		if n, err := c.Write(make([]byte, size)); err != nil || n != size {
			t.Fatalf("wrote %d of %d: %v", n, size, err)
		}
		c.SetDeadline(time.Now().Add(500 * time.Millisecond))
		began := time.Now()
		if _, err := c.Write([]byte("nobody reads this")); err == nil || time.Since(began) != 500*time.Millisecond {
			t.Fatalf("a small message was given %s: %v", time.Since(began), err)
		}
		near.Close()
		far.Close()
	})
}

func TestLargeWritesGetTimeForTheirSize(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			bytes int
			takes time.Duration
			ends  bool
		}{{100, 6 * time.Second, true}, {32 << 20, 6 * time.Second, false}, {32 << 20, 14 * time.Second, true}} {
			hung := &simStore{InmemStore: raft.NewInmemStore()}
			s := watchStore(hung, hung)
			ended := ""
			done := make(chan struct{})
			go func() {
				defer close(done)
				s.watch(t.Context(), 5*time.Second, func(why string) { ended = why })
			}()
			resume := hung.stall()
			go func() {
				time.Sleep(tt.takes)
				resume()
			}()
			if err := s.StoreLog(&raft.Log{Index: 1, Data: make([]byte, tt.bytes)}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if (ended != "") != tt.ends {
				t.Errorf("a write of %d bytes that took %s: %q", tt.bytes, tt.takes, ended)
			}
		}
	})
}

// Repeated without a record, a conditional write would be told that it was
// refused: it is remembered even where the table is full.
func TestP11_ConditionalDeleteIsRememberedInAFullTable(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		g := l.mustAcquire("db", time.Hour)
		put, err := l.put("k", g.Token, "v")
		if err != nil {
			t.Fatal(err)
		}
		l.cfg.MaxRequests = 0
		for i := range 2 {
			r, err := l.Write(t.Context(), time.Now(), &fsmpb.Write{
				Token: g.Token, Request: &fsmpb.Request{Key: "once", Path: "p"},
				Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_DELETE, Key: "k", IfVersion: &put.Version}},
			})
			if err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
				t.Fatalf("time %d: %v %v", i+1, r.Outcome, err)
			}
		}
	})
}

func TestConfigRefusesAddressesThatOthersCannotReach(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1:7001": true, "node1:7001": true, "[::1]:7001": true,
		"0.0.0.0:7001": false, ":7001": false, "[::]:7001": false, "node1": false, "node1:0": false,
	} {
		cfg := DefaultConfig()
		cfg.Name, cfg.DataDir, cfg.HTTPAddr, cfg.RaftAddr = "n", "d", addr, "127.0.0.1:7101"
		cfg.Peers, cfg.Expect, cfg.Exit = []string{"http://127.0.0.1:7001"}, 1, func(string) {}
		err := cfg.Validate()
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "others cannot reach") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// A node that has heard of no leader does not call what it knows fresh.
func TestStaleReadBeforeAnyContactSaysSo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newNode(DefaultConfig())
		defer n.close()
		time.Sleep(time.Minute)
		info, err := n.Read(t.Context(), true, func(*fsm.State) {})
		if err != nil || info.Lag < time.Minute {
			t.Fatalf("lag %s, %v", info.Lag, err)
		}
	})
}
