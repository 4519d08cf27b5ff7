package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"fencepost/fsm"
)

// closeBound is how long a node may take to stop. Until Raft has stopped, a
// leader sends heartbeats, and nobody takes over.
const closeBound = 15 * time.Second

// handOverLook is how often a stopping leader looks whether it still leads.
const handOverLook = 2 * time.Millisecond

// Node is one node of a cluster. All its methods may be called at any time and
// from any goroutine; before it is a member they answer ErrNoLeader.
type Node struct {
	cfg      Config
	log      hclog.Logger
	dir      *dataDir // nil in tests that bring their own stores
	machine  *machine
	metrics  *metrics
	disk     *disk
	pauses   *pauses
	renewals *renewals
	gate     *gate
	waits    *waits
	confirms *confirms
	ready    *readiness
	reprove  chan struct{} // buffer of one: prove leadership again
	peers    *http.Client  // to the other nodes' APIs
	clock    func() time.Time
	schema   schema
	wall     func() time.Time // of the world, for restores alone
	diskFree func(dir string) (bytes uint64, known bool)

	reading  atomic.Pointer[reading] // nil unless leading
	member   atomic.Pointer[member]  // nil until it is of a cluster
	removed  atomic.Bool             // the cluster does not have it any more, for good
	doubted  atomic.Uint64           // a term in which it began to hand leadership over
	changing chan struct{}           // holds one while the members are being changed
	inFlight atomic.Int64            // bytes at the gate and at Raft that have not ended

	restoring oneRestore
	backups   chan struct{} // a place for each backup that is being written

	idMu sync.Mutex // guards id
	id   identity

	closing   atomic.Bool   // no new work
	unfit     chan struct{} // buffer of one: a certificate is over
	closed    context.Context
	close     context.CancelFunc
	wg        sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

// member is the part of a node that exists once it is of a cluster.
type member struct {
	raft   *raft.Raft
	log    *overlap
	retry  func() error // of what found the disk full; nil: Raft does it
	notify chan bool
	health *health
	close  func() error // stores and transport
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
	n.clearSpools()
	if n.id, err = dir.identity(cfg.Name); err != nil {
		dir.close()
		return nil, err
	}
	n.start()
	n.warnOfOpenPort()
	if n.id.Removed {
		n.removed.Store(true)
		n.sayGone()
		return n, nil
	}
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
		renewals: newRenewals(), gate: newGate(maxProposals), waits: newWaits(),
		confirms: newConfirms(), ready: newReadiness(), reprove: make(chan struct{}, 1),
		changing: make(chan struct{}, 1),
		clock:    time.Now, wall: time.Now, diskFree: diskFree, schema: ownSchema(), backups: make(chan struct{}, backupsAtOnce),
		peers: &http.Client{Transport: cfg.peerTransport()}, unfit: make(chan struct{}, 1),
	}
	n.metrics.registry.MustRegister(n.expiry()...)
	n.disk = newDisk(n.log, n.metrics, cfg.Exit)
	n.machine = newMachine(n.committed, n.broken, NewFeed(cfg.WatchHistory, cfg.MaxWatchers))
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
	n.wg.Go(func() { n.tendWatches(n.closed) })
	if len(n.certificates()) > 0 {
		n.wg.Go(func() { n.tendCertificates(n.closed) })
	}
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

// run makes the node a member.
func (n *Node) run(p *parts) error {
	notify := make(chan bool, 16)
	conf := n.raftConfig(notify)
	store := newOverlap(p.logs, p.stable, p.hasRoom, n.cfg.Exit)
	n.machine.durable = store.durable
	logs, err := raft.NewLogCache(2*maxAppendEntries, store)
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
	var at atomic.Pointer[raft.Raft]
	voice := newOneVoice(p.transport, store.quiet(func() bool {
		r := at.Load()
		return r != nil && r.State() == raft.Follower
	}))
	r, err := raft.NewRaft(conf, n.machine, logs, store, p.snaps, told{voice, store.committable})
	at.Store(r)
	if err != nil {
		voice.Close()
		return fmt.Errorf("start raft: %w", err)
	}
	var of string
	n.machine.view(func(s *fsm.State) { of = s.ClusterID() })
	if own := n.identity().ClusterID; of != "" && of != own {
		return errors.Join(fmt.Errorf("the data directory's snapshot is of cluster %s, its node.json of %s", of, own), r.Shutdown().Error())
	}
	mb := &member{raft: r, log: store, retry: p.retry, notify: notify, health: watchHealth(r)}
	mb.close = func() error { return errors.Join(store.written(), p.close()) }
	n.member.Store(mb)
	n.wg.Go(func() { n.followLeadership(n.closed, mb) })
	n.wg.Go(func() { mb.health.run(n.closed, n.metrics.leaderChanges.Inc) })
	n.wg.Go(func() { n.compact(n.closed, mb) })
	n.wg.Go(func() { n.tendFitness(n.closed, mb) })
	if n.dir != nil {
		n.wg.Go(func() { n.register(n.closed, mb) })
	}
	return nil
}

// become makes the node somebody else, or of a cluster: first on disk.
func (n *Node) become(id identity) error {
	if n.dir != nil { // else the disk is a stand-in, whose owner knows
		if err := n.dir.save(id); err != nil {
			return err
		}
	}
	n.idMu.Lock()
	defer n.idMu.Unlock()
	n.id = id
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
	n.machine.feed.End(ErrShuttingDown)
	bound := time.AfterFunc(closeBound, func() { n.cfg.Exit("stopping has taken longer than " + closeBound.String()) })
	defer bound.Stop()
	n.gate.close(ErrShuttingDown)
	n.ready.hold() // before the transfer: others may lead any moment
	mb := n.member.Load()
	if mb != nil && mb.raft.State() == raft.Leader {
		n.handOver(mb)
	}
	n.close()
	n.wg.Wait()
	n.rememberOthers() // the last news of them, for when it is started again
	n.peers.CloseIdleConnections()
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
// stop costs milliseconds and not an election. Raft leaves the question
// unanswered if it shuts down meanwhile, so the node looks for itself.
func (n *Node) handOver(mb *member) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*n.cfg.Election)
	defer cancel()
	var asked time.Time
	tried := map[string]int{}
	for mb.raft.State() == raft.Leader {
		if time.Since(asked) > n.cfg.Election {
			asking, done := context.WithTimeout(ctx, n.cfg.Election) // of nodes that are down as well
			if to, ok := n.successor(asking, mb, tried); ok {
				tried[to.ID]++
				mb.raft.LeadershipTransferToServer(raft.ServerID(to.ID), raft.ServerAddress(to.RaftAddr))
			}
			done()
			asked = time.Now()
		}
		if !sleep(ctx, handOverLook) {
			n.log.Warn("no other node took over leadership before this one stopped")
			return
		}
	}
}
