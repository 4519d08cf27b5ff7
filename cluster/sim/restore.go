package sim

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"fencepost/cluster"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// backups are those that were taken in a world that has restores.
type backups struct {
	mu   sync.Mutex // guards what follows
	kept [][]byte
}

// restoreBackup takes a backup of any node, now and then, and restores this one or an
// older one, by whoever leads. It is tried until it is known to be done, under one key.
func restoreBackup(w *world, r *rand.Rand) bool {
	backup := w.someBackup(r)
	if backup == nil {
		return false
	}
	o := cluster.RestoreOptions{Request: &fsmpb.Request{
		Key: "restore-" + strconv.FormatUint(r.Uint64(), 36), Path: "POST /v1/snapshot/restore", Digest: []byte("of this backup"),
	}}
	for range 1 + r.IntN(4) {
		if p := w.leading(); p != nil && w.restore(p, backup, o) == nil {
			return true
		}
		time.Sleep(between(r, 0, time.Second))
	}
	return false
}

// restore tries once.
func (w *world) restore(p *process, backup []byte, o cluster.RestoreOptions) error {
	spool, err := cluster.NewSpool(os.TempDir(), 1<<30, bytes.NewReader(backup))
	if err != nil {
		w.must(err)
		return err
	}
	defer spool.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = p.node.Restore(ctx, spool, o)
	if errors.Is(err, cluster.ErrKeyReused) || errors.Is(err, cluster.ErrForeignBackup) {
		w.must(err)
	}
	return err
}

// someBackup is a new one, or one of those that were taken before; nil: there is none.
func (w *world) someBackup(r *rand.Rand) []byte {
	w.backups.mu.Lock()
	defer w.backups.mu.Unlock()
	if p := w.hosts[r.IntN(len(w.hosts))].up.Load(); p != nil && r.IntN(2) == 0 {
		if b, err := p.node.Backup(); err == nil {
			var to bytes.Buffer
			_, err = b.WriteTo(&to)
			w.must(err)
			b.Close()
			w.backups.kept = append(w.backups.kept, to.Bytes())
		}
	}
	if len(w.backups.kept) == 0 {
		return nil
	}
	return w.backups.kept[r.IntN(len(w.backups.kept))]
}

// numbering gives entries their public indexes, which restores move.
type numbering struct{ s *fsm.State }

// of is the index of the next entry; c is nil if it is one of Raft's own.
func (n *numbering) of(raftIndex, term uint64, c *fsmpb.Command) (uint64, error) {
	index := n.s.PublicIndex(raftIndex)
	if c == nil {
		return index, nil
	}
	if _, _, err := n.s.Apply(index, term, c); err != nil {
		return 0, err
	}
	return n.s.Index(), nil
}
