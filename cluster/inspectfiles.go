package cluster

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// storedFiles are the files of a stopped node, open for reading only.
type storedFiles struct {
	dir  string
	id   identity
	lock *os.File // nil: the directory has none, so no node runs in it
	bolt *raftboltdb.BoltStore
}

func openStoredFiles(dir string) (*storedFiles, error) {
	id, err := readIdentity(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is no data directory of a node: it has no node.json", dir)
	}
	if err != nil {
		return nil, err
	}
	f := &storedFiles{dir: dir, id: id}
	if f.lock, err = lockToRead(dir); err != nil {
		return nil, err
	}
	if pending, err := recoveryPending(dir); err != nil || pending {
		return nil, errors.Join(fmt.Errorf("a recovery of %s was interrupted: run it again, or start the node, which ends it", dir), err, f.close())
	}
	if err := f.openLog(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// openFilesUnderLock is openStoredFiles for who has the directory to himself.
func openFilesUnderLock(dir string) (*storedFiles, error) {
	id, err := readIdentity(dir)
	if err != nil {
		return nil, err
	}
	f := &storedFiles{dir: dir, id: id}
	if err := f.openLog(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// lockToRead keeps a node from starting, and not others from reading.
func lockToRead(dir string) (*os.File, error) {
	lock, err := os.Open(filepath.Join(dir, "lock"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, inUse(dir)
	}
	return lock, nil
}

func inUse(dir string) error {
	return fmt.Errorf("data directory %s is in use: stop the node first", dir)
}

// openLog opens raft.db, and sees that it is this node's (see Node.claimLog).
func (f *storedFiles) openLog() error {
	path := filepath.Join(f.dir, "raft.db")
	info, err := os.Stat(path)
	missing := errors.Is(err, os.ErrNotExist)
	switch {
	case missing && f.id.HasLog:
		return fmt.Errorf("%s is missing: the log that node %q made was lost", path, f.id.ID)
	case missing, err == nil && info.Size() == 0 && !f.id.HasLog:
		return fmt.Errorf("node %q has no log yet: it has not entered a cluster", f.id.Name)
	case err != nil:
		return fmt.Errorf("open log store: %w", err)
	}
	err = f.guarded(func() (err error) {
		f.bolt, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{ReadOnly: true, Timeout: time.Second}})
		return err
	})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return inUse(f.dir)
	}
	if err != nil {
		return fmt.Errorf("open log store %s: %w", path, err)
	}
	owner, err := f.value(logOwner)
	if err != nil {
		return fmt.Errorf("read whose log this is: %w", err)
	}
	if string(owner) != f.id.ID && (f.id.HasLog || len(owner) > 0) {
		return fmt.Errorf("%s is not the log that node %q made (it was lost, or exchanged)", path, f.id.ID)
	}
	return nil
}

func (f *storedFiles) close() error {
	var errs []error
	if f.bolt != nil {
		errs = append(errs, f.bolt.Close())
	}
	if f.lock != nil {
		errs = append(errs, f.lock.Close())
	}
	return errors.Join(errs...)
}

// guarded makes errors of what bbolt does when it meets a damaged file: it trusts
// its pages, and panics, or reads behind the end of the mapped file.
func (f *storedFiles) guarded(read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the log in %s is damaged: %v", f.dir, p)
		}
	}()
	return read()
}

// value is nil if there is none.
func (f *storedFiles) value(key []byte) (b []byte, err error) {
	err = f.guarded(func() (err error) {
		if b, err = f.bolt.Get(key); err == nil {
			b, err = unsealValue(key, b)
		}
		return err
	})
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, nil
	}
	return b, err
}

// vote is how Raft names what it keeps about terms.
func (f *storedFiles) vote() (term, votedIn uint64, votedFor string, err error) {
	for _, n := range []struct {
		key string
		to  *uint64
	}{{"CurrentTerm", &term}, {"LastVoteTerm", &votedIn}} {
		b, err := f.value([]byte(n.key))
		if err == nil && b != nil && len(b) != 8 {
			err = fmt.Errorf("%s has %d bytes", n.key, len(b))
		}
		if err != nil {
			return 0, 0, "", fmt.Errorf("read the term: %w", err)
		}
		if b != nil {
			*n.to = binary.BigEndian.Uint64(b)
		}
	}
	candidate, err := f.value([]byte("LastVoteCand"))
	return term, votedIn, string(candidate), err
}

