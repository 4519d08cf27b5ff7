package cluster

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
)

// ErrRemovedNode: what a recovery would begin from was no member any more.
var ErrRemovedNode = errors.New("the node was removed from its cluster, and has nothing of what was acknowledged afterwards")

// A Recovery makes a new cluster of the data directory of one survivor, after a
// majority of the nodes was lost for good. It replays the survivor's log, also
// what may never have been committed, moves the index above every token that was
// ever issued (P1, P5; see fsm.Jump), and gives the directory a new cluster id and
// a new Raft id, so that none of the former members can speak to it.
//
// OpenRecovery changes nothing on the disk but the lock; Commit does. It is for one goroutine,
// and no process can use the directory until Close.
type Recovery struct {
	dir     *dataDir
	machine *machine
	report  RecoveryReport
	id      identity // the new one
	term    uint64   // Raft's
	last    LogPosition
	addr    string // for Raft

	after func(step string) error // tests: what fails behind a step
}

// RecoveryReport says what a recovery did, or is about to do. Indexes are public.
// The new directory keeps it in recovery.json.
type RecoveryReport struct {
	Node            string `json:"node"`
	FormerClusterID string `json:"former_cluster_id"`
	FormerID        string `json:"former_id"`
	ClusterID       string `json:"cluster_id"`
	ID              string `json:"id"`
	// RecoveredTo is the last entry that the survivor has. What was acknowledged
	// after it, on other nodes, is lost.
	RecoveredTo uint64 `json:"recovered_to"`
	// Committed is how far the directory alone proves that entries were committed;
	// those behind may have been acknowledged or not, and count as if they were.
	Committed uint64 `json:"committed"`
	// Ignored are entries at the end of the log that surely never were committed.
	Ignored int `json:"ignored,omitempty"`
	// Floor is the index after the jump: tokens up to it are refused on every key.
	Floor uint64 `json:"floor"`
	// LongestTTLMS is the longest time for which somebody outside may believe to
	// hold a lease of those that the survivor knows of, and LongestGraceMS the
	// longest grace.
	LongestTTLMS   uint64 `json:"longest_ttl_ms"`
	LongestGraceMS uint64 `json:"longest_grace_ms"`
	Held           int    `json:"held"` // leases that were held
	Keys           int    `json:"keys"`
	// Others are the names of the former members.
	Others []string `json:"others"`
	// Finished says that an earlier recovery, which was interrupted, has been
	// finished, and nothing else was done.
	Finished bool `json:"-"`
}

// OpenRecovery reads a stopped node's directory and finds out what it would become.
// above is a number that all new tokens must exceed; 0: none that the operator knows
// of. The errors are those of OpenLog, and fsm.ErrJumpTooFar.
//
// If an earlier recovery of the directory was interrupted when it could not be taken
// back any more, that is finished first, and Finished says so; there is then nothing
// to commit, unless it went less far than above.
//
// A node that was removed stopped following its cluster then, which may have gone on
// for long: its directory is taken only if removed says so, and else ErrRemovedNode.
func OpenRecovery(path string, above uint64, removed bool) (*Recovery, error) {
	id, err := readIdentity(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s is no data directory of a node: it has no node.json", path)
	case err != nil:
		return nil, err
	case id.Removed && !removed:
		return nil, fmt.Errorf("%s: %w", path, ErrRemovedNode)
	}
	pending, err := recoveryPending(path)
	if err != nil {
		return nil, err
	}
	dir, err := openDataDir(path) // which finishes it
	if err != nil {
		return nil, err
	}
	r := &Recovery{dir: dir}
	// Also if nothing else comes of it: the node could not open a lock of root's.
	if err := giveToOwner(path, dir.file("lock")); err != nil {
		return nil, errors.Join(err, dir.close())
	}
	if pending {
		if r.report, err = readRecoveryReport(path); err != nil {
			return nil, errors.Join(err, dir.close())
		}
		if r.report.Finished = r.report.Floor >= above; r.report.Finished {
			return r, nil
		}
	}
	if err := r.replay(); err != nil {
		return nil, errors.Join(err, dir.close())
	}
	if err := r.refound(above); err != nil {
		return nil, errors.Join(err, dir.close())
	}
	return r, nil
}

