package cluster

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// journalBytes is the size of each of the two files.
	journalBytes = 8 << 20
	// settleStep bounds one transaction of the store behind, which a vote may
	// have to wait for.
	settleStep = 4096
)

// journal is a log store in front of another one. What is appended is durable
// once it is in the journal: one write and one flush, where a bbolt transaction
// takes two flushes, one after the other, and several times the CPU. When a
// journal file is full its entries settle in the store behind, many in one
// transaction, while the other file goes on taking new ones.
//
// The store behind and the tail are the log together; the tail is its newer part,
// without a gap in itself, and every entry of it is in a journal file. While
// nothing settles, the files have no other valid entries: so what is deleted in
// the store behind cannot come back from them after a crash.
//
// All methods may be called from any goroutine; they must not be called after
// close.
type journal struct {
	behind raft.LogStore
	fatal  func(why string)      // a write to a file has failed: what the disk has is not known
	took   func(seconds float64) // each append; nil: nobody asks
	moved  func()                // each step of a settlement, which an append may wait for; nil: nobody asks

	write    sync.Mutex // guards what follows: one append, deletion or change of files at a time
	files    [2]*journalFile
	active   int // which one takes new entries; the other is empty, or settles
	settling *settlement

	mu   sync.RWMutex // guards what follows
	tail []*raft.Log
	last uint64 // index in the store behind
}

// settlement is the way of the oldest entries of the tail, which fill a file,
// into the store behind.
type settlement struct {
	file       *journalFile
	generation uint64 // of the file once it is empty again
	count      int    // how many are still in the tail
	done       chan struct{}
	err        error // to be read once done is closed
}

// openJournal goes on with what the files have: all of it settles first.
func openJournal(files [2]*journalFile, behind raft.LogStore, fatal func(string)) (*journal, error) {
	j := &journal{behind: behind, fatal: fatal, files: files}
	var err error
	if j.tail, err = replayBoth(files); err != nil {
		return nil, err
	}
	if _, err := j.settle(len(j.tail)); err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := f.begin(newGeneration()); err != nil {
			return nil, err
		}
	}
	return j, j.lookBehind()
}

// replayBoth is what the two files have, in index order, without a gap.
func replayBoth(files [2]*journalFile) ([]*raft.Log, error) {
	var logs [2][]*raft.Log
	for i, f := range files {
		var err error
		if logs[i], err = f.replay(); err != nil {
			return nil, err
		}
	}
	if len(logs[0]) > 0 && len(logs[1]) > 0 && logs[0][0].Index > logs[1][0].Index {
		logs[0], logs[1] = logs[1], logs[0]
	}
	tail := append(logs[0], logs[1]...)
	for i, l := range tail {
		if l.Index != tail[0].Index+uint64(i) {
			return nil, fmt.Errorf("%w: entry %d follows entry %d", errDamaged, l.Index, tail[i-1].Index)
		}
	}
	return tail, nil
}

// newGeneration names a generation so that nobody can tell it beforehand. What
// clients write is left behind in the files, page by page, and may look like
// records: with a generation that could be guessed they would be read as such.
func newGeneration() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// StoreLogs makes the entries durable. The caller must not change them.
func (j *journal) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	if j.took != nil {
		began := time.Now()
		defer func() { j.took(time.Since(began).Seconds()) }()
	}
	j.write.Lock()
	defer j.write.Unlock()
	if !j.follows(logs) {
		if err := j.drain(); err != nil {
			return err
		}
	}
	fits := false
	if j.follows(logs) {
		var err error
		if fits, err = j.append(logs); err != nil {
			return err
		}
	}
	if !fits { // more than a whole file, or entries that replace others
		if err := j.drain(); err != nil {
			return err
		}
		return errors.Join(j.behind.StoreLogs(logs), j.lookBehind())
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range logs {
		own := *l // l is part of what its proposer waits for, answer and all
		j.tail = append(j.tail, &own)
	}
	return nil
}

func (j *journal) StoreLog(l *raft.Log) error { return j.StoreLogs([]*raft.Log{l}) }

// follows says whether the entries go on where the tail ends.
func (j *journal) follows(logs []*raft.Log) bool {
	for i, l := range logs {
		if l.Index != logs[0].Index+uint64(i) {
			return false
		}
	}
	j.mu.RLock()
	defer j.mu.RUnlock()
	if n := len(j.tail); n > 0 {
		return logs[0].Index == j.tail[n-1].Index+1
	}
	return logs[0].Index > j.last
}

// logBytes is the most that a record needs for an entry beside its data.
const logBytes = 64

// hasRoom says that the entries go into the active file and nothing has to settle
// first, which could find the disk full.
func (j *journal) hasRoom(logs []*raft.Log) bool {
	j.write.Lock()
	defer j.write.Unlock()
	bytes := recordHeadSize
	for _, l := range logs {
		bytes += len(l.Data) + len(l.Extensions) + logBytes
	}
	f := j.files[j.active]
	return j.follows(logs) && f.at+padded(bytes) <= f.size
}

