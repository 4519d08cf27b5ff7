package fsm

import (
	"bytes"

	"pgregory.net/rapid"

	"fencepost/fsm/fsmpb"
)

// A restorer makes the entries of restores: of the backups that it has taken, in
// chunks of a key or two, mostly in the right order and sometimes not.
type restorer struct {
	base   uint64
	keys   []*fsmpb.KeyRecord
	backup *Backup
	id     uint64
	of     *Backup // being restored
	left   []*fsmpb.KeyRecord
	first  uint64
}

// jumped tells the generator that the index has jumped by so much.
func (g *generator) jumped(by uint64) {
	g.restore.base += by
	g.index += by
}

// backUp takes a backup, which later restores are of.
func (r *restorer) backUp(t *rapid.T, s *State) {
	if s.ClusterID() == "" {
		return
	}
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteBackup(&b, s.ClusterID(), 7); err != nil {
		t.Fatal(err)
	}
	r.keys = nil
	var err error
	r.backup, err = ReadBackup(&b, func(k *fsmpb.KeyRecord) error { r.keys = append(r.keys, k); return nil })
	if err != nil {
		t.Fatal(err)
	}
}

func (r *restorer) next(t *rapid.T, g *generator) *fsmpb.Command {
	if r.backup == nil {
		return tickOf()
	}
	if r.of == nil || oneIn(t, 20, "begin again") {
		r.of, r.left, r.first = r.backup, r.keys, 0
		r.id++
		return &fsmpb.Command{Op: &fsmpb.Command_RestoreBegin{RestoreBegin: &fsmpb.RestoreBegin{
			Id: r.name(t), BackupIndex: r.of.Header.Index, TtlMs: pick[uint64](t, "staging ttl", 1000, 600_000, 1<<30, 1<<30, 1<<40, 1<<40, 1<<40, 1<<40, 0, 1<<40+1),
		}}}
	}
	if len(r.left) > 0 && !oneIn(t, 20, "commit early") {
		n := rapid.IntRange(1, min(2, len(r.left))).Draw(t, "chunk")
		c := &fsmpb.RestoreChunk{Id: r.name(t), First: r.first, Keys: r.left[:n]}
		if oneIn(t, 30, "twice") {
			c.Keys = r.keys[:min(n, len(r.keys))] // perhaps of a newer backup
		}
		if oneIn(t, 30, "out of order") {
			c.First = pick[uint64](t, "first", 0, 1, 2)
			return &fsmpb.Command{Op: &fsmpb.Command_RestoreChunk{RestoreChunk: c}}
		}
		r.left, r.first = r.left[n:], r.first+uint64(n)
		return &fsmpb.Command{Op: &fsmpb.Command_RestoreChunk{RestoreChunk: c}}
	}
	of := r.of
	if oneIn(t, 3, "another") {
		r.of = nil // and begins anew
	}
	c := &fsmpb.RestoreCommit{
		Id: r.name(t), Keys: of.Header.Keys, Checksum: of.Checksum, Base: r.base, BackupIndex: of.Header.Index,
		SinceMs: g.nowMS,
	}
	c.Request = g.request(t, "restore", &fsmpb.RestoreCommit{Checksum: of.Checksum})
	switch rapid.IntRange(0, 12).Draw(t, "wrong") {
	case 0:
		c.Keys++
	case 1:
		c.Base++
	case 2:
		c.BackupIndex++
	case 3:
		c.Above = pick[uint64](t, "above", g.index, g.index+1<<33, MaxToken, 1<<64-1)
	}
	return &fsmpb.Command{Op: &fsmpb.Command_RestoreCommit{RestoreCommit: c}}
}

// name is the staging's, mostly.
func (r *restorer) name(t *rapid.T) string {
	if oneIn(t, 30, "other staging") {
		return pick(t, "staging", "other", "")
	}
	return "s"
}
