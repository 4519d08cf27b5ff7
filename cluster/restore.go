package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

const (
	// chunkBytes is how much of a backup goes into one entry; a single key may be
	// larger, and then has one for itself.
	chunkBytes = 256 << 10
	// stagingTTL is how long the state keeps a staged backup whose leader is gone.
	stagingTTL = time.Minute
	// chunkTries bounds how often a chunk is offered to a leader that is busy.
	chunkTries = 30
)

// What a restore is refused with, beside a QuotaError and what a write is. Nothing
// has changed then.
var (
	ErrRestoreRunning = errors.New("another restore is under way")
	ErrForeignBackup  = errors.New("the backup is another cluster's")
	ErrKeyReused      = errors.New("the Idempotency-Key belongs to the restore of another backup, or above another token")
	// ErrBrokenOff is joined to ErrNoLeader or ErrOverloaded: chunks went into the
	// log, and nobody will see them.
	ErrBrokenOff = errors.New("the restore broke off before anything was replaced")
)

// RestoreOptions say how to restore.
type RestoreOptions struct {
	Force   bool           // also another cluster's backup
	Above   uint64         // no token afterwards is at or below it
	Request *fsmpb.Request // remembered as those of other mutations are (P11); nil: it is not
}

// Restored is what a restore did.
type Restored struct {
	Index       uint64 // of the entry that did it: the new floor
	ClusterID   string // of the backup
	BackupIndex uint64
	TakenUnixMS int64
	Keys        uint64 // also those that are only a watermark
	DataBytes   uint64
}

// Restore replaces the guarded keys by those of a verified backup, on all nodes by
// one entry, which jumps the index above every token that was issued before, here
// or where the backup is from (P1, P5): all leases are over, and names are free
// again when their holders' time and grace would have been. It is called on the
// leader. An error but ErrOutcomeUnknown means that the old contents are served on.
func (n *Node) Restore(ctx context.Context, s *Spool, o RestoreOptions) (Restored, error) {
	end, err := n.restoring.begin(ctx, n.closed, o.Request)
	if err != nil {
		return Restored{}, err
	}
	defer end()
	h := s.Backup.Header
	done := Restored{ClusterID: h.ClusterId, BackupIndex: h.Index, TakenUnixMS: h.TakenUnixMs, Keys: h.Keys, DataBytes: h.DataBytes}
	if err := n.mayRestore(ctx, s, &o, &done); err != nil || done.Index != 0 {
		return done, err
	}
	id := randomHex(16)
	began := time.Now()
	n.log.Info("restoring a backup", "staging", id, "of_cluster", h.ClusterId, "at_index", h.Index, "keys", h.Keys, "bytes", h.DataBytes)
	if err := n.stage(ctx, id, s); err != nil {
		n.log.Warn("a restore broke off, and nothing was replaced", "staging", id, "error", err)
		return done, err
	}
	c := &fsmpb.RestoreCommit{
		Id: id, Keys: h.Keys, Checksum: s.Backup.Checksum, BackupIndex: h.Index,
		SinceMs: fsm.SinceJumpEpochMS(n.wall().UnixMilli()), Above: o.Above, Request: o.Request,
	}
	n.machine.view(func(s *fsm.State) { c.Base = s.Base() })
	r, err := n.propose(ctx, time.Now(), &fsmpb.Command{Op: &fsmpb.Command_RestoreCommit{RestoreCommit: c}})
	if err != nil {
		n.log.Warn("whether a backup was restored is not known, unless it was not", "staging", id, "error", err)
		return done, err
	}
	if err := commitError(r.Outcome); err != nil {
		return done, err
	}
	done.Index = r.Index
	if at := r.Outcome.Index; at < r.Index { // done before, under the same key
		done.Index = at
	}
	n.log.Info("restored a backup", "staging", id, "floor", done.Index, "took", time.Since(began))
	return done, nil
}

