package cluster

import (
	"errors"
	"fmt"
	"os"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// journalOwner is the key in the stable store that says that there is a journal,
// which the log is not whole without.
var journalOwner = []byte("fencepost-journal")

// diskFile is a file of which only the data matters.
type diskFile struct{ *os.File }

func (f diskFile) Sync() error { return dataSync(f.File) }

// openJournal opens the node's journal in front of its log store. One that was
// lost or is another node's is refused, as a log is: acknowledged entries may
// have been in it (P9).
func (n *Node) openJournal(logs raft.LogStore, stable raft.StableStore) (j *journal, err error) {
	id := n.identity().ID
	owner, err := stable.Get(journalOwner)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, fmt.Errorf("read whose journal this is: %w", err)
	}
	var files [2]*journalFile
	defer func() {
		if err == nil {
			return
		}
		for _, f := range files {
			if f != nil {
				f.f.Close()
			}
		}
	}()
	for i := range files {
		path := n.dir.file(fmt.Sprintf("raft.journal%d", i))
		if len(owner) == 0 { // nothing can be in it yet
			if err := makeJournalFile(path, id); err != nil {
				return nil, fmt.Errorf("make journal: %w", err)
			}
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("open journal: %w", err)
		}
		mine := false
		if err == nil {
			files[i] = &journalFile{f: diskFile{f}, size: journalBytes}
			mine, err = files[i].claimed(id)
		}
		if mine { // and all of it: what was cut off had entries
			var info os.FileInfo
			info, err = f.Stat()
			mine = err == nil && info.Size() == journalBytes
		}
		if !mine {
			return nil, errors.Join(fmt.Errorf("%s is not the journal that node %q made (it was lost, exchanged or cut short): "+
				"wipe the data directory, and the node joins again as a new member", path, id), err)
		}
	}
	if len(owner) == 0 {
		if err := syncDir(n.dir.path); err != nil {
			return nil, fmt.Errorf("make journal: %w", err)
		}
		if err := stable.Set(journalOwner, []byte(id)); err != nil {
			return nil, fmt.Errorf("mark the journal: %w", err)
		}
	}
	j, err = openJournal(files, logs, func(why string) { n.disk.end("the log cannot be written", errors.New(why)) })
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j.took = n.metrics.append.Observe
	return j, nil
}

// makeJournalFile writes all blocks of a file, so that no write to it has to
// wait for the file system's own journal, or can find the disk full.
func makeJournalFile(path, id string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < journalBytes; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros, at); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	j := &journalFile{f: diskFile{f}, size: journalBytes}
	return errors.Join(j.claim(id), f.Sync(), f.Close())
}
