package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"fencepost/cluster/bubble"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// sim is a whole cluster in fake time: real nodes and real Raft on transports
// and stores in memory. It must be used inside bubble.Test.
type sim struct {
	t       *testing.T
	nodes   []*simNode
	servers []raftServer
	// What is set before the nodes boot; nil: nothing, and Raft's transport in memory.
	change func(*Config)
	wire   func(Config) simTransport
	// refuses is how a question of one node to another's API ends; nil: with the answer.
	refuses func(asks, asked *simNode) error
}

// simTransport is one in place of Raft's own in memory.
type simTransport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

type simNode struct {
	*Node
	now          atomic.Pointer[Node] // the same, for goroutines that go on over a restart
	s            *sim
	id           string
	schemaAtBoot *schema // nil: this program's
	store        *simStore
	snaps        *raft.InmemSnapshotStore
	trans        *raft.InmemTransport
	wired        simTransport // nil: trans

	mu     sync.Mutex // guards what follows; the test's goroutine alone changes down
	exited string
	down   bool
}

// simStore is a log store that can be slow and can hang.
type simStore struct {
	*raft.InmemStore
	each atomic.Int64 // nanoseconds that a write takes
	mu   sync.Mutex   // guards hang
	hang chan struct{}

	failing atomic.Pointer[error] // what becomes of each write; nil: it succeeds
	full    atomic.Bool           // no room for a configuration
}

func (s *simStore) hasRoom([]*raft.Log) bool { return s.failing.Load() == nil }

func (s *simStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *simStore) StoreLogs(ls []*raft.Log) error {
	s.mu.Lock()
	hang := s.hang
	s.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if each := time.Duration(s.each.Load()); each > 0 {
		time.Sleep(each)
	}
	if err := s.failing.Load(); err != nil {
		return *err
	}
	for _, l := range ls {
		if s.full.Load() && l.Type == raft.LogConfiguration {
			return fmt.Errorf("no space left on device")
		}
	}
	return s.InmemStore.StoreLogs(ls)
}

// stall makes writes hang until the returned function is called.
func (s *simStore) stall() (resume func()) {
	hang := make(chan struct{})
	s.mu.Lock()
	s.hang = hang
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.hang = nil
		s.mu.Unlock()
		close(hang)
	}
}

// inSim runs a test on a cluster of three in fake time, and checks at its end
// that the replicas are equal.
func inSim(t *testing.T, run func(t *testing.T, s *sim)) { inSimOn(t, func(*sim) {}, run) }

// inSimOn is inSim on nodes that are set up in another way.
func inSimOn(t *testing.T, setUp func(s *sim), run func(t *testing.T, s *sim)) {
	bubble.Test(t, func(t *testing.T) {
		s := &sim{t: t}
		setUp(s)
		for i := range 3 {
			s.servers = append(s.servers, raftServer{ID: fmt.Sprintf("id%d", i+1), Addr: fmt.Sprintf("n%d", i+1)})
		}
		for _, server := range s.servers {
			n := &simNode{s: s, id: server.ID, store: &simStore{InmemStore: raft.NewInmemStore()}, snaps: raft.NewInmemSnapshotStore()}
			s.nodes = append(s.nodes, n)
		}
		for i, n := range s.nodes {
			n.boot(s.servers[i], nil)
		}
		s.connectAll()
		defer func() {
			for _, n := range s.nodes {
				n.stop()
			}
			time.Sleep(time.Minute) // what Raft left on the way times out
		}()
		l := s.leader()
		for _, server := range s.servers {
			node := &fsmpb.Node{Name: server.Addr, Id: server.ID, RaftAddr: server.Addr, HttpAddr: server.Addr + ":80", Voter: true, Understands: fsm.Understands}
			if _, err := l.propose(t.Context(), time.Now(), &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{Node: node, ClusterId: "c1"}}}); err != nil {
				t.Fatal(err)
			}
		}
		run(t, s)
	})
}

func (n *simNode) boot(server raftServer, change func(*Config)) {
	n.s.t.Helper()
	cfg := DefaultConfig()
	cfg.Name, cfg.HTTPAddr, cfg.RaftAddr = server.Addr, server.Addr+":80", server.Addr
	cfg.Logger = hclog.NewNullLogger()
	cfg.Exit = func(why string) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.exited == "" {
			n.exited = why
			n.trans.DisconnectAll()
			n.s.cut(n)
		}
	}
	if n.s.change != nil {
		n.s.change(&cfg)
	}
	if change != nil {
		change(&cfg)
	}
	_, n.trans = raft.NewInmemTransportWithTimeout(raft.ServerAddress(server.Addr), 2*time.Second)
	voters := make(map[string]string)
	for _, s := range n.s.servers {
		voters[s.ID] = s.Addr
	}
	transport := simTransport(n.trans)
	if n.s.wire != nil {
		n.wired = n.s.wire(cfg)
		transport = n.wired
	}
	var err error
	n.Node, err = OpenOn(cfg, StandIns{
		ID: server.ID, ClusterID: "c1", Voters: voters, Logs: n.store, Stable: n.store, HasRoom: n.store.hasRoom, Snapshots: n.snaps, Transport: transport, Peers: simPeers{n}, schema: n.schemaAtBoot,
	})
	if err != nil {
		n.s.t.Fatal(err)
	}
	n.setDown(false)
	n.now.Store(n.Node)
}

