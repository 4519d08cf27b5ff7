package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"fencepost/fsm"
)

// boltMetricsEvery is how often the log store's gauges are brought up to date.
const boltMetricsEvery = 10 * time.Second

// Node is one node of a cluster. All its methods may be called at any time and
// from any goroutine; before it is a member they answer ErrNoLeader.
type Node struct {
	cfg      Config
	log      hclog.Logger
	dir      *dataDir // nil in tests that bring their own stores
	machine  *machine
	metrics  *metrics
	pauses   *pauses
	renewals *renewals
	confirms *confirms
	ready    *readiness
	reprove  chan struct{} // buffer of one: prove leadership again

	reading  atomic.Pointer[reading] // nil unless leading
	member   atomic.Pointer[member]  // nil until it is of a cluster
	inFlight atomic.Int64            // bytes handed to Raft that have not ended

	idMu sync.Mutex // guards id
	id   identity

	closing   atomic.Bool // no new work
	closed    context.Context
	close     context.CancelFunc
	wg        sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

// member is the part of a node that exists once it is of a cluster.
type member struct {
	raft   *raft.Raft
	notify chan bool
	health *health
	snaps  raft.SnapshotStore
	close  func() error // stores and transport
}

// parts are what Raft stands on. Tests bring their own.
type parts struct {
	logs      raft.LogStore
	stable    raft.StableStore
	snaps     raft.SnapshotStore
	transport raft.Transport
	bootstrap []raftServer // not empty: form a cluster of these, unless there is a log already
	close     func() error
}

// Open starts a node and returns at once; it finds or forms its cluster in the
// background. The caller must Close it.
func Open(cfg Config) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	dir, err := openDataDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	n := newNode(cfg)
	n.dir = dir
	if n.id, err = dir.identity(cfg.Name); err != nil {
		dir.close()
		return nil, err
	}
	n.start()
	if n.id.ClusterID == "" {
		n.wg.Go(func() { n.findCluster(n.closed) })
		return n, nil
	}
	if err := n.join(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func newNode(cfg Config) *Node {
	n := &Node{
		cfg: cfg, log: cfg.Logger, metrics: newMetrics(), pauses: newPauses(cfg.LeaderLease),
		renewals: newRenewals(), confirms: newConfirms(), ready: newReadiness(), reprove: make(chan struct{}, 1),
	}
	n.machine = newMachine(n.committed, n.broken)
	n.closed, n.close = context.WithCancel(context.Background())
	return n
}

// start begins the work that does not need Raft to be there yet.
func (n *Node) start() {
	n.wg.Go(func() {
		n.pauses.watch(n.closed, func() {
			n.metrics.pauses.Inc()
			n.dropReady()
		})
	})
	n.wg.Go(func() { n.runRenewals(n.closed) })
	n.wg.Go(func() { n.runConfirms(n.closed) })
}

func (n *Node) broken(err error) {
	n.log.Error("this replica must not go on", "error", err)
	n.cfg.Exit(err.Error())
}

// join opens the stores of a data directory that is of a cluster, and runs.
func (n *Node) join() error {
	p, err := n.openParts()
	if err != nil {
		return err
	}
	if err := n.run(p); err != nil {
		return errors.Join(err, p.close())
	}
	return nil
}

func (n *Node) openParts() (*parts, error) {
	id := n.identity()
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path:        n.dir.file("raft.db"),
		BoltOptions: &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if err != nil {
		return nil, fmt.Errorf("open log store: %w", err)
	}
	clearAbandoned(n.dir.file("snapshots"), n.log)
	snaps, err := raft.NewFileSnapshotStoreWithLogger(n.dir.path, 2, n.log.Named("snapshots"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open snapshot store: %w", err), bolt.Close())
	}
	layer, err := listen(n.cfg.RaftAddr, n.cfg.advertiseRaft(), id.ClusterID, n.log.Named("transport"))
	if err != nil {
		return nil, errors.Join(err, bolt.Close())
	}
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: 3, Timeout: n.cfg.RPC,
		MaxRPCsInFlight: 1, // with pipelining, one refused append can wedge a follower for ever
		Logger:          n.log.Named("transport"),
	})
	n.wg.Go(func() { bolt.RunMetrics(n.closed, boltMetricsEvery) })
	watched := watchStore(bolt, bolt)
	n.wg.Go(func() {
		watched.watch(n.closed, n.cfg.DiskBound, func(why string) {
			layer.Listener.Close() // so that no socket outlives a write that cannot be interrupted
			n.cfg.Exit(why)
		})
	})
	return &parts{
		logs: watched, stable: watched, snaps: snaps, transport: transport, bootstrap: id.Bootstrap,
		close: func() error { return errors.Join(transport.Close(), bolt.Close()) },
	}, nil
}

// clearAbandoned removes what snapshots left that were not finished, before a
// crash or on a full disk; Raft itself never does.
func clearAbandoned(dir string, log hclog.Logger) {
	entries, _ := os.ReadDir(dir) // none before the first snapshot
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".tmp") {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				log.Warn("remove an unfinished snapshot", "name", e.Name(), "error", err)
			}
		}
	}
}

func (n *Node) raftConfig(notify chan bool) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(n.identity().ID)
	c.HeartbeatTimeout = n.cfg.Heartbeat
	c.ElectionTimeout = n.cfg.Election
	c.LeaderLeaseTimeout = n.cfg.LeaderLease
	c.CommitTimeout = n.cfg.Commit
	c.MaxAppendEntries = 128
	c.BatchApplyCh = false // with it, shutdown leaves futures unanswered
	c.ShutdownOnRemove = false
	c.SnapshotThreshold = 1 << 62 // snapshots.go decides
	c.SnapshotInterval = time.Hour
	c.TrailingLogs = n.cfg.TrailingEntries
	c.NotifyCh = notify
	c.NoLegacyTelemetry = true
	c.Logger = n.log.Named("raft")
	return c
}

