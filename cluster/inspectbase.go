package cluster

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// jumps are how the public index goes on from Raft's in a stored log: a restore in
// the middle of it moves the base. The first is from entry 0.
type jumps []jump

// jump is an entry from which on, itself included, the base is another.
type jump struct{ from, base uint64 } // Raft's index

// public is the public index of an entry.
func (j jumps) public(index uint64) uint64 {
	i := sort.Search(len(j), func(i int) bool { return j[i].from > index })
	return j[i-1].base + index
}

// restoring is an entry that may have restored a backup.
type restoring struct {
	index  uint64 // Raft's
	commit *fsmpb.RestoreCommit
}

// findJumps finds where the base changes. Whether a commit restored anything does
// not follow from itself. Behind the newest snapshot that is told by the snapshot:
// its base and floor name the last one that did, each names the base that was before
// it, and so on back. Ahead of the snapshot the state machine tells.
func (s *StoredLog) findJumps(all []restoring, last uint64, snapshot storedSnapshot) error {
	ahead := len(all)
	for ahead > 0 && all[ahead-1].index > snapshot.index {
		ahead--
	}
	s.jumps = behind(all[:ahead], snapshot)
	if ahead == len(all) {
		return nil
	}
	state := fsm.New()
	if snapshot.path != "" {
		f, err := os.Open(snapshot.path)
		if err != nil {
			return err
		}
		defer f.Close()
		if state, err = fsm.ReadSnapshot(f); err != nil {
			return fmt.Errorf("newest snapshot %s: %w", snapshot.path, err)
		}
	}
	for i := snapshot.index + 1; i <= last; i++ {
		l, err := s.at(i)
		if errors.Is(err, raft.ErrLogNotFound) {
			continue
		} else if err != nil {
			return err
		}
		if l.Type != raft.LogCommand {
			continue
		}
		c, err := fsm.Decode(l.Data)
		if err != nil {
			return nil // no node gets past it, and nor does this
		}
		base := state.Base()
		if _, _, err := state.Apply(state.PublicIndex(i), l.Term, c); err != nil {
			return nil
		}
		if state.Base() != base {
			s.jumps = append(s.jumps, jump{i, state.Base()})
		}
	}
	return nil
}

// behind are the jumps up to a snapshot.
func behind(all []restoring, snapshot storedSnapshot) jumps {
	base, found := snapshot.base, jumps{}
	at := snapshot.restoreFloor - min(snapshot.base, snapshot.restoreFloor) // the entry that led to this base
	for i := len(all) - 1; i >= 0; i-- {
		r := all[i]
		if to, err := fsm.JumpOf(r.commit).To(r.commit.Base + r.index); err != nil || to-r.index != base || len(found) == 0 && r.index != at {
			continue
		}
		found = append(found, jump{r.index, base})
		base = r.commit.Base
	}
	found = append(found, jump{0, base})
	slices.Reverse(found)
	return found
}
