package cluster

import (
	"errors"
	"fmt"
	"sort"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// A LogEntry is one entry of a stopped node's log.
type LogEntry struct {
	Index uint64 // the public one
	Term  uint64
	Type  string // "command", or Raft's own: "noop", "configuration", "barrier"
	// Command is nil for Raft's own entries, and if Err says that it cannot be
	// decoded.
	Command *fsmpb.Command
	Servers []LogServer // of a configuration
	Data    []byte      // as it is in the log
	Err     error
}

// A LogServer is a member as Raft's configuration has it.
type LogServer struct {
	ID    string `json:"id"`
	Addr  string `json:"raft_addr"`
	Voter bool   `json:"voter"`
}

// A LogPosition is an entry's place; Index 0: there is none.
type LogPosition struct {
	Index uint64 `json:"index"` // the public one
	Term  uint64 `json:"term"`
}

// LogInfo says what a stopped node's log is. All indexes are public.
type LogInfo struct {
	Node, ID, ClusterID string

	First, Last uint64 // entries, both included; 0: there are none
	// FromJournal are entries, of these, that had not settled in raft.db.
	FromJournal int
	// Abandoned entries are on the disk and not in the log: a snapshot of the
	// leader's took their place.
	Abandoned int

	Snapshot    LogPosition // the newest
	CurrentTerm uint64
	VotedFor    string // Raft address; "": for nobody yet
	VotedInTerm uint64

	// Committed is the last index that this directory alone proves to be
	// committed: the newest snapshot's, or, if that is later, the newest that a
	// leader's Tick in the log names as applied. Raft does not write down how far
	// it has committed, so most logs go on behind it, with entries that may have
	// been committed or not. Of these, one that a majority of the nodes has, in the
	// newest term that the logs of all of them have, is committed, with all before it.
	Committed uint64
}

// ReadLog reads the log of a stopped node, and lets see have its entries in index
// order; a nil see reads only what the log is. An error of see ends it and is
// returned. It is OpenLog, Each and Close.
func ReadLog(dir string, see func(LogEntry) error) (LogInfo, error) {
	s, err := OpenLog(dir)
	if err != nil {
		return LogInfo{}, err
	}
	if see != nil {
		err = s.Each(0, 0, see)
	}
	return s.Info(), errors.Join(err, s.Close())
}

// StoredLog is the log of a stopped node, open for reading; the node cannot start
// meanwhile. It is for one goroutine.
type StoredLog struct {
	files *storedFiles
	tail  []*raft.Log // in the journal
	jumps jumps       // from Raft's index to the public one
	first uint64      // Raft's index of Info.First
	last  uint64      // and of Info.Last
	info  LogInfo

	snapshot storedSnapshot // the newest
}

// OpenLog opens the log in a data directory, and changes nothing on the disk. It
// refuses what a start would refuse, with the same care: another node's log or
// journal, one that was lost, damage; and a directory that a process uses. A
// record of the journal that a crash cut off was never acknowledged, and is left out.
func OpenLog(dir string) (*StoredLog, error) {
	f, err := openStoredFiles(dir)
	if err != nil {
		return nil, err
	}
	return openStoredLog(f)
}

// openStoredLog reads what the log in these files is; StoredLog.Close closes them.
func openStoredLog(f *storedFiles) (*StoredLog, error) {
	s := &StoredLog{files: f, info: LogInfo{Node: f.id.Name, ID: f.id.ID, ClusterID: f.id.ClusterID}}
	if err := s.read(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Info says what the log is.
func (s *StoredLog) Info() LogInfo { return s.info }

// Close lets the node start again.
func (s *StoredLog) Close() error { return s.files.close() }

// Each lets see have the entries from one public index to another, both included,
// in index order; to 0: to the last. An error of see ends it and is returned.
func (s *StoredLog) Each(from, to uint64, see func(LogEntry) error) error {
	first, last := s.entries(from, to)
	for i := first; i != 0 && i <= last; i++ {
		l, err := s.at(i)
		if err != nil {
			return err
		}
		if err := see(s.entry(l)); err != nil {
			return err
		}
	}
	return nil
}

// Range is what there is of such a range; 0, 0: nothing.
func (s *StoredLog) Range(from, to uint64) (first, last uint64) {
	if first, last = s.entries(from, to); first == 0 {
		return 0, 0
	}
	return s.jumps.public(first), s.jumps.public(last)
}

// Count is how many entries there are of such a range: fewer than its indexes, if
// the index jumps in it.
func (s *StoredLog) Count(from, to uint64) uint64 {
	first, last := s.entries(from, to)
	if first == 0 {
		return 0
	}
	return last - first + 1
}

// entries is such a range in Raft's indexes; 0, 0: nothing.
func (s *StoredLog) entries(from, to uint64) (first, last uint64) {
	if s.first == 0 {
		return 0, 0
	}
	n := int(s.last - s.first + 1)
	before := sort.Search(n, func(i int) bool { return s.jumps.public(s.first+uint64(i)) >= from })
	through := n
	if to != 0 {
		through = sort.Search(n, func(i int) bool { return s.jumps.public(s.first+uint64(i)) > to })
	}
	if before >= through {
		return 0, 0
	}
	return s.first + uint64(before), s.first + uint64(through) - 1
}

// read finds out everything about the log, and goes through it once.
func (s *StoredLog) read() (err error) {
	f := s.files
	snapshot, err := newestSnapshot(f.dir, f.id.ClusterID)
	if err != nil {
		return err
	}
	s.jumps = jumps{{0, snapshot.base}}
	s.snapshot = snapshot
	if snapshot.index > 0 {
		s.info.Snapshot = LogPosition{s.jumps.public(snapshot.index), snapshot.term}
		s.info.Committed = s.info.Snapshot.Index
	}
	if s.info.CurrentTerm, s.info.VotedInTerm, s.info.VotedFor, err = f.vote(); err != nil {
		return err
	}
	if s.tail, err = f.journal(); err != nil {
		return err
	}
	first, last, err := f.bounds()
	if err != nil {
		return err
	}
	settled := last
	if n := len(s.tail); n > 0 {
		last = max(last, s.tail[n-1].Index)
		if first == 0 {
			first = s.tail[0].Index
		}
	}
	if first > 1 && snapshot.index+1 < first {
		return fmt.Errorf("the log begins at entry %d, and no snapshot reaches so far: data directory %s is not whole", first, f.dir)
	}
	var restores []restoring
	if first, restores, err = s.scan(first, last, snapshot); err != nil {
		return err
	}
	if err := s.findJumps(restores, last, snapshot); err != nil {
		return err
	}
	if first != 0 && first <= last {
		s.first, s.last = first, last
		s.info.First, s.info.Last = s.jumps.public(first), s.jumps.public(last)
		s.info.FromJournal = int(last - min(max(settled, first-1), last))
	}
	return nil
}

// scan finds where the log really begins, how far it is known to be committed, and
// which entries may have moved the base.
// A snapshot that a leader sent leaves what the follower had before on its disk,
// with a gap behind it, or with another term where the snapshot is: Raft never
// looks at those entries again, and they may never have been committed.
func (s *StoredLog) scan(first, last uint64, snapshot storedSnapshot) (begin uint64, restores []restoring, err error) {
	begin = first
	var found int
	abandon := func(at uint64) {
		begin, found, s.info.Abandoned, restores = at+1, 0, s.info.Abandoned+found, nil
		s.info.Committed = s.info.Snapshot.Index
	}
	for i := first; i != 0 && i <= last; i++ {
		l, err := s.at(i)
		if errors.Is(err, raft.ErrLogNotFound) {
			if i > snapshot.index {
				return 0, nil, fmt.Errorf("entry %d is missing, and no snapshot has it: data directory %s is not whole", s.jumps.public(i), s.files.dir)
			}
			abandon(i)
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		found++
		if i == snapshot.index && l.Term != snapshot.term {
			abandon(i)
			continue
		}
		if e := s.entry(l); e.Command != nil {
			s.info.Committed = max(s.info.Committed, e.Command.GetTick().GetDigestIndex())
			if c := e.Command.GetRestoreCommit(); c != nil {
				restores = append(restores, restoring{i, c})
			}
		}
	}
	if last < snapshot.index {
		abandon(last)
	}
	return begin, restores, nil
}

// at finds an entry by Raft's index: one in the journal goes before one in raft.db,
// as it would at a start.
func (s *StoredLog) at(index uint64) (*raft.Log, error) {
	if n := uint64(len(s.tail)); n > 0 && index >= s.tail[0].Index && index-s.tail[0].Index < n {
		return s.tail[index-s.tail[0].Index], nil
	}
	return s.files.settled(index)
}

func (s *StoredLog) entry(l *raft.Log) LogEntry {
	e := LogEntry{Index: s.jumps.public(l.Index), Term: l.Term, Data: l.Data}
	switch l.Type {
	case raft.LogCommand:
		e.Type = "command"
		e.Command, e.Err = fsm.Decode(l.Data)
	case raft.LogNoop:
		e.Type = "noop"
	case raft.LogBarrier:
		e.Type = "barrier"
	case raft.LogConfiguration:
		e.Type = "configuration"
		e.Servers, e.Err = logServers(l.Data)
	default:
		e.Type = l.Type.String()
	}
	return e
}

// logServers reads a configuration; Raft's own reader panics at one that is damaged.
func logServers(data []byte) (servers []LogServer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	for _, s := range raft.DecodeConfiguration(data).Servers {
		servers = append(servers, LogServer{string(s.ID), string(s.Address), s.Suffrage == raft.Voter})
	}
	return servers, nil
}
