package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
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
	transport raft.Transport
	bootstrap []raftServer // not empty: form a cluster of these, unless there is a log already
	close     func() error
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
	if err := prepareBlocks(n.dir.file("raft.db")); err != nil {
		n.log.Warn("the log's blocks are not prepared: its first writes are slower", "error", err)
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
