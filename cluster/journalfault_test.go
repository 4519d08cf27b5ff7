package cluster

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"weak"

	"github.com/hashicorp/raft"
)

// nthFails is a store behind whose transaction number n finds the disk full.
type nthFails struct {
	raft.LogStore
	mu sync.Mutex // guards what follows
	n  int
}

func (s *nthFails) StoreLogs(logs []*raft.Log) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n--; s.n == 0 {
		return errors.New("no space left on device")
	}
	return s.LogStore.StoreLogs(logs)
}

func manyEntries(first uint64, n int, term uint64) (logs []*raft.Log) {
	for i := range n {
		logs = append(logs, &raft.Log{Index: first + uint64(i), Term: term, Data: []byte("a")})
	}
	return logs
}

// The second transaction of a settlement finds the disk full; then there is room again.
func TestJournalGoesOnWithASettlementThatWasHalfDone(t *testing.T) {
	b := newJournalBench(t)
	full := &nthFails{LogStore: b.behind.InmemStore, n: 2}
	b.j.behind = full
	next := uint64(1)
	put := func(n int) {
		t.Helper()
		logs := manyEntries(next, n, 1)
		if err := b.j.StoreLogs(logs); err != nil {
			t.Fatalf("entries %d..: %v", next, err)
		}
		next += uint64(n)
	}
	put(settleStep + 500) // about 9 pages of 12: fills file 0
	put(10)
	for b.j.settling == nil { // until file 0 is full
		put(10)
	}
	<-b.j.settling.done
	for range 12 { // and file 1 as well: the settlement is tried again
		put(10)
	}
	for i := uint64(1); i < next; i++ {
		if err := b.j.GetLog(i, new(raft.Log)); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
}

// The same, and then a new leader's entries replace a suffix, and power is cut.
func TestP9_AHalfDoneSettlementThenATruncationAndACut(t *testing.T) {
	b := newJournalBench(t)
	full := &nthFails{LogStore: b.behind.InmemStore, n: 2}
	b.j.behind = full
	next := uint64(1)
	put := func(n int, term uint64) {
		t.Helper()
		if err := b.j.StoreLogs(manyEntries(next, n, term)); err != nil {
			t.Fatalf("entries %d..: %v", next, err)
		}
		next += uint64(n)
	}
	put(settleStep+500, 1) // file 0
	for b.j.settling == nil {
		put(10, 1)
	}
	<-b.j.settling.done
	if b.j.settling.err == nil {
		t.Fatal("it settled")
	}
	// File 1 takes as many entries as the first transaction has moved already.
	for put(settleStep-10, 1); ; {
		b.j.mu.RLock()
		n := len(b.j.tail)
		b.j.mu.RUnlock()
		if n >= b.j.settling.count {
			break
		}
		put(b.j.settling.count-n, 1)
	}
	// A deletion (of anything) tries the settlement again.
	if err := b.j.DeleteRange(1, 5); err != nil {
		t.Fatal(err)
	}
	// A new leader replaces the last 50 entries.
	if err := b.j.DeleteRange(next-50, next-1); err != nil {
		t.Fatal(err)
	}
	next -= 50
	put(20, 2)
	for _, d := range b.disks {
		d.restore(func() bool { return false })
	}
	if err := b.open(); err != nil {
		t.Fatalf("after a cut, with every write acknowledged: %v", err)
	}
	var l raft.Log
	if err := b.j.GetLog(next-1, &l); err != nil || l.Term != 2 {
		t.Fatalf("entry %d: %v, term %d", next-1, err, l.Term)
	}
	if last, _ := b.j.LastIndex(); last != next-1 {
		t.Fatalf("last entry %d, want %d", last, next-1)
	}
}

// Damage in the first record must not make all that follow it void.
func TestP9_DamageInTheFirstRecordIsRefused(t *testing.T) {
	b := newJournalBench(t)
	for i := range uint64(4) {
		if err := b.j.StoreLogs(logEntries(i+1, []int{100}, 'a')); err != nil {
			t.Fatal(err)
		}
	}
	b.disks[b.j.active].pending[journalPage+10] ^= 1
	if err := b.open(); err == nil {
		last, _ := b.j.LastIndex()
		t.Errorf("opened, with entries up to %d of 4 that were acknowledged", last)
	} else if !errors.Is(err, errDamaged) {
		t.Error(err)
	}
}

// A file that was cut short has lost what was acknowledged.
func TestP9_AJournalFileThatIsShortIsRefused(t *testing.T) {
	dir := t.TempDir()
	n := newNode(DefaultConfig())
	n.dir, n.id = &dataDir{path: dir}, identity{ID: "n-1"}
	n.cfg.Exit = func(why string) { t.Error(why) }
	logs, stable := raft.NewInmemStore(), raft.NewInmemStore()
	open := func() (*journal, error) { return n.openJournal(logs, stableOf{stable}) }
	j, err := open()
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(20) {
		if err := j.StoreLogs(manyEntries(i+1, 1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, "raft.journal0"), 10*journalPage); err != nil { // not closed: a crash
		t.Fatal(err)
	}
	j, err = open()
	if err == nil {
		last, _ := j.LastIndex()
		t.Errorf("opened, with entries up to %d of 20 that were acknowledged", last)
	}
}

type stableOf struct{ *raft.InmemStore }

func (s stableOf) Get(k []byte) ([]byte, error) {
	v, err := s.InmemStore.Get(k)
	if err != nil {
		return nil, nil
	}
	return v, nil
}

// forgedRecord is what a client can put into a value: a record of the journal.
func forgedRecord(generation uint64, number uint32, logs []*raft.Log) []byte {
	b := make([]byte, recordHeadSize)
	for _, l := range logs {
		b = appendLog(b, l)
	}
	binary.LittleEndian.PutUint32(b, recordMagic)
	binary.LittleEndian.PutUint64(b[8:], generation)
	binary.LittleEndian.PutUint32(b[16:], number)
	binary.LittleEndian.PutUint64(b[20:], uint64(len(b)-recordHeadSize))
	binary.LittleEndian.PutUint32(b[4:], checksum(b[recordSumFrom:]))
	return b
}

// A client's value that looks like records of a later generation is left behind
// in a file; when that generation comes and power is cut, it must not be read.
func TestP9_AValueThatLooksLikeARecord(t *testing.T) {
	for _, what := range []string{"injected", "refused"} {
		t.Run(what, func(t *testing.T) {
			b := newJournalBench(t)
			put := func(l *raft.Log) {
				t.Helper()
				if err := b.j.StoreLogs([]*raft.Log{l}); err != nil {
					t.Fatal(err)
				}
			}
			gen := b.j.files[b.j.active].generation
			// The value: each page of it, wherever it begins in the record, has a
			// record of the generation that this file will have next time.
			head := recordHeadSize + len(appendLog(nil, &raft.Log{Index: 1, Term: 1, Data: make([]byte, 7*journalPage)})) - 7*journalPage - 1 // no extensions
			value := make([]byte, 7*journalPage)
			for p := 1; p <= 6; p++ { // page 2+p of the file
				number, logs := uint32(1<<30), []*raft.Log(nil)
				if what == "injected" {
					number = uint32(1 + p) // the one after records 0..p, a page each
					// Entries as of the log's next place; the file's first pages have had one each.
					logs = []*raft.Log{{Index: uint64(2 + p + 1), Term: 1, Type: raft.LogConfiguration, Data: []byte("FORGED")}}
				}
				copy(value[p*journalPage-head:], forgedRecord(gen+2, number, logs))
			}
			put(&raft.Log{Index: 1, Term: 1, Data: value})                            // pages 2.. of file 0
			put(&raft.Log{Index: 2, Term: 1, Data: make([]byte, 9*journalPage+1000)}) // all of file 1
			put(&raft.Log{Index: 3, Term: 1, Data: []byte("small")})                  // file 0 again
			next := uint64(4)
			for ; next < 6; next++ {
				put(&raft.Log{Index: next, Term: 1, Data: []byte("small")})
			}
			if b.j.settling != nil {
				<-b.j.settling.done
			}
			for _, d := range b.disks {
				d.restore(func() bool { return false })
			}
			if err := b.open(); err != nil {
				t.Fatalf("after a cut: %v", err)
			}
			var l raft.Log
			gerr := b.j.GetLog(next, &l)
			last, _ := b.j.LastIndex()
			if last != next-1 {
				t.Errorf("after a cut: last entry %d, want %d; entry %d: %v %s %q", last, next-1, next, gerr, l.Type, l.Data)
			}
		})
	}
}

// What the journal keeps of an entry is not what its proposer waits with: that has
// the answer, too, which may be many times as large.
func TestJournalDoesNotKeepWhatProposersHave(t *testing.T) {
	b := newJournalBench(t)
	type future struct { // as in package raft
		log      raft.Log
		response []byte
	}
	var answers []weak.Pointer[[]byte]
	for i := range uint64(4) {
		f := &future{log: raft.Log{Index: i + 1, Term: 1, Data: []byte("x")}}
		if err := b.j.StoreLogs([]*raft.Log{&f.log}); err != nil {
			t.Fatal(err)
		}
		f.response = make([]byte, 1<<20)
		answers = append(answers, weak.Make(&f.response))
	}
	runtime.GC()
	for i, a := range answers {
		if a.Value() != nil {
			t.Errorf("entry %d keeps its answer", i+1)
		}
	}
	if err := b.j.GetLog(4, new(raft.Log)); err != nil || len(b.j.tail) != 4 {
		t.Fatalf("%d entries in the tail, %v", len(b.j.tail), err)
	}
}