// append writes the entries to the active file, or if that is full to the other.
func (j *journal) append(logs []*raft.Log) (fits bool, err error) {
	for range j.files {
		if fits, err = j.files[j.active].append(logs); err != nil {
			j.fatal("the journal cannot be written: " + err.Error())
			return false, err
		}
		if fits {
			return true, nil
		}
		if err := j.change(); err != nil {
			return false, err
		}
	}
	return false, nil
}

// change goes on with the other file, once it is empty, and lets what is in this
// one settle.
func (j *journal) change() error {
	if err := j.settled(); err != nil {
		return err
	}
	s := &settlement{file: j.files[j.active], generation: newGeneration(), count: len(j.tail), done: make(chan struct{})}
	j.active, j.settling = 1-j.active, s
	go func() {
		defer close(s.done)
		s.err = j.finish(s)
	}()
	return nil
}

// finish lets the entries settle, and then makes their file empty.
func (j *journal) finish(s *settlement) (err error) {
	if s.count, err = j.settle(s.count); err != nil {
		return err
	}
	if err := s.file.begin(s.generation); err != nil {
		j.fatal("the journal cannot be written: " + err.Error())
		return err
	}
	return nil
}

// settled waits until nothing settles. What failed before, on a full disk
// perhaps, is tried once more.
func (j *journal) settled() error {
	s := j.settling
	if s == nil {
		return nil
	}
	<-s.done
	if s.err != nil {
		if s.err = j.finish(s); s.err != nil {
			return s.err
		}
	}
	j.settling = nil
	return nil
}

// settle moves the oldest entries of the tail into the store behind, and says
// how many of them are left after an error.
func (j *journal) settle(count int) (left int, err error) {
	for count > 0 {
		j.mu.RLock()
		step := j.tail[:min(count, settleStep)]
		j.mu.RUnlock()
		if err := j.behind.StoreLogs(step); err != nil {
			return count, err
		}
		j.mu.Lock()
		j.last = step[len(step)-1].Index
		j.tail = j.tail[len(step):]
		clear(step) // the memory that they hold
		j.mu.Unlock()
		count -= len(step)
		if j.moved != nil {
			j.moved()
		}
	}
	return 0, nil
}

// drain lets everything settle.
func (j *journal) drain() error {
	if err := j.settled(); err != nil {
		return err
	}
	if len(j.tail) == 0 {
		return nil
	}
	return j.finish(&settlement{file: j.files[j.active], generation: newGeneration(), count: len(j.tail)})
}

// DeleteRange deletes entries, both ends included.
//
// From the front of the log, which is compaction, it deletes what has settled, and
// leaves the rest for another time: nobody needs it gone, and appends need not wait.
// A crash may bring some of that back, without a gap. At the end of the log, where
// entries give way to others, all settles first: a file that had them could bring
// them back.
func (j *journal) DeleteRange(first, last uint64) error {
	if end, ok := j.settledBefore(last); ok {
		if first > end {
			return nil
		}
		return j.behind.DeleteRange(first, end)
	}
	j.write.Lock()
	defer j.write.Unlock()
	if err := j.settled(); err != nil {
		return err
	}
	if len(j.tail) > 0 && last >= j.tail[0].Index {
		if err := j.drain(); err != nil {
			return err
		}
	}
	return errors.Join(j.behind.DeleteRange(first, last), j.lookBehind())
}

// settledBefore is how far a deletion up to last can go without touching the tail;
// false: it reaches the end of the log.
func (j *journal) settledBefore(last uint64) (end uint64, ok bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	n := len(j.tail)
	if n == 0 || last >= j.tail[n-1].Index {
		return 0, false
	}
	return min(last, j.tail[0].Index-1), true
}

func (j *journal) lookBehind() error {
	last, err := j.behind.LastIndex()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last = last
	return err
}

// GetLog finds an entry; what it gives must not be changed.
func (j *journal) GetLog(index uint64, log *raft.Log) error {
	j.mu.RLock()
	if n := len(j.tail); n > 0 && index >= j.tail[0].Index && index-j.tail[0].Index < uint64(n) {
		*log = *j.tail[index-j.tail[0].Index]
		j.mu.RUnlock()
		return nil
	}
	j.mu.RUnlock()
	return j.behind.GetLog(index, log)
}

// FirstIndex is 0 for an empty log.
func (j *journal) FirstIndex() (uint64, error) {
	j.mu.RLock()
	defer j.mu.RUnlock() // so that nothing settles in between
	if first, err := j.behind.FirstIndex(); err != nil || first != 0 || len(j.tail) == 0 {
		return first, err
	}
	return j.tail[0].Index, nil
}

// LastIndex is 0 for an empty log.
func (j *journal) LastIndex() (uint64, error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if n := len(j.tail); n > 0 {
		return j.tail[n-1].Index, nil
	}
	return j.last, nil
}

// close lets everything settle and closes the files, not the store behind.
func (j *journal) close() error {
	j.write.Lock()
	defer j.write.Unlock()
	err := j.drain()
	for _, f := range j.files {
		err = errors.Join(err, f.f.Close())
	}
	return err
}