// run makes the node a member.
func (n *Node) run(p *parts) error {
	notify := make(chan bool, 16)
	conf := n.raftConfig(notify)
	logs, err := raft.NewLogCache(512, p.logs)
	if err != nil {
		return fmt.Errorf("make log cache: %w", err)
	}
	if len(p.bootstrap) > 0 {
		var c raft.Configuration
		for _, s := range p.bootstrap {
			c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Addr)})
		}
		if err := raft.BootstrapCluster(conf, logs, p.stable, p.snaps, p.transport, c); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
			return fmt.Errorf("form cluster: %w", err)
		}
	}
	r, err := raft.NewRaft(conf, n.machine, logs, p.stable, p.snaps, p.transport)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	var of string
	n.machine.view(func(s *fsm.State) { of = s.ClusterID() })
	if own := n.identity().ClusterID; of != "" && of != own {
		return errors.Join(fmt.Errorf("the data directory's snapshot is of cluster %s, its node.json of %s", of, own), r.Shutdown().Error())
	}
	mb := &member{raft: r, notify: notify, health: watchHealth(r), snaps: p.snaps, close: p.close}
	n.member.Store(mb)
	n.wg.Go(func() { n.followLeadership(n.closed, mb) })
	n.wg.Go(func() { mb.health.run(n.closed, n.metrics.leaderChanges.Inc) })
	n.wg.Go(func() { n.compact(n.closed, mb) })
	if n.dir != nil {
		n.wg.Go(func() { n.register(n.closed, mb) })
	}
	return nil
}

// identity is who this node is.
func (n *Node) identity() identity {
	n.idMu.Lock()
	defer n.idMu.Unlock()
	return n.id
}

// Close hands leadership over if it can, ends what is in flight as unknown, and
// closes the stores. It may be called again.
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.shutDown() })
	return n.closeErr
}

func (n *Node) shutDown() error {
	n.closing.Store(true)
	n.ready.set(0) // before the transfer: others may lead any moment
	mb := n.member.Load()
	if mb != nil && mb.raft.State() == raft.Leader {
		n.handOver(mb)
	}
	n.close()
	n.wg.Wait()
	var errs []error
	if mb = n.member.Load(); mb != nil {
		if err := mb.raft.Shutdown().Error(); err != nil {
			errs = append(errs, fmt.Errorf("shut down raft: %w", err))
		}
		mb.health.stop(mb.raft)
		errs = append(errs, mb.close())
	}
	if n.dir != nil {
		errs = append(errs, n.dir.close())
	}
	return errors.Join(errs...)
}

// handOver gives leadership to a follower that has caught up, so that a planned
// stop costs milliseconds and not an election.
func (n *Node) handOver(mb *member) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*n.cfg.Election)
	defer cancel()
	for range 2 {
		if await(ctx, mb.raft.LeadershipTransfer()) || ctx.Err() != nil {
			return
		}
	}
	n.log.Warn("no other node took over leadership before this one stopped")
}

// Status is what this node knows without asking anybody. It is cheap: every
// request looks at it.
func (n *Node) Status() Status {
	id := n.identity()
	s := Status{Name: id.Name, ID: id.ID, ClusterID: id.ClusterID, Index: n.machine.index.Load()}
	mb := n.member.Load()
	if mb == nil {
		return s
	}
	s.IsLeader = mb.raft.State() == raft.Leader
	s.Term = mb.raft.CurrentTerm()
	if s.IsLeader {
		s.LeaderID, s.LeaderURL = s.ID, n.cfg.httpURL()
		return s
	}
	_, leader := mb.raft.LeaderWithID()
	s.LeaderID = string(leader)
	for _, m := range n.machine.members() {
		if m.Id == s.LeaderID {
			s.LeaderURL = "http://" + m.HttpAddr
		}
	}
	if last := mb.raft.LastContact(); !last.IsZero() {
		s.LastContact = time.Since(last)
	}
	return s
}

// Ready says why this node cannot serve, if it cannot: no leader is known, or
// it is far behind, or the leader has not caught up in its term.
func (n *Node) Ready() error {
	mb := n.member.Load()
	switch s := n.Status(); {
	case n.closing.Load():
		return ErrShuttingDown
	case mb == nil:
		return errors.New("not a member of a cluster yet")
	case s.LeaderURL == "":
		return errors.New("no leader is known")
	case s.IsLeader && n.ready.term() == 0:
		return errors.New("leading, but not caught up yet")
	case s.IsLeader && n.clockStands():
		return errors.New("the cluster clock stands still: nothing commits")
	case !s.IsLeader && s.LastContact > 3*n.cfg.Heartbeat:
		return fmt.Errorf("the leader was last heard of %s ago", s.LastContact.Round(time.Millisecond))
	}
	if behind := mb.raft.CommitIndex() - min(mb.raft.CommitIndex(), mb.raft.AppliedIndex()); behind > 10_000 {
		return fmt.Errorf("%d entries behind", behind)
	}
	return nil
}

// clockStands says that this leader has seen no commit for so long that it
// counts no further, though something has a deadline.
func (n *Node) clockStands() bool {
	r := n.reading.Load()
	needed := false
	n.machine.view(func(s *fsm.State) { needed = s.HasDeadline() })
	return needed && r != nil && time.Since(r.at) > standstill
}

// Live says why this process should be restarted, if it should.
func (n *Node) Live() error {
	if n.machine.failed.Load() {
		return errors.New("an entry of the log could not be applied")
	}
	return nil
}

var _ io.Closer = (*Node)(nil)
