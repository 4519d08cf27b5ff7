package cluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// fullSnapshots leave what Raft's own do when the disk is full.
type fullSnapshots struct {
	raft.SnapshotStore
	dir  string
	full bool
}

var errFull = errors.New("no space left")

func (s *fullSnapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64, t raft.Transport) (raft.SnapshotSink, error) {
	if s.full {
		return nil, errors.Join(os.MkdirAll(filepath.Join(s.dir, "9-9-9"+unfinished), 0o700), errFull)
	}
	return s.SnapshotStore.Create(v, index, term, c, ci, t)
}

type failingSink struct{ raft.SnapshotSink }

func (failingSink) Close() error  { return errFull }
func (failingSink) Cancel() error { return errFull }

// A snapshot that was given up leaves nothing behind, and takes nothing away from one
// that is being written.
func TestAFailedSnapshotLeavesNothing(t *testing.T) {
	for name, fail := range map[string]func(*tidySnapshots, *fullSnapshots, raft.SnapshotSink) error{
		"while it begins": func(s *tidySnapshots, f *fullSnapshots, sink raft.SnapshotSink) error {
			f.full = true
			_, err := s.Create(1, 7, 1, raft.Configuration{}, 1, nil)
			sink.Cancel()
			return err
		},
		"while it is closed": func(_ *tidySnapshots, _ *fullSnapshots, sink raft.SnapshotSink) error { return sink.Close() },
		"while it is cancelled": func(_ *tidySnapshots, _ *fullSnapshots, sink raft.SnapshotSink) error {
			sink.Cancel() // tells nothing that is not known
			return errFull
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			files, err := raft.NewFileSnapshotStore(path, 2, nil)
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(path, "snapshots")
			failing := &fullSnapshots{SnapshotStore: files, dir: dir}
			s := &tidySnapshots{SnapshotStore: failing, dir: dir, log: hclog.NewNullLogger(), open: make(map[string]bool)}
			other, err := s.Create(1, 5, 1, raft.Configuration{}, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			sink, err := s.Create(1, 6, 1, raft.Configuration{}, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			sink.Write(bytes.Repeat([]byte("x"), 10_000))
			sink.(*tidySink).SnapshotSink = failingSink{sink.(*tidySink).SnapshotSink}
			if err := fail(s, failing, sink); !errors.Is(err, errFull) {
				t.Fatalf("got %v, want %v", err, errFull)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || entries[0].Name() != other.ID()+unfinished {
				t.Errorf("left are %v, %v, want %s alone", entries, err, other.ID())
			}
			other.Write([]byte("whole"))
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			if list, err := s.List(); err != nil || len(list) != 1 || list[0].Index != 5 {
				t.Errorf("got %v, %v, want the snapshot of entry 5", list, err)
			}
		})
	}
}