// bounds are Raft's indexes of what has settled; 0, 0: nothing.
func (f *storedFiles) bounds() (first, last uint64, err error) {
	err = f.guarded(func() error {
		var err2 error
		first, err = f.bolt.FirstIndex()
		last, err2 = f.bolt.LastIndex()
		return errors.Join(err, err2)
	})
	return first, last, err
}

// settled finds an entry in raft.db; raft.ErrLogNotFound: it is not there.
func (f *storedFiles) settled(index uint64) (*raft.Log, error) {
	l := new(raft.Log)
	err := f.guarded(func() error { return f.bolt.GetLog(index, l) })
	switch {
	case errors.Is(err, raft.ErrLogNotFound):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("read entry %d of the log: %w", index, err)
	}
	if err := unseal(l, index); err != nil {
		return nil, fmt.Errorf("log in %s: %w", f.dir, err)
	}
	return l, nil
}

// journal is what the journal has (see Node.openJournal).
func (f *storedFiles) journal() ([]*raft.Log, error) {
	owner, err := f.value(journalOwner)
	if err != nil {
		return nil, fmt.Errorf("read whose journal this is: %w", err)
	}
	if len(owner) == 0 { // nothing can be in it yet
		return nil, nil
	}
	var files [2]*journalFile
	for i := range files {
		path := filepath.Join(f.dir, fmt.Sprintf("raft.journal%d", i))
		file, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%s is not the journal that node %q made: it was lost", path, f.id.ID)
		}
		if err != nil {
			return nil, fmt.Errorf("open journal: %w", err)
		}
		defer file.Close()
		files[i] = &journalFile{f: diskFile{file}, size: journalBytes}
		if mine, err := files[i].claimed(f.id.ID); err != nil || !mine {
			return nil, errors.Join(fmt.Errorf("%s is not the journal that node %q made (it was lost, or exchanged)", path, f.id.ID), err)
		}
	}
	tail, err := replayBoth(files)
	if err != nil {
		return nil, fmt.Errorf("read the journal in %s: %w", f.dir, err)
	}
	return tail, nil
}

// storedSnapshot is a snapshot on the disk; index 0: there is none.
type storedSnapshot struct {
	index, term        uint64 // Raft's index
	base, restoreFloor uint64
	path               string // of the state
}

// newestSnapshot finds what Raft would restore. Raft's own store is of no use
// here: it makes directories and files when it is opened.
func newestSnapshot(dir, clusterID string) (newest storedSnapshot, err error) {
	dir = filepath.Join(dir, "snapshots")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // none before the log is opened for the first time
		return newest, fmt.Errorf("list snapshots: %w", err)
	}
	var sum []byte
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".tmp") { // not finished
			continue
		}
		var meta struct {
			Index, Term uint64
			CRC         []byte
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name(), "meta.json"))
		if err != nil || json.Unmarshal(b, &meta) != nil {
			continue // Raft does not see such a one either
		}
		if cmp.Or(cmp.Compare(meta.Term, newest.term), cmp.Compare(meta.Index, newest.index)) > 0 {
			newest.index, newest.term = meta.Index, meta.Term
			newest.path, sum = filepath.Join(dir, e.Name(), "state.bin"), meta.CRC
		}
	}
	if newest.path == "" {
		return newest, nil
	}
	header, err := checkSnapshot(newest.path, sum, clusterID)
	if err != nil {
		return newest, fmt.Errorf("newest snapshot %s: %w", newest.path, err)
	}
	newest.base, newest.restoreFloor = header.Base, header.RestoreFloor
	return newest, nil
}

// checkSnapshot sees that a snapshot is whole and of the cluster.
func checkSnapshot(path string, sum []byte, clusterID string) (*fsmpb.Header, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := crc64.New(crc64.MakeTable(crc64.ECMA))
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	if string(h.Sum(nil)) != string(sum) {
		return nil, errors.New("it is damaged: its checksum differs")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	header, err := fsm.ReadSnapshotHeader(f)
	if err != nil {
		return nil, err
	}
	if header.ClusterId != "" && header.ClusterId != clusterID {
		return nil, fmt.Errorf("it is of cluster %s, and node.json of %s", header.ClusterId, clusterID)
	}
	return header, nil
}
