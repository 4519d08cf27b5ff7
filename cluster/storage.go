package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// boltMetricsEvery is how often the log store's gauges are brought up to date.
const boltMetricsEvery = 10 * time.Second

// parts are what Raft stands on. Tests bring their own.
type parts struct {
	logs      raft.LogStore
	stable    raft.StableStore
	snaps     raft.SnapshotStore
	transport transport
	hasRoom   func([]*raft.Log) bool // see overlap
	bootstrap []raftServer           // not empty: form a cluster of these, unless there is a log already
	retry     func() error           // of what found the disk full; nil: there is nothing
	close     func() error
}

// openLog opens what Raft has settled, votes included, and refuses what is not whole.
func (n *Node) openLog() (*raftboltdb.BoltStore, error) {
	path := n.dir.file("raft.db")
	if err := checkPages(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, lostAdvice(err)
	}
	var bolt *raftboltdb.BoltStore
	err := unpanicked(func() (err error) {
		bolt, err = raftboltdb.New(raftboltdb.Options{
			Path:        path,
			BoltOptions: &bbolt.Options{Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open log store: %w", err)
	}
	if err := n.claimLog(bolt); err != nil {
		return nil, errors.Join(err, bolt.Close())
	}
	if err := checkStored(n.dir.path, n.identity(), bolt); err != nil {
		return nil, errors.Join(lostAdvice(err), bolt.Close())
	}
	return bolt, nil
}

func (n *Node) openParts() (*parts, error) {
	id := n.identity()
	bolt, err := n.openLog()
	if err != nil {
		return nil, err
	}
	if err := prepareBlocks(n.dir.file("raft.db")); err != nil {
		n.log.Warn("the log's blocks are not prepared: its first writes are slower", "error", err)
	}
	snaps, err := openSnapshots(n.dir.path, n.log.Named("snapshots"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open snapshot store: %w", err), bolt.Close())
	}
	sound := &soundStore{bolt, n.disk}
	settling := watchStore(sound, sound)
	front, err := n.openJournal(settling, bolt)
	if err != nil {
		return nil, errors.Join(err, bolt.Close())
	}
	if err := wholeHistory(front, snaps); err != nil {
		return nil, errors.Join(err, front.close(), bolt.Close())
	}
	layer, err := listen(n.cfg.RaftAddr, n.cfg.advertiseRaft(), id.ClusterID, n.cfg.RaftTLS, n.log.Named("transport"))
	if err != nil {
		return nil, errors.Join(err, front.close(), bolt.Close())
	}
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: layer, MaxPool: 3, Timeout: n.cfg.RPC,
		MaxRPCsInFlight: 1, // with pipelining, one refused append can wedge a follower for ever
		Logger:          n.log.Named("transport"),
	})
	n.wg.Go(func() { bolt.RunMetrics(n.closed, boltMetricsEvery) })
	watched := watchStore(front, sound)
	watched.end = n.disk.end
	front.moved = watched.moves
	// The watchdog outlives everything that may wait for the disk: a node that
	// hangs while it stops still sends heartbeats.
	watching, stopWatching := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	exit := func(why string) {
		layer.Listener.Close() // so that no socket outlives a write that cannot be interrupted
		n.cfg.Exit(why)
	}
	watch.Go(func() { watched.watch(watching, n.cfg.DiskBound, exit) })
	watch.Go(func() { settling.watch(watching, n.cfg.DiskBound, exit) })
	return &parts{
		logs: watched, stable: watched, snaps: snaps, transport: transport, hasRoom: front.hasRoom, bootstrap: id.Bootstrap, retry: front.retry,
		close: func() error {
			err := errors.Join(transport.Close(), front.close(), bolt.Close())
			stopWatching()
			watch.Wait()
			return err
		},
	}, nil
}

// logOwner is the key in the stable store that has the id of the node that made
// the log.
var logOwner = []byte("fencepost-id")

// claimLog marks a new log as this identity's, and refuses one that is not: a
// node whose log was lost or exchanged does not know any more what it voted for
// and acknowledged, so it may not go on under its identity (P9).
func (n *Node) claimLog(store raft.StableStore) error {
	id := n.identity()
	owner, err := store.Get(logOwner)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return fmt.Errorf("read whose log this is: %w", err)
	}
	switch {
	case string(owner) == id.ID && id.HasLog:
		return nil
	case len(owner) > 0 && string(owner) != id.ID, id.HasLog:
		return fmt.Errorf("%s is not the log that node %q made (it was lost, or exchanged): "+
			"wipe the data directory, and the node joins again as a new member", n.dir.file("raft.db"), id.ID)
	}
	if err := store.Set(logOwner, []byte(id.ID)); err != nil {
		return fmt.Errorf("mark the log: %w", err)
	}
	id.HasLog = true
	return n.become(id)
}

// wholeHistory refuses a log whose beginning was cut off and whose snapshots are
// gone.
func wholeHistory(logs raft.LogStore, snaps raft.SnapshotStore) error {
	first, err := logs.FirstIndex()
	if err != nil {
		return fmt.Errorf("read where the log begins: %w", err)
	}
	list, err := snaps.List()
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	if first > 1 && (len(list) == 0 || list[0].Index+1 < first) {
		return fmt.Errorf("the log begins at entry %d, and no snapshot reaches so far: "+
			"wipe the data directory, and the node joins again as a new member", first)
	}
	return nil
}

// maxAppendEntries bounds what one message and one disk write carry: 32 MiB if
// every entry has the largest value.
const maxAppendEntries = 64

// preparedBytes is about what the log takes between two compactions.
const preparedBytes = 64 << 20

// prepareBlocks writes zeros behind the end of a new log file. A sync that finds
// its blocks written before need not wait for the file system's own journal,
// which the log would otherwise do until it has been through all its pages once.
// It must be called before the log is used. A disk without room loses nothing.
func prepareBlocks(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at := info.Size(); at < preparedBytes; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), preparedBytes-at)], at); err != nil {
			return errors.Join(err, f.Truncate(info.Size()))
		}
	}
	return f.Sync()
}

func (n *Node) raftConfig(notify chan bool) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(n.identity().ID)
	c.HeartbeatTimeout = n.cfg.Heartbeat
	c.ElectionTimeout = n.cfg.Election
	c.LeaderLeaseTimeout = n.cfg.LeaderLease
	c.CommitTimeout = n.cfg.Commit
	c.MaxAppendEntries = maxAppendEntries
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
