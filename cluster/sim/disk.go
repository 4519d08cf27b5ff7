package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

var errCrashed = errors.New("the machine has crashed")

// disk is what outlives a crash of its node: log, votes and snapshots. A write takes
// time, and one that is under way at a crash is lost, whole or from some point on.
type disk struct {
	mu        sync.Mutex // guards what follows
	logs      *raft.InmemStore
	rng       *rand.Rand
	boot      int // counts crashes: what an earlier boot still writes goes nowhere
	each      time.Duration
	hang      chan struct{} // not nil: writes hang
	hung      time.Time     // since when the first of them does
	torn      int           // appends that were under way at a crash
	snapshots []*snapshot   // newest last
	archive   map[uint64]*raft.Log
	former    []map[uint64]*raft.Log // for the judge: what was on it when it was wiped
}

func newDisk(rng *rand.Rand) *disk {
	return &disk{logs: raft.NewInmemStore(), rng: rng, archive: make(map[uint64]*raft.Log)}
}

// crash loses what is under way.
func (d *disk) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.boot++
	d.each = 0
	d.resumeLocked()
}

func (d *disk) slow(each time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.each = each
}

func (d *disk) stall() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hang == nil {
		d.hang, d.hung = make(chan struct{}), time.Time{}
	}
}

// tears is how many appends crashes have caught.
func (d *disk) tears() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.torn
}

// hangs is for how long a write has been hanging.
func (d *disk) hangs() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hang == nil || d.hung.IsZero() {
		return 0
	}
	return time.Since(d.hung)
}

func (d *disk) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resumeLocked()
}

func (d *disk) resumeLocked() {
	if d.hang != nil {
		close(d.hang)
		d.hang = nil
	}
}

// wipe empties the disk of a node that is down.
func (d *disk) wipe() {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, err := d.logs.LastIndex()
	if err != nil {
		panic(err) // a store in memory has none
	}
	if n := len(d.snapshots); n > 0 {
		last = max(last, d.snapshots[n-1].meta.Index)
	}
	d.former = append(d.former, d.kept(last))
	d.logs, d.archive, d.snapshots = raft.NewInmemStore(), make(map[uint64]*raft.Log), nil
}

// mount is the disk as one boot of a node sees it.
func (d *disk) mount() *mounted {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &mounted{d: d, logs: d.logs, boot: d.boot}
}

// mounted is the log and stable store of one boot.
type mounted struct {
	d    *disk
	logs *raft.InmemStore
	boot int
}

// wait is for what a write takes. crashed: and then the machine was gone.
func (m *mounted) wait() (crashed bool) {
	d := m.d
	d.mu.Lock()
	hang, each := d.hang, d.each
	if hang != nil && d.hung.IsZero() {
		d.hung = time.Now()
	}
	each += time.Duration(d.rng.IntN(300)) * time.Microsecond
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	time.Sleep(each)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.boot != m.boot
}

func (m *mounted) StoreLog(l *raft.Log) error { return m.StoreLogs([]*raft.Log{l}) }

func (m *mounted) StoreLogs(ls []*raft.Log) error {
	before := m.live()
	if !m.wait() {
		return m.logs.StoreLogs(ls)
	}
	if before { // it was under way: some of it may have reached the disk
		m.d.mu.Lock()
		m.d.torn++
		n := m.d.rng.IntN(len(ls) + 1)
		latest := m.d.boot == m.boot+1
		m.d.mu.Unlock()
		if latest && n > 0 && m.follows(ls[0]) {
			return errors.Join(m.logs.StoreLogs(ls[:n]), errCrashed)
		}
	}
	return errCrashed
}

// follows says whether an entry is the next one of the log as the disk has it.
func (m *mounted) follows(l *raft.Log) bool {
	last, err := m.logs.LastIndex()
	return err == nil && l.Index == last+1
}

func (m *mounted) live() bool {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	return m.d.boot == m.boot
}

