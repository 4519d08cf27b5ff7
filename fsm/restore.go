package fsm

import (
	"github.com/tidwall/btree"

	"fencepost/fsm/fsmpb"
)

// maxStagingTTLMS bounds how long a staging waits for its next chunk.
const maxStagingTTLMS = 1 << 40

// staging is a backup that is being restored: its keys, gathered beside those that
// are served. It is a part of the state, and so of its snapshots and digests.
type staging struct {
	id          string
	backupIndex uint64
	ttlMS       uint64
	deadlineMS  uint64 // cluster time at which it is dropped

	keys       *btree.Map[string, *Key]
	tombstones *btree.BTreeG[due]
	sum        uint64 // of the hashes of keys
	dataBytes  uint64
}

func newStaging(id string, backupIndex, ttlMS, deadlineMS uint64) *staging {
	return &staging{
		id: id, backupIndex: backupIndex, ttlMS: ttlMS, deadlineMS: deadlineMS,
		keys: btree.NewMap[string, *Key](0), tombstones: newDueTree(),
	}
}

// restoreBegin opens a staging in the place of any older one.
func (s *State) restoreBegin(c *fsmpb.RestoreBegin) *fsmpb.Outcome {
	switch {
	case c.Id == "":
		return invalid("id")
	case c.TtlMs == 0 || c.TtlMs > maxStagingTTLMS:
		return invalid("ttl_ms")
	}
	s.staging = newStaging(c.Id, c.BackupIndex, c.TtlMs, s.clockMS+c.TtlMs)
	return &fsmpb.Outcome{}
}

// staged is the staging with that id, if it is there and its time is not over.
func (s *State) staged(id string) *staging {
	if g := s.staging; g != nil && g.id == id && g.deadlineMS > s.clockMS {
		return g
	}
	return nil
}

// restoreChunk adds keys to a staging; all, or none.
func (s *State) restoreChunk(c *fsmpb.RestoreChunk) *fsmpb.Outcome {
	g := s.staged(c.Id)
	if g == nil {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_NOT_FOUND}
	}
	if c.First != uint64(g.keys.Len()) {
		return invalid("first")
	}
	if field := g.add(c.Keys); field != "" {
		return invalid(field)
	}
	g.deadlineMS = s.clockMS + g.ttlMS
	return &fsmpb.Outcome{}
}

// add puts keys behind those that are there. It names what is wrong with them, if
// anything, and then has added none.
func (g *staging) add(records []*fsmpb.KeyRecord) (field string) {
	last, _, _ := g.keys.Max()
	for _, r := range records {
		if badBackupKey(r, last, g.backupIndex) != "" {
			return "keys"
		}
		last = r.Key
	}
	for _, r := range records {
		g.put(keyOf(r))
	}
	return ""
}

// put adds a key that is not there yet.
func (g *staging) put(k *Key) {
	k.hash = k.digest()
	g.keys.Set(k.Key, k)
	g.sum += k.hash
	g.dataBytes += k.bytes()
	if !k.Present {
		g.tombstones.Set(due{at: k.Watermark, of: dueTombstone, key: k.Key})
	}
}

// badBackupKey says what is wrong with a key that comes after another in a backup
// taken at that index. Numbers above the index would not be below the floor that
// the restore sets (P5).
func badBackupKey(r *fsmpb.KeyRecord, last string, index uint64) string {
	switch {
	case !nameOK(r.GetKey()):
		return "a key without a proper name"
	case r.Key <= last:
		return "keys that are not in order"
	case max(r.Version, r.Token, r.Watermark) > index:
		return "a key with a number above its index"
	case r.Watermark == 0 || r.Present != (r.Version != 0) || r.Present != (r.Token != 0):
		return "a key with a number missing, or too many"
	case !r.Present && (len(r.Value) > 0 || r.ContentType != ""):
		return "a value that was deleted"
	}
	return ""
}

// restoreCommit is the restore: in one entry, on every node at the same index, the
// staged keys are served, and everything from before is over. Everything that it
// names must be so, or nothing changes.
func (s *State) restoreCommit(c *fsmpb.RestoreCommit) *fsmpb.Outcome {
	if o, _ := s.repeated("", c.Request); o != nil {
		return o
	}
	g := s.staged(c.Id)
	switch {
	case g == nil:
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_NOT_FOUND}
	case c.Keys != uint64(g.keys.Len()):
		return invalid("keys")
	case c.Checksum != g.sum:
		return invalid("checksum")
	case c.Base != s.base:
		return invalid("base")
	case c.BackupIndex != g.backupIndex:
		return invalid("backup_index")
	}
	if err := s.Jump(JumpOf(c)); err != nil {
		return invalid("above")
	}
	s.keys, s.tombstones, s.keySum, s.dataBytes = g.keys, g.tombstones, g.sum, g.dataBytes
	s.staging = nil
	s.event(Event{Kind: EventRestored})
	o := &fsmpb.Outcome{}
	s.remember("", c.Request, o, false)
	return o
}

// JumpOf is the jump that the entry makes, if it restores.
func JumpOf(c *fsmpb.RestoreCommit) Jump {
	return Jump{SinceMS: c.SinceMs, BackupIndex: c.BackupIndex, Above: c.Above}
}

// Staged says how many keys are staged, and whether a backup is being restored.
func (s *State) Staged() (keys int, restoring bool) {
	if s.staging == nil {
		return 0, false
	}
	return s.staging.keys.Len(), true
}

// dropStaging forgets a backup that nobody goes on restoring.
func (s *State) dropStaging() {
	if g := s.staging; g != nil && g.deadlineMS <= s.clockMS {
		s.staging = nil
	}
}

// copy is for a snapshot, which writes only keys.
func (g *staging) copy() *staging {
	if g == nil {
		return nil
	}
	c := *g
	c.keys, c.tombstones = g.keys.Copy(), nil
	return &c
}

func (g *staging) write(out *snapshotWriter) {
	if g == nil {
		return
	}
	out.record(&fsmpb.Record{Record: &fsmpb.Record_Staging{Staging: &fsmpb.StagingRecord{
		Id: g.id, BackupIndex: g.backupIndex, TtlMs: g.ttlMS, DeadlineMs: g.deadlineMS,
	}}})
	g.keys.Scan(func(_ string, k *Key) bool {
		return out.record(&fsmpb.Record{Record: &fsmpb.Record_Staged{Staged: k.record()}})
	})
}

func stagingOf(r *fsmpb.StagingRecord) *staging {
	return newStaging(r.Id, r.BackupIndex, r.TtlMs, r.DeadlineMs)
}
