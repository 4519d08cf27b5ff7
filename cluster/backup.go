package cluster

import (
	"errors"
	"io"
	"time"

	"fencepost/fsm"
)

// backupsAtOnce bounds how many backups a node writes at a time: each keeps alive
// what has been overwritten or deleted since it began.
const backupsAtOnce = 2

// ErrTooManyBackups: this node writes as many backups as it may. Another node may
// have room.
var ErrTooManyBackups = errors.New("too many backups are being written by this node")

// Backup is the guarded keys at one index, to be written out.
type Backup struct {
	snapshot  *fsm.Snapshot
	clusterID string
	taken     time.Time
	release   func()
}

// NewBackup makes a backup of a cluster's snapshot; Close calls release.
func NewBackup(s *fsm.Snapshot, clusterID string, taken time.Time, release func()) *Backup {
	return &Backup{s, clusterID, taken, release}
}

// Backup takes a backup of what this node has applied, in constant time, while
// entries go on applying. The caller must Close it. It may be taken on any node;
// Ready says whether this one is close to the leader. The error is
// ErrTooManyBackups, ErrShuttingDown, or ErrNoLeader of a node that is of no
// cluster yet.
func (n *Node) Backup() (*Backup, error) {
	if n.closing.Load() {
		return nil, ErrShuttingDown
	}
	id := n.identity().ClusterID
	if id == "" {
		return nil, ErrNoLeader // it is of no cluster yet
	}
	select {
	case n.backups <- struct{}{}:
	default:
		return nil, ErrTooManyBackups
	}
	n.machine.mu.Lock()
	defer n.machine.mu.Unlock()
	return NewBackup(n.machine.state.Snapshot(), id, n.wall(), func() { <-n.backups }), nil
}

// Index is the public index that the backup is at.
func (b *Backup) Index() uint64 { return b.snapshot.Index() }

// WriteTo writes it once: a stream that ends with a checksum (see fsm.ReadBackup).
func (b *Backup) WriteTo(w io.Writer) (int64, error) {
	return b.snapshot.WriteBackup(w, b.clusterID, b.taken.UnixMilli())
}

// Close lets go of what it keeps alive. It is called once.
func (b *Backup) Close() {
	b.snapshot = nil
	b.release()
}