// mayRestore says why not. It sets the index if it was done before, under the same
// key.
func (n *Node) mayRestore(ctx context.Context, s *Spool, o *RestoreOptions, done *Restored) error {
	mb := n.member.Load()
	if mb == nil || n.reading.Load() == nil || n.ready.term() == 0 {
		return ErrNoLeader
	}
	h := s.Backup.Header
	var decided *fsmpb.Outcome
	var counts fsm.Counts
	var tooFar error
	n.machine.view(func(st *fsm.State) {
		decided, counts = st.Decided("", o.Request), st.Counts()
		jump := fsm.Jump{SinceMS: fsm.SinceJumpEpochMS(n.wall().UnixMilli()), BackupIndex: h.Index, Above: o.Above}
		_, tooFar = jump.To(st.Index())
	})
	if decided != nil { // it comes first: what a repetition lacks does not undo the restore
		done.Index = decided.Index
		return commitError(decided)
	}
	if s.file == nil {
		return fmt.Errorf("%w: %w: its key was known, and is no more", ErrBrokenOff, ErrOverloaded)
	}
	if h.ClusterId != n.identity().ClusterID && !o.Force {
		return fmt.Errorf("%w, %s, and this is %s", ErrForeignBackup, h.ClusterId, n.identity().ClusterID)
	}
	if h.DataBytes > n.cfg.MaxDataBytes {
		return &QuotaError{"keys", n.cfg.MaxDataBytes}
	}
	if o.Request != nil && counts.Requests >= n.cfg.MaxRequests {
		return &QuotaError{"requests", uint64(n.cfg.MaxRequests)}
	}
	return tooFar
}

// stage brings the keys of a backup into the state, beside those that are served.
func (n *Node) stage(ctx context.Context, id string, s *Spool) error {
	begin := &fsmpb.RestoreBegin{Id: id, BackupIndex: s.Backup.Header.Index, TtlMs: uint64(stagingTTL.Milliseconds())}
	if err := n.stageStep(ctx, &fsmpb.Command{Op: &fsmpb.Command_RestoreBegin{RestoreBegin: begin}}); err != nil {
		return err
	}
	chunk, size, sent := &fsmpb.RestoreChunk{Id: id}, 0, uint64(0)
	flush := func() error {
		if len(chunk.Keys) == 0 {
			return nil
		}
		sent += uint64(len(chunk.Keys))
		err := n.stageStep(ctx, &fsmpb.Command{Op: &fsmpb.Command_RestoreChunk{RestoreChunk: chunk}})
		chunk, size = &fsmpb.RestoreChunk{Id: id, First: sent}, 0
		return err
	}
	err := s.Each(func(k *fsmpb.KeyRecord) error {
		own := proto.Size(k) + 8
		if size+own > chunkBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		chunk.Keys, size = append(chunk.Keys, k), size+own
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// stageStep proposes one entry of a staging. Whatever becomes of it, nothing that
// anybody sees has changed: so no error of it is "unknown".
func (n *Node) stageStep(ctx context.Context, c *fsmpb.Command) error {
	for tries := 1; ; tries++ {
		r, err := n.propose(ctx, time.Now(), proto.CloneOf(c))
		switch {
		case errors.Is(err, ErrOverloaded) && tries < chunkTries && sleep(ctx, 10*time.Millisecond):
			continue
		case errors.Is(err, ErrOutcomeUnknown):
			return fmt.Errorf("%w: %w: %v", ErrBrokenOff, ErrNoLeader, err)
		case err != nil:
			return fmt.Errorf("%w: %w", ErrBrokenOff, err)
		case r.Outcome.Code != fsmpb.Code_CODE_OK: // another leader's restore took its place
			return fmt.Errorf("%w: %w: the staging was refused: %s %s", ErrBrokenOff, ErrRestoreRunning, r.Outcome.Code, r.Outcome.Field)
		}
		return nil
	}
}

// commitError is what a commit that replaced nothing means.
func commitError(o *fsmpb.Outcome) error {
	switch {
	case o.Code == fsmpb.Code_CODE_OK:
		return nil
	case o.Code == fsmpb.Code_CODE_KEY_REUSED:
		return ErrKeyReused
	case o.Field == "above":
		return fsm.ErrJumpTooFar
	}
	return fmt.Errorf("%w: %w: the commit was refused: %s %s", ErrBrokenOff, ErrRestoreRunning, o.Code, o.Field)
}
