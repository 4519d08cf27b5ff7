package cluster

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// StandIns take the place of disk, network and clock in a simulation (package
// cluster/sim). The rest of the node is the one that Open makes.
type StandIns struct {
	ID, ClusterID string
	Voters        map[string]string // Raft id to Raft address: forms the cluster, if the log is empty

	Logs      raft.LogStore // what it has stored is durable
	Stable    raft.StableStore
	HasRoom   func([]*raft.Log) bool // false: Logs may find the disk full; nil: it never does
	Snapshots raft.SnapshotStore
	Transport interface {
		raft.Transport
		raft.WithPreVote
		raft.WithClose
	}

	Peers http.RoundTripper // to the other nodes' APIs; nil: none can be reached
	Clock func() time.Time  // monotonic, by which the cluster clock moves; nil: time.Now

	schema *schema // nil: this program's
}

// noPeers is the way to nobody.
type noPeers struct{}

func (noPeers) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("no other node's API can be reached")
}

// standInStore is a store of both kinds made of two.
type standInStore struct {
	raft.LogStore
	raft.StableStore
}

// OpenOn starts a node of a cluster on stand-ins. The caller must Close it, and then
// the transport.
func OpenOn(cfg Config, s StandIns) (*Node, error) {
	if cfg.Exit == nil {
		return nil, errors.New("configuration: Exit is not set")
	}
	n := newNode(cfg)
	n.id = identity{Name: cfg.Name, ID: s.ID, ClusterID: s.ClusterID}
	if s.Clock != nil {
		n.clock = s.Clock
	}
	if s.schema != nil {
		n.schema = *s.schema
	}
	if s.HasRoom == nil {
		s.HasRoom = func([]*raft.Log) bool { return true }
	}
	if s.Peers == nil {
		s.Peers = noPeers{}
	}
	n.peers = &http.Client{Transport: s.Peers}
	n.start()
	sound := &soundStore{standInStore{s.Logs, s.Stable}, n.disk}
	watched := watchStore(sound, s.Stable)
	watched.end = n.disk.end
	watching, stopWatching := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { watched.watch(watching, cfg.DiskBound, cfg.Exit) })
	p := &parts{
		logs: watched, stable: watched, snaps: s.Snapshots, transport: s.Transport,
		hasRoom: s.HasRoom,
		close:   func() error { stopWatching(); watch.Wait(); return nil },
	}
	for id, addr := range s.Voters {
		p.bootstrap = append(p.bootstrap, raftServer{ID: id, Addr: addr})
	}
	if err := n.run(p); err != nil {
		return nil, errors.Join(err, n.Close(), p.close())
	}
	mb := n.member.Load()
	n.wg.Go(func() { n.register(n.closed, mb) })
	return n, nil
}