func (n *simNode) stop() {
	if !n.down {
		n.setDown(true)
		n.Close()
		if n.wired != nil {
			n.wired.Close()
		}
	}
}

// setDown is seen by others that ask this node something.
func (n *simNode) setDown(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
}

// crash takes the node off the network before it stops, so that it hands
// nothing over; what its store has stays.
func (n *simNode) crash() {
	n.s.cut(n)
	n.stop()
}

// restart boots a crashed node from its store.
func (n *simNode) restart() {
	for i, other := range n.s.nodes {
		if other == n {
			n.boot(n.s.servers[i], nil)
		}
	}
	n.s.connectAll()
}

func (s *sim) connectAll() {
	for i, a := range s.nodes {
		for j, b := range s.nodes {
			if i != j && !a.down && !b.down {
				a.trans.Connect(raft.ServerAddress(s.servers[j].Addr), b.trans)
			}
		}
	}
}

// cut separates one node from all others, both ways.
func (s *sim) cut(n *simNode) {
	n.trans.DisconnectAll()
	for _, other := range s.nodes {
		other.trans.Disconnect(raft.ServerAddress(n.cfg.RaftAddr))
	}
}

// leader waits for a leader that is ready.
func (s *sim) leader(except ...*simNode) *simNode {
	s.t.Helper()
	for range 2000 {
	nodes:
		for _, n := range s.nodes {
			for _, e := range except {
				if n == e {
					continue nodes
				}
			}
			if !n.down && n.member.Load().raft.State() == raft.Leader && n.ready.term() != 0 {
				return n
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.t.Fatal("no leader in 10 s")
	return nil
}

func (n *simNode) acquire(name string, ttl time.Duration, key string) (*fsmpb.Outcome, error) {
	c := &fsmpb.Acquire{Name: name, Holder: "h", TtlMs: uint64(ttl.Milliseconds())}
	if key != "" {
		c.Request = &fsmpb.Request{Key: key, Path: "acquire " + name, Digest: []byte(name)}
	}
	ctx, cancel := context.WithTimeout(n.s.t.Context(), 10*time.Second)
	defer cancel()
	r, err := n.now.Load().Acquire(ctx, time.Now(), c)
	return r.Outcome, err
}

func (n *simNode) mustAcquire(name string, ttl time.Duration) *fsmpb.Outcome {
	n.s.t.Helper()
	o, err := n.acquire(name, ttl, "")
	if err != nil || o.Code != fsmpb.Code_CODE_OK {
		n.s.t.Fatalf("acquire %s: %v %v", name, o, err)
	}
	return o
}

func (n *simNode) renew(name string, token uint64) (*fsmpb.Outcome, error) {
	ctx, cancel := context.WithTimeout(n.s.t.Context(), 10*time.Second)
	defer cancel()
	r, err := n.now.Load().Renew(ctx, []*fsmpb.Renewal{{Name: name, Token: token}})
	if err != nil {
		return nil, err
	}
	return r.Outcome[0], nil
}

func (n *simNode) put(key string, token uint64, value string) (*fsmpb.Outcome, error) {
	ctx, cancel := context.WithTimeout(n.s.t.Context(), 10*time.Second)
	defer cancel()
	r, err := n.now.Load().Write(ctx, time.Now(), &fsmpb.Write{
		Token: token, Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_PUT, Key: key, Value: []byte(value)}},
	})
	return r.Outcome, err
}

// lease is what a linearizable read says of a lease, and the time it has left.
func (n *simNode) lease(name string) (l *fsm.Lease, left time.Duration, err error) {
	_, err = n.Read(n.s.t.Context(), false, func(s *fsm.State) {
		l, left = nil, 0
		if found, ok := s.Lease(name); ok {
			l = found
			if h := found.First(); h != nil {
				left = time.Duration(h.ExpiresInMS(s.ClockMS())) * time.Millisecond
			}
		}
	})
	return l, left, err
}

// sameEverywhere waits until all nodes have applied the same, and compares.
func (s *sim) sameEverywhere() {
	s.t.Helper()
	type at struct{ index, digest uint64 }
	var seen []at
	for range 2000 {
		seen = nil
		same := true
		for _, n := range s.nodes {
			var a at
			n.machine.view(func(st *fsm.State) { a = at{st.Index(), st.Digest()} })
			seen = append(seen, a)
			same = same && a == seen[0]
		}
		if same {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.t.Fatalf("replicas differ: %v", seen)
}