// Report says what the directory becomes, or has become.
func (r *Recovery) Report() RecoveryReport { return r.report }

// Close lets the node start.
func (r *Recovery) Close() error { return r.dir.close() }

// replay builds the state from the newest snapshot and all entries behind it, as
// the node would if all of them were committed.
func (r *Recovery) replay() error {
	files, err := openFilesUnderLock(r.dir.path)
	if err != nil {
		return err
	}
	s, err := openStoredLog(files)
	if err != nil {
		return err
	}
	defer s.Close()
	var broken error
	r.machine = newMachine(func(uint64, []fsm.Decision) {}, func(err error) { broken = err }, NewFeed(1, 1))
	if path := s.snapshot.path; path != "" {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("open the newest snapshot: %w", err)
		}
		if err := r.machine.Restore(f); err != nil {
			return errors.Join(fmt.Errorf("newest snapshot %s: %w", path, err), broken)
		}
	}
	r.last = LogPosition{s.snapshot.index, s.snapshot.term}
	if err := r.replayEntries(s); err != nil {
		return err
	}
	if r.last.Index == 0 {
		return fmt.Errorf("node %q has no log and no snapshot: there is nothing to recover from", files.id.Name)
	}
	r.term = max(s.info.CurrentTerm, r.last.Term)
	r.report = RecoveryReport{
		Node: files.id.Name, FormerClusterID: files.id.ClusterID, FormerID: files.id.ID,
		Committed: s.info.Committed, Ignored: r.report.Ignored,
	}
	return nil
}

// replayEntries applies what is behind the snapshot. An entry of an older term than
// the one before it is what a snapshot of the leader's left behind, and with all that
// follow it was never committed.
func (r *Recovery) replayEntries(s *StoredLog) error {
	if s.info.Last == 0 {
		return nil
	}
	for i, last := r.last.Index+1, s.last; i <= last; i++ {
		l, err := s.at(i)
		if err != nil {
			return err
		}
		if l.Term < r.last.Term {
			r.report.Ignored = int(last - i + 1)
			return nil
		}
		if l.Type == raft.LogCommand {
			if _, err := r.machine.apply(l); err != nil {
				return fmt.Errorf("entry %d of the log cannot be applied: %w", s.jumps.public(i), err)
			}
		}
		r.last = LogPosition{i, l.Term}
	}
	return nil
}

// refound moves the index and makes the state another cluster's.
func (r *Recovery) refound(above uint64) error {
	state, report := r.machine.state, &r.report
	report.RecoveredTo = state.PublicIndex(r.last.Index)
	report.LongestTTLMS, report.LongestGraceMS = state.LongestTTLMS()
	report.Held, report.Keys = state.Counts().Held, state.Counts().Keys
	for _, m := range state.Nodes() {
		if m.Id == report.FormerID {
			r.addr = m.RaftAddr
		} else {
			report.Others = append(report.Others, m.Name)
		}
	}
	report.ClusterID, report.ID = randomHex(16), report.Node+"-"+randomHex(8)
	r.id = identity{Version: identityVersion, Name: report.Node, ID: report.ID, ClusterID: report.ClusterID, HasLog: true}
	jump := fsm.Jump{
		SinceMS:     fsm.SinceJumpEpochMS(time.Now().UnixMilli()),
		BackupIndex: report.RecoveredTo, // Raft's own entries at the end are not in the state's index
		Above:       above,
	}
	if err := state.Jump(jump); err != nil {
		return err
	}
	state.Refound(report.ClusterID)
	report.Floor = state.Floor()
	return nil
}
