package cluster

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// realCluster runs three nodes in this process on real disks and loopback
// connections, and returns the leader.
func realCluster(t testing.TB) *Node {
	t.Helper()
	servers, cfgs := make([]raftServer, 3), make([]Config, 3)
	for i, addr := range freeAddrs(t, 3) {
		cfg := DefaultConfig()
		cfg.Name, cfg.DataDir, cfg.HTTPAddr = fmt.Sprintf("n%d", i+1), t.TempDir(), "127.0.0.1:1"
		cfg.RaftAddr, cfg.Peers, cfg.Expect = addr, []string{"http://127.0.0.1:1"}, 1
		cfg.Exit = func(why string) { t.Errorf("a node ended itself: %s", why) }
		cfgs[i], servers[i] = cfg, raftServer{ID: "id-" + cfg.Name, Addr: addr}
	}
	var nodes []*Node
	for i, cfg := range cfgs {
		d, err := openDataDir(cfg.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		id := identity{Version: identityVersion, Name: cfg.Name, ID: servers[i].ID, ClusterID: fmt.Sprintf("%032d", 7), Bootstrap: servers}
		if err := d.save(id); err != nil {
			t.Fatal(err)
		}
		d.close()
		n, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for _, n := range nodes {
			if n.ready.term() != 0 {
				return n
			}
		}
	}
	t.Fatal("no leader in 20 s")
	return nil
}

// freeAddrs finds ports below those that the kernel gives to outgoing
// connections: one of these could take the port of a node that is down.
func freeAddrs(t testing.TB, count int) (addrs []string) {
	t.Helper()
	for tries := 0; len(addrs) < count; tries++ {
		if tries > 1000 {
			t.Fatal("no free ports")
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		defer l.Close() // all are held until all are known
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// A data directory is one process's, one node's, and of one cluster.
func TestDataDirHasOneOwner(t *testing.T) {
	path := t.TempDir()
	d, err := openDataDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openDataDir(path); err == nil {
		t.Fatal("a second process got the same data directory")
	}
	first, err := d.identity("n1")
	if err != nil || first.ID == "" {
		t.Fatal(first, err)
	}
	again, err := d.identity("n1")
	if err != nil || again.ID != first.ID {
		t.Fatalf("the identity changed: %v %v", again, err)
	}
	if _, err := d.identity("n2"); err == nil {
		t.Fatal("node n2 may use the directory of n1")
	}
	d.close()
	other, err := openDataDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if id, err := other.identity("n1"); err != nil || id.ID == first.ID {
		t.Fatalf("another directory has the same identity: %v %v", id, err)
	}
}

// Raft speaks only to its own cluster.
func TestAnotherClustersConnectionIsRefused(t *testing.T) {
	addr := freeAddrs(t, 1)[0]
	mine, err := listen(addr, addr, fmt.Sprintf("%032d", 1), nil, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		for {
			c, err := mine.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	other := &streams{greeting: greetingMagic + fmt.Sprintf("%032d", 2), dial: dialTCP}
	c, err := other.Dial(raft.ServerAddress(addr), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Fatal("the connection of another cluster was kept open")
		}
	}
	same, err := mine.Dial(raft.ServerAddress(addr), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer same.Close()
	select {
	case c := <-accepted:
		c.Close()
	case <-time.After(10 * time.Second):
		t.Fatal("the own cluster's connection was not accepted")
	}
	select {
	case <-accepted:
		t.Fatal("another cluster's connection got through")
	default:
	}
}

// Whatever is refused for want of room is refused before the log, and what
// makes room never is.
func TestQuota(t *testing.T) {
	n := realCluster(t)
	acquire := func(name, key string) (Reply[*fsmpb.Outcome], error) {
		return n.Acquire(t.Context(), time.Now(), &fsmpb.Acquire{
			Name: name, Holder: "h", TtlMs: 60000, Request: &fsmpb.Request{Key: key, Path: name},
		})
	}
	g, err := acquire("a", "k1")
	if err != nil {
		t.Fatal(err)
	}
	n.cfg.MaxLeases = 1
	before := n.Status().Index
	if _, err := acquire("b", "k2"); err == nil {
		t.Fatal("a lease above the limit was granted")
	} else if _, ok := err.(*QuotaError); !ok {
		t.Fatal(err)
	}
	if n.Status().Index != before {
		t.Fatal("a refusal for quota cost an entry")
	}
	if again, err := acquire("a", "k1"); err != nil || again.Outcome.Token != g.Outcome.Token {
		t.Fatalf("a repetition was refused: %v %v", again.Outcome, err)
	}
	n.cfg.MaxRequests = 1
	r, err := n.Release(t.Context(), time.Now(), &fsmpb.Release{Name: "a", Token: g.Outcome.Token, Request: &fsmpb.Request{Key: "k3", Path: "a"}})
	if err != nil || !r.Outcome.Released {
		t.Fatalf("a release was refused for want of room: %v %v", r.Outcome, err)
	}
	n.cfg.MaxLeases, n.cfg.MaxRequests = 10, 1000
	if g, err = acquire("a", "k4"); err != nil {
		t.Fatal(err)
	}
	write := func(op *fsmpb.WriteOp) error {
		r, err := n.Write(t.Context(), time.Now(), &fsmpb.Write{Token: g.Outcome.Token, Ops: []*fsmpb.WriteOp{op}})
		if err == nil && r.Outcome.Code != fsmpb.Code_CODE_OK {
			err = fmt.Errorf("refused: %v", r.Outcome)
		}
		return err
	}
	put := &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_PUT, Key: "k", Value: make([]byte, 1000)}
	if err := write(put); err != nil {
		t.Fatal(err)
	}
	n.cfg.MaxDataBytes = 1500
	if _, ok := write(put).(*QuotaError); !ok {
		t.Fatal("a put above the quota went through")
	}
	if err := write(&fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_DELETE, Key: "k"}); err != nil {
		t.Fatalf("a delete was refused for want of room: %v", err)
	}
}

// BenchmarkCommit is what a proposal costs without HTTP: three nodes in this
// process, real disks, 64 proposers.
func BenchmarkCommit(b *testing.B) {
	n := realCluster(b)
	g, err := n.Acquire(b.Context(), time.Now(), &fsmpb.Acquire{Name: "a", Holder: "h", TtlMs: 3600_000})
	if err != nil {
		b.Fatal(err)
	}
	var seq atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		key, value := fmt.Sprintf("k%d", seq.Add(1)), make([]byte, 256)
		for pb.Next() {
			r, err := n.Write(b.Context(), time.Now(), &fsmpb.Write{
				Token:   g.Outcome.Token,
				Ops:     []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_PUT, Key: key, Value: value}},
				Request: &fsmpb.Request{Key: fmt.Sprint(seq.Add(1)), Path: key, ServerMade: true},
			})
			if err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
				b.Fatal(r.Outcome, err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// BenchmarkRead is what a linearizable read costs without HTTP, at 64 readers.
func BenchmarkRead(b *testing.B) {
	n := realCluster(b)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := n.Read(b.Context(), false, func(*fsm.State) {}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
