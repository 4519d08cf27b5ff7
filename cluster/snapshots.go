package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// compactLook is how often the node looks whether to compact.
const compactLook = 5 * time.Second

// minTrailing are the entries kept behind a snapshot however large they are, so
// that a follower a moment behind does not need the snapshot.
const minTrailing = 256

// compact takes a snapshot and lets Raft cut the log when enough entries, or
// bytes of entries, were applied since the last one, or enough time has passed:
// renewals are a steady load on a quiet cluster, and large values fill the log
// long before their number does.
func (n *Node) compact(ctx context.Context, mb *member) {
	t := time.NewTicker(compactLook)
	defer t.Stop()
	last := time.Now()
	var missed missedSnapshots
	var lastEntries, lastBytes uint64 // applied when the last snapshot was taken
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		n.noteLog(mb)
		nowEntries, nowBytes := n.machine.entries.Load(), n.machine.bytes.Load()
		entries, bytes := nowEntries-lastEntries, nowBytes-lastBytes
		old := time.Since(last) >= n.cfg.SnapshotEvery
		if entries == 0 || entries < n.cfg.SnapshotEntries && bytes < n.cfg.SnapshotBytes && !old {
			continue
		}
		if !missed.again(time.Now()) {
			continue
		}
		reloadable := mb.raft.ReloadableConfig()
		reloadable.TrailingLogs = trailing(n.cfg.TrailingEntries, n.cfg.TrailingBytes, bytes/entries)
		if err := mb.raft.ReloadConfig(reloadable); err != nil {
			n.log.Error("set how much log is kept", "error", err)
		}
		began := time.Now()
		if err := mb.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			if ctx.Err() == nil && !errors.Is(err, raft.ErrRaftShutdown) { // it was removed
				n.metrics.snapshotsMissed.Inc()
				missed.note(time.Now(), n.log, err, entries)
			}
			continue // and try again
		}
		missed = missed.over(n.log)
		last, lastEntries, lastBytes = began, nowEntries, nowBytes
		n.log.Debug("took a snapshot", "entries", entries, "bytes", bytes, "took", time.Since(began))
	}
}

// trailing is how many entries stay behind a snapshot, given their mean size.
func trailing(entries, bytes, mean uint64) uint64 {
	return max(minTrailing, min(entries, bytes/max(mean, 1)))
}
