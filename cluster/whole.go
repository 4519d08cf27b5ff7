package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// checkStored reads all that a node has stored before Raft does. Raft takes the next
// older snapshot when the newest is damaged, and panics at an entry that it cannot
// read: whatever is not whole is refused here, with the reason. A node that started
// with less than it had, and its votes, could undo what a majority has acknowledged
// (P9).
func checkStored(dir string, id identity, bolt *raftboltdb.BoltStore) error {
	if err := checkSnapshotNames(dir); err != nil {
		return err
	}
	s := &StoredLog{files: &storedFiles{dir: dir, id: id, bolt: bolt}}
	if err := s.read(); err != nil {
		return err
	}
	newest := s.info.Snapshot.Term
	if s.info.Last > 0 {
		l, err := s.at(s.last)
		if err != nil {
			return err
		}
		newest = max(newest, l.Term)
	}
	if term := s.info.CurrentTerm; term < newest || term < s.info.VotedInTerm {
		return fmt.Errorf("the log in %s is damaged: it is in term %d, has entries of term %d, and has voted in term %d",
			dir, term, newest, s.info.VotedInTerm)
	}
	return nil
}

// lostAdvice adds what to do, where what is stored is damaged. What a disk or a
// permission keeps from being read may be whole.
func lostAdvice(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%w: wipe the data directory, and the node joins again as a new member", err)
}
