package cluster

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// machine is the state machine as Raft drives it. Apply, Snapshot and Restore
// are called by Raft's state machine goroutine alone; view by anybody.
type machine struct {
	mu    sync.RWMutex // guards state: Apply and Restore write, readers read
	state *fsm.State

	// committed is called after each entry, with its term and what it decided,
	// outside of mu, and before anybody is told of the entry.
	committed func(term uint64, decided []fsm.Decision)
	// durable waits until an entry is in this node's own log.
	durable func(index uint64) error
	// broken ends the node: the entry could not be applied, and going on would
	// be divergence.
	broken func(error)
	failed atomic.Bool

	// wake has a buffer of one and says that the next expiry is earlier than
	// the leader's timer knows, or that the clock has to be kept moving again.
	wake        chan struct{}
	nextExpiry  uint64 // as of the last Apply; only Apply uses it
	hasDeadline bool   // the same

	entries atomic.Uint64 // applied since the node started
	bytes   atomic.Uint64

	restored atomic.Uint64 // snapshots, since the node started

	digests digestRing
	feed    *Feed // the events, for watchers

	// What every request looks at, readable without the lock.
	index atomic.Uint64                 // public, of the last entry applied
	nodes atomic.Pointer[[]*fsmpb.Node] // the members in name order
}

// applied is what Apply answers to the proposer.
type applied struct {
	outcome *fsmpb.Outcome
	index   uint64         // public, of the entry
	decided []fsm.Decision // of requests that had waited
}

func newMachine(committed func(uint64, []fsm.Decision), broken func(error), feed *Feed) *machine {
	return &machine{
		state: fsm.New(), committed: committed, broken: broken, feed: feed,
		durable: func(uint64) error { return nil },
		wake:    make(chan struct{}, 1), nextExpiry: math.MaxUint64,
	}
}

func (m *machine) Apply(l *raft.Log) any {
	if l.Type != raft.LogCommand || m.failed.Load() {
		return nil
	}
	if m.durable(l.Index) != nil {
		m.failed.Store(true) // the process ends
		return nil
	}
	a, err := m.apply(l)
	if err != nil {
		m.failed.Store(true)
		m.broken(fmt.Errorf("entry %d of the log cannot be applied: %w", l.Index, err))
		return nil
	}
	m.entries.Add(1)
	m.bytes.Add(uint64(len(l.Data)))
	m.committed(l.Term, a.decided)
	return a
}

func (m *machine) apply(l *raft.Log) (applied, error) {
	c, err := fsm.Decode(l.Data)
	if err != nil {
		return applied{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	index := m.state.PublicIndex(l.Index)
	if tick := c.GetTick(); tick != nil {
		if err := m.digests.compare(tick); err != nil {
			return applied{}, err
		}
	}
	o, events, err := m.state.Apply(index, l.Term, c)
	if err != nil {
		return applied{}, err
	}
	index = m.state.Index() // a restore jumps
	m.digests.add(index, m.state.Digest())
	m.noteDeadlines()
	m.index.Store(index)
	m.feed.Append(index, events)
	if c.GetSetNode() != nil || c.GetRemoveNode() != nil {
		m.noteNodes()
	}
	return applied{o, index, decisions(events)}, nil
}

// decisions are those that events made about requests which had waited.
func decisions(events []fsm.Event) (ds []fsm.Decision) {
	for i := range events {
		if d := events[i].Decided; d != nil {
			ds = append(ds, *d)
		}
	}
	return ds
}

func (m *machine) noteNodes() {
	nodes := m.state.Nodes()
	m.nodes.Store(&nodes)
}

// members are the nodes of the cluster as last recorded, in name order.
func (m *machine) members() []*fsmpb.Node {
	if p := m.nodes.Load(); p != nil {
		return *p
	}
	return nil
}

// noteDeadlines wakes the leader's timer if a lease now ends earlier than before,
// or if this is the first deadline after a time without any.
func (m *machine) noteDeadlines() {
	next, ok := m.state.NextExpiryMS()
	if !ok {
		next = math.MaxUint64
	}
	has := m.state.HasDeadline()
	if next < m.nextExpiry || has && !m.hasDeadline {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	m.nextExpiry, m.hasDeadline = next, has
}

// view runs see on the state. see must not block, nor keep the state.
func (m *machine) view(see func(*fsm.State)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	see(m.state)
}

// Snapshot is quick: the state is copied on write (see package fsm).
//
// There is none once an entry could not be applied: Raft would note that entry as
// part of it, and a restart would go on behind it.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if m.failed.Load() {
		return nil, errors.New("an entry could not be applied")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return persisted{m.state.Snapshot()}, nil
}

func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	s, err := fsm.ReadSnapshot(r)
	if errors.Is(err, fsm.ErrUnknown) { // Raft would try again for ever, or an older one
		m.failed.Store(true)
		m.broken(fmt.Errorf("a snapshot cannot be used: %w", err))
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = s
	m.digests = digestRing{}
	m.nextExpiry, m.hasDeadline = math.MaxUint64, false
	m.noteDeadlines()
	m.index.Store(s.Index())
	m.feed.Reset(s.Index())
	m.noteNodes()
	m.restored.Add(1)
	return nil
}

// persisted writes a snapshot into Raft's sink, while entries go on applying.
type persisted struct{ snapshot *fsm.Snapshot }

func (p persisted) Persist(sink raft.SnapshotSink) error {
	if _, err := p.snapshot.WriteTo(sink); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

func (p persisted) Release() {}

// digestRing keeps this node's digests of the last entries, to compare with
// what the leader's Ticks say of theirs (P14). The machine's mutex guards it.
type digestRing struct {
	digests [1 << 16]struct{ index, digest uint64 }
}

func (r *digestRing) add(index, digest uint64) {
	d := &r.digests[index%uint64(len(r.digests))]
	d.index, d.digest = index, digest
}

func (r *digestRing) last(index uint64) (digest uint64, ok bool) {
	d := r.digests[index%uint64(len(r.digests))]
	return d.digest, index != 0 && d.index == index
}

// errDiverged wraps what a replica says that differs from its leader.
type errDiverged struct{ index, own, leader uint64 }

func (e errDiverged) Error() string {
	return fmt.Sprintf("this replica differs from the leader's: the digest at index %d is %016x here and %016x there", e.index, e.own, e.leader)
}

func (r *digestRing) compare(t *fsmpb.Tick) error {
	if t.DigestVersion != fsm.DigestVersion {
		return nil
	}
	if own, ok := r.last(t.DigestIndex); ok && own != t.Digest {
		return errDiverged{t.DigestIndex, own, t.Digest}
	}
	return nil
}
