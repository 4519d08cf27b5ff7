package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"fencepost/fsm"
)

// A recovery writes everything that the new directory consists of beside the old
// files, into a directory of its own, and renames that: this is the one step that
// decides. What follows only moves files, and is done again by whoever opens the
// directory next, be it the node. So after a crash the directory is the old one or
// the new one.
const (
	recoveryDraft   = "recovered.tmp"
	recoveryDone    = "recovered"
	recoveryReports = "recovery.json"
)

// recoveryStep is one step; a crash may come behind each.
type recoveryStep struct {
	what string
	do   func() error
}

func runSteps(steps []recoveryStep, after func(string) error) error {
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		if after == nil {
			continue
		}
		if err := after(s.what); err != nil {
			return err
		}
	}
	return nil
}

// Commit makes the directory the new one. After an error it is the old one or the
// new one; a recovery that is opened then goes on from there.
func (r *Recovery) Commit() error {
	draft, done := r.dir.file(recoveryDraft), r.dir.file(recoveryDone)
	steps := []recoveryStep{
		{"clear what an earlier attempt left", func() error { return errors.Join(os.RemoveAll(draft), os.Mkdir(draft, 0o700)) }},
		{"write the new snapshot", func() error { return r.writeSnapshot(draft) }},
		{"check the new snapshot", func() error { return r.checkSnapshot(draft) }},
		{"write the new log", func() error { return r.writeLog(filepath.Join(draft, "raft.db")) }},
		{"write the report", func() error { return r.writeReport(filepath.Join(draft, recoveryReports)) }},
		{"write the new identity", func() error { return (&dataDir{path: draft}).save(r.id) }}, // and syncs the directory
		{"give it to the directory's owner", func() error { return giveToOwner(r.dir.path, draft) }},
		{"decide", func() error { return errors.Join(os.Rename(draft, done), syncDir(r.dir.path)) }},
	}
	if err := runSteps(steps, r.after); err != nil {
		return err
	}
	return finishRecovery(r.dir.path, r.after)
}

// giveToOwner lets whoever owns the directory, which is who the node runs as, use
// what root has made there.
func giveToOwner(dir string, made ...string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	for _, path := range made {
		err := filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, int(owner.Uid), int(owner.Gid))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeSnapshot writes the state as a snapshot whose only member is the new node.
func (r *Recovery) writeSnapshot(draft string) error {
	snaps, err := raft.NewFileSnapshotStoreWithLogger(draft, 1, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	addr := raft.ServerAddress(r.addr)
	if addr == "" { // it never was recorded; the node corrects it when it starts
		addr = "unknown.invalid:1"
	}
	_, transport := raft.NewInmemTransport(addr) // which only spells the address
	defer transport.Close()
	members := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(r.id.ID), Address: addr}}}
	sink, err := snaps.Create(raft.SnapshotVersionMax, r.last.Index, r.last.Term, members, r.last.Index, transport)
	if err != nil {
		return err
	}
	return persisted{r.machine.state.Snapshot()}.Persist(sink)
}

// checkSnapshot reads the snapshot from the disk as a start would.
func (r *Recovery) checkSnapshot(draft string) error {
	stored, err := newestSnapshot(draft, r.id.ClusterID)
	if err != nil {
		return err
	}
	f, err := os.Open(stored.path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := fsm.ReadSnapshot(f)
	if err != nil {
		return err
	}
	want := r.machine.state
	if stored.index != r.last.Index || stored.term != r.last.Term || s.Base() != want.Base() || s.Floor() != r.report.Floor ||
		s.ClusterID() != r.id.ClusterID || s.Digest() != want.Digest() {
		return fmt.Errorf("it is at entry %d of term %d with base %d and floor %d, and not at entry %d of term %d with base %d and floor %d",
			stored.index, stored.term, s.Base(), s.Floor(), r.last.Index, r.last.Term, want.Base(), r.report.Floor)
	}
	return nil
}

// writeLog writes an empty log of the new node. It keeps the term: a term that is
// below the snapshot's would let a node win that has less.
func (r *Recovery) writeLog(path string) error {
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: path, BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if err != nil {
		return err
	}
	return errors.Join(bolt.Set(logOwner, []byte(r.id.ID)), bolt.SetUint64([]byte("CurrentTerm"), r.term), bolt.Close())
}

func (r *Recovery) writeReport(path string) error {
	b, err := json.MarshalIndent(r.report, "", "  ")
	if err != nil {
		return err
	}
	return writeSynced(path, append(b, '\n'))
}

func readRecoveryReport(path string) (report RecoveryReport, err error) {
	b, err := os.ReadFile(filepath.Join(path, recoveryReports))
	if err == nil {
		err = json.Unmarshal(b, &report)
	}
	if err != nil {
		return report, fmt.Errorf("read the report of the recovery: %w", err)
	}
	return report, nil
}

// recoveryPending says that a recovery was decided, and not all files are in their
// places.
func recoveryPending(path string) (bool, error) {
	_, err := os.Stat(filepath.Join(path, recoveryDone))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a recovery that was interrupted: %w", err)
	}
	return true, nil
}

// finishRecovery moves the files of a recovery that was decided into their places;
// without one it does nothing. Each step may have been done already. node.json comes
// last: until then the directory is not that of any node that an older program would
// start.
func finishRecovery(path string, after func(string) error) error {
	if pending, err := recoveryPending(path); err != nil || !pending {
		return err
	}
	from, to := filepath.Join(path, recoveryDone), path
	move := func(name string) func() error {
		return func() error {
			err := os.Rename(filepath.Join(from, name), filepath.Join(to, name))
			if errors.Is(err, fs.ErrNotExist) { // it was moved before
				return nil
			}
			return err
		}
	}
	remove := func(names ...string) func() error {
		return func() (err error) {
			for _, name := range names {
				err = errors.Join(err, os.RemoveAll(filepath.Join(to, name)))
			}
			return err
		}
	}
	steps := []recoveryStep{
		{"replace the log", move("raft.db")},
		{"remove the journal", remove("raft.journal0", "raft.journal1")}, // the new log has none yet
		{"remove the older snapshots", func() error {
			if _, err := os.Stat(filepath.Join(from, "snapshots")); err != nil { // it was moved before
				return ignoreMissing(err)
			}
			return remove("snapshots")()
		}},
		{"place the new snapshot", move("snapshots")},
		{"place the report", move(recoveryReports)},
		{"replace the identity", move("node.json")},
		{"flush", func() error { return errors.Join(syncDir(from), syncDir(to)) }},
		{"end", func() error { return errors.Join(os.Remove(from), syncDir(to)) }},
	}
	if err := runSteps(steps, after); err != nil {
		return fmt.Errorf("finish the recovery of %s: %w", path, err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