// DeleteRange keeps what compaction deletes, for the judge.
func (m *mounted) DeleteRange(first, last uint64) error {
	if m.wait() {
		return errCrashed
	}
	oldest, err := m.logs.FirstIndex()
	if err != nil {
		return err
	}
	newest, err := m.logs.LastIndex()
	if err != nil {
		return err
	}
	m.d.mu.Lock()
	for i := first; i <= last; i++ {
		delete(m.d.archive, i)
		l := new(raft.Log)
		if first == oldest && last < newest && m.logs.GetLog(i, l) == nil {
			m.d.archive[i] = l
		}
	}
	m.d.mu.Unlock()
	return m.logs.DeleteRange(first, last)
}

func (m *mounted) FirstIndex() (uint64, error)          { return m.logs.FirstIndex() }
func (m *mounted) LastIndex() (uint64, error)           { return m.logs.LastIndex() }
func (m *mounted) GetLog(i uint64, l *raft.Log) error   { return m.logs.GetLog(i, l) }
func (m *mounted) Get(key []byte) ([]byte, error)       { return m.logs.Get(key) }
func (m *mounted) GetUint64(key []byte) (uint64, error) { return m.logs.GetUint64(key) }
func (m *mounted) Set(key, value []byte) error {
	return m.set(func() error { return m.logs.Set(key, value) })
}
func (m *mounted) SetUint64(key []byte, value uint64) error {
	return m.set(func() error { return m.logs.SetUint64(key, value) })
}

// set: Raft panics if a vote cannot be stored, and no longer matters after a crash.
func (m *mounted) set(write func() error) error {
	if m.wait() {
		return nil
	}
	return write()
}

// entries are the logs that the disk has had up to an index.
func (d *disk) entries(upTo uint64) []map[uint64]*raft.Log {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]map[uint64]*raft.Log{d.kept(upTo)}, d.former...)
}

// kept is what compaction deleted, and what is there.
func (d *disk) kept(upTo uint64) map[uint64]*raft.Log {
	all := make(map[uint64]*raft.Log, upTo)
	for i := uint64(1); i <= upTo; i++ {
		l := new(raft.Log)
		if d.logs.GetLog(i, l) == nil {
			all[i] = l
		} else if kept := d.archive[i]; kept != nil {
			all[i] = kept
		}
	}
	return all
}

// snapshot is one that was written whole.
type snapshot struct {
	meta raft.SnapshotMeta
	data []byte
}

// Create begins a snapshot, which is there once it is closed.
func (m *mounted) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	return &sink{m: m, s: &snapshot{meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d", term, index), Index: index, Term: term, Configuration: c, ConfigurationIndex: cIndex,
	}}}, nil
}

func (m *mounted) List() (all []*raft.SnapshotMeta, err error) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	for _, s := range slices.Backward(m.d.snapshots) {
		meta := s.meta
		all = append(all, &meta)
	}
	return all, nil
}

func (m *mounted) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	for _, s := range m.d.snapshots {
		if s.meta.ID == id {
			meta := s.meta
			return &meta, io.NopCloser(bytes.NewReader(s.data)), nil
		}
	}
	return nil, nil, fmt.Errorf("no snapshot %s", id)
}

type sink struct {
	m *mounted
	s *snapshot
}

func (k *sink) ID() string    { return k.s.meta.ID }
func (k *sink) Cancel() error { return nil }

func (k *sink) Write(p []byte) (int, error) {
	k.s.data = append(k.s.data, p...)
	return len(p), nil
}

func (k *sink) Close() error {
	if k.m.wait() {
		return errCrashed
	}
	d := k.m.d
	d.mu.Lock()
	defer d.mu.Unlock()
	k.s.meta.Size = int64(len(k.s.data))
	d.snapshots = append(slices.DeleteFunc(d.snapshots, func(s *snapshot) bool { return s.meta.ID == k.s.meta.ID }), k.s)
	if len(d.snapshots) > 2 {
		d.snapshots = d.snapshots[1:]
	}
	return nil
}
