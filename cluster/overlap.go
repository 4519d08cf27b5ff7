package cluster

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// overlap lets a leader's followers write an entry while the leader's own disk still
// does. Raft writes first and sends then; here an append by a leader returns at once,
// the write goes on beside it, and Raft counts the entry as this node's own too early.
// Four things make that good, each of which the safety of Raft needs:
//
//   - The state machine waits for the write before it applies an entry (durable), so
//     nobody is answered, and no reader or watcher sees it, before.
//   - Followers are told of no commit beyond what is written here (told).
//   - The next append waits for the write, so only one is under way; so does a change
//     of the term, so in another term this node never vouches for what it may yet
//     lose, and what others append to its log is written before it answers.
//   - Only commands go this way, in the term that this node has proved to lead.
//     A change of the configuration has effects of its own once it counts as committed.
//
// A write that fails after Raft went on cannot be taken back: it ends the process.
// So an append that may find the disk full is waited for.
type overlap struct {
	raft.LogStore
	raft.StableStore
	hasRoom func([]*raft.Log) bool // the write can fail only if the disk does
	exit    func(why string)

	turn sync.Mutex // held while the term changes, and while a heartbeat is handled (see oneVoice)

	mu    sync.RWMutex // guards what follows
	term  uint64       // that is stored
	led   uint64       // the term in which this node leads; 0: none
	under *write       // under way, or failed; nil: none
}

// write is an append that Raft no longer waits for.
type write struct {
	logs []*raft.Log // in index order, without a gap
	done chan struct{}
	err  error // to be read once done is closed
}

func (w *write) first() uint64 { return w.logs[0].Index }
func (w *write) last() uint64  { return w.logs[len(w.logs)-1].Index }

func newOverlap(logs raft.LogStore, stable raft.StableStore, hasRoom func([]*raft.Log) bool, exit func(string)) *overlap {
	term, _ := stable.GetUint64([]byte(currentTerm)) // 0: not yet
	return &overlap{LogStore: logs, StableStore: stable, hasRoom: hasRoom, exit: exit, term: term}
}

// lead tells that this node leads in a term, and is ready in it. It may be called
// late, from any goroutine.
func (o *overlap) lead(term uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if term == o.term {
		o.led = term
	}
}

// StoreLogs is called by Raft's main goroutine alone.
func (o *overlap) StoreLogs(logs []*raft.Log) error {
	if err := o.written(); err != nil {
		return err
	}
	if !o.leads(logs) || !o.hasRoom(logs) {
		err := o.LogStore.StoreLogs(logs)
		if err != nil && slices.ContainsFunc(logs, func(l *raft.Log) bool { return l.Type == raft.LogConfiguration }) {
			// Raft would go on with it in memory, though it is in no log.
			o.exit("a change of the members cannot be written: " + err.Error())
		}
		return err
	}
	w := &write{logs: make([]*raft.Log, len(logs)), done: make(chan struct{})}
	for i, l := range logs {
		own := *l // l is part of what its proposer waits for
		w.logs[i] = &own
	}
	o.mu.Lock()
	o.under = w
	o.mu.Unlock()
	go o.write(w)
	return nil
}

func (o *overlap) StoreLog(l *raft.Log) error { return o.StoreLogs([]*raft.Log{l}) }

func (o *overlap) write(w *write) {
	if w.err = o.LogStore.StoreLogs(w.logs); w.err != nil {
		o.exit("the log cannot be written: " + w.err.Error())
		close(w.done) // stays under way: it is in no log, and Raft believes that it is
		return
	}
	o.mu.Lock()
	o.under = nil
	o.mu.Unlock()
	close(w.done)
}

// leads says whether these are commands of the term that this node leads.
func (o *overlap) leads(logs []*raft.Log) bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for _, l := range logs {
		if l.Type != raft.LogCommand || l.Term != o.led {
			return false
		}
	}
	return len(logs) > 0
}

// written waits until nothing is under way.
func (o *overlap) written() error { return o.durable(math.MaxUint64) }

// durable waits until the entry is written, if it is under way. An error means that
// it never will be.
func (o *overlap) durable(index uint64) error {
	o.mu.RLock()
	w := o.under
	o.mu.RUnlock()
	if w == nil || index < w.first() {
		return nil
	}
	<-w.done
	if w.err != nil {
		return fmt.Errorf("entry %d is not in this node's log: %w", w.first(), w.err)
	}
	return nil
}

// committable is the last index that others may be told to be committed.
func (o *overlap) committable() uint64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.under == nil {
		return math.MaxUint64
	}
	return o.under.first() - 1
}

// SetUint64 begins a term or votes in one: only once this node's log is what Raft takes
// it for. (After a failed write the process is about to end, and there is nothing left
// to wait for.) Raft's main goroutine calls it, and with the term that is stored
// already a heartbeat may.
func (o *overlap) SetUint64(key []byte, value uint64) error {
	_ = o.written()
	term := string(key) == currentTerm
	if term && value == o.stored() {
		return nil
	}
	if term {
		o.turn.Lock()
		defer o.turn.Unlock()
	}
	o.mu.Lock()
	o.led = 0
	if term {
		o.term = value
	}
	o.mu.Unlock()
	return o.StableStore.SetUint64(key, value)
}

// DeleteRange waits if it is to delete what is under way. Compaction, which runs
// beside appends, never is.
func (o *overlap) DeleteRange(first, last uint64) error {
	if err := o.durable(last); err != nil {
		return err
	}
	return o.LogStore.DeleteRange(first, last)
}

func (o *overlap) GetLog(index uint64, log *raft.Log) error {
	o.mu.RLock()
	if w := o.under; w != nil && w.first() <= index && index <= w.last() {
		*log = *w.logs[index-w.first()]
		o.mu.RUnlock()
		return nil
	}
	o.mu.RUnlock()
	return o.LogStore.GetLog(index, log)
}

func (o *overlap) FirstIndex() (uint64, error) {
	o.mu.RLock()
	defer o.mu.RUnlock() // so that what is under way is in one place
	if first, err := o.LogStore.FirstIndex(); err != nil || first != 0 || o.under == nil {
		return first, err
	}
	return o.under.first(), nil
}

func (o *overlap) LastIndex() (uint64, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.under != nil {
		return o.under.last(), nil
	}
	return o.LogStore.LastIndex()
}

// transport is what Raft needs of one here.
type transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// told is a transport that tells nobody of a commit beyond this node's own disk.
type told struct {
	transport
	committable func() uint64
}

func (t told) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if most := t.committable(); args.LeaderCommitIndex > most {
		bounded := *args
		bounded.LeaderCommitIndex = most
		args = &bounded
	}
	return t.transport.AppendEntries(id, to, args, resp)
}
