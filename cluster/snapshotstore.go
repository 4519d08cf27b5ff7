package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/raft"
)

// tidySnapshots is Raft's snapshot store, without what it leaves behind when the disk
// is full: each attempt would leave an unfinished snapshot, until these have all the
// room that somebody makes.
type tidySnapshots struct {
	raft.SnapshotStore
	dir string

	mu   sync.Mutex      // guards open, and Create
	open map[string]bool // ids of those that are being written
}

const unfinishedSuffix = ".tmp"

func newTidySnapshots(of raft.SnapshotStore, dir string) *tidySnapshots {
	return &tidySnapshots{SnapshotStore: of, dir: dir, open: make(map[string]bool)}
}

// Create is called by the goroutine that takes snapshots, and by the one that gets the
// leader's.
func (s *tidySnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sink, err := s.SnapshotStore.Create(version, index, term, c, cIndex, t)
	if err != nil {
		s.clear()
		return nil, err
	}
	s.open[sink.ID()] = true
	return &tidySink{sink, s}, nil
}

// clear removes all unfinished snapshots that nobody writes.
func (s *tidySnapshots) clear() {
	entries, _ := os.ReadDir(s.dir) // if it fails, the next attempt clears
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), unfinishedSuffix); ok && !s.open[id] {
			path := filepath.Join(s.dir, e.Name())
			// Raft has not closed the file: its room is not given back by removing it.
			os.Truncate(filepath.Join(path, "state.bin"), 0)
			os.RemoveAll(path)
		}
	}
}

type tidySink struct {
	raft.SnapshotSink
	s *tidySnapshots
}

func (k *tidySink) Close() error { return k.end(k.SnapshotSink.Close) }

func (k *tidySink) Cancel() error { return k.end(k.SnapshotSink.Cancel) }

func (k *tidySink) end(how func() error) error {
	err := how()
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	delete(k.s.open, k.ID())
	if err != nil {
		k.s.clear()
	}
	return err
}
