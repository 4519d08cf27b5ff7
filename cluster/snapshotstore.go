package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// tidySnapshots is Raft's store of snapshots, without what that leaves behind when
// one fails, on a full disk above all; and with a checksum of what says which
// entries and members a snapshot is of. (Raft's own is of the state alone.)
type tidySnapshots struct {
	raft.SnapshotStore
	dir string
	log hclog.Logger

	mu   sync.Mutex      // guards open
	open map[string]bool // names of directories that are being written
}

const unfinished = ".tmp"

// metaSum is the file with the checksum of meta.json.
const metaSum = "meta.sum"

func openSnapshots(dataDir string, log hclog.Logger) (*tidySnapshots, error) {
	s, err := raft.NewFileSnapshotStoreWithLogger(dataDir, 2, log)
	if err != nil {
		return nil, err
	}
	t := &tidySnapshots{SnapshotStore: s, dir: filepath.Join(dataDir, "snapshots"), log: log, open: make(map[string]bool)}
	t.clear() // what a crash left
	return t, nil
}

func (s *tidySnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sink, err := s.SnapshotStore.Create(version, index, term, c, cIndex, trans)
	if err != nil {
		s.clear()
		return nil, err
	}
	name := sink.ID() + unfinished
	s.open[name] = true
	return &tidySink{SnapshotSink: sink, store: s, name: name}, nil
}

// clear removes what nobody is writing.
func (s *tidySnapshots) clear() {
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), unfinished) && !s.open[e.Name()] {
			s.remove(e.Name())
		}
	}
}

// remove gives the room back at once, though Raft may have the file still open.
func (s *tidySnapshots) remove(name string) {
	path := filepath.Join(s.dir, name)
	if err := os.Truncate(filepath.Join(path, "state.bin"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		s.log.Warn("empty an unfinished snapshot", "name", name, "error", err)
	}
	if err := os.RemoveAll(path); err != nil {
		s.log.Warn("remove an unfinished snapshot", "name", name, "error", err)
	}
}

// tidySink is one snapshot that is being written.
type tidySink struct {
	raft.SnapshotSink
	store *tidySnapshots
	name  string
	ended bool
}

func (k *tidySink) Close() error {
	err := k.SnapshotSink.Close()
	if k.ended {
		return err
	}
	k.end()
	if err == nil {
		k.seal()
	}
	return err
}

func (k *tidySink) Cancel() error {
	if k.ended {
		return nil
	}
	// Its error is the same that ended the snapshot: it flushes before it removes.
	_ = k.SnapshotSink.Cancel()
	k.end()
	return nil
}

// end removes what is left under the name of an unfinished snapshot: nothing, if it
// was finished.
func (k *tidySink) end() {
	k.ended = true
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	delete(k.store.open, k.name)
	if _, err := os.Stat(filepath.Join(k.store.dir, k.name)); err == nil {
		k.store.remove(k.name)
	}
}

// seal writes the checksum of meta.json. A snapshot without one is taken as it is.
func (k *tidySink) seal() {
	dir := filepath.Join(k.store.dir, k.ID())
	b, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, metaSum), sumLine(b), 0o600)
	}
	if err != nil {
		k.store.log.Warn("write the checksum of a snapshot's meta data", "error", err)
		os.Remove(filepath.Join(dir, metaSum))
	}
}

// sumLine ends with a newline, so that half of one is none.
func sumLine(b []byte) []byte { return fmt.Appendf(nil, "%08x\n", checksum(b)) }

// checkSnapshotNames sees that each snapshot that was finished can be read as far as
// Raft's list of them goes: it leaves out what it cannot read, and restores an older
// one, with a gap between that and the log (P9).
func checkSnapshotNames(dataDir string) error {
	dir := filepath.Join(dataDir, "snapshots")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), unfinished) {
			continue
		}
		if err := checkMeta(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("snapshot %s: %w", filepath.Join(dir, e.Name()), err)
		}
	}
	return nil
}

func checkMeta(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	if err != nil {
		return err
	}
	var meta struct {
		ID          string
		Index, Term uint64
	}
	if err := json.Unmarshal(b, &meta); err != nil {
		return fmt.Errorf("its meta data is damaged: %w", err)
	}
	name := filepath.Base(dir)
	if meta.ID != name || !strings.HasPrefix(name, fmt.Sprintf("%d-%d-", meta.Term, meta.Index)) {
		return fmt.Errorf("its meta data is damaged: it is of snapshot %s, of entry %d in term %d", meta.ID, meta.Index, meta.Term)
	}
	// A crash may have come before the checksum, or in the middle of it.
	sum, err := os.ReadFile(filepath.Join(dir, metaSum))
	if err == nil && len(sum) == len(sumLine(nil)) && string(sum) != string(sumLine(b)) {
		return errors.New("its meta data is damaged: its checksum differs")
	}
	return nil
}
