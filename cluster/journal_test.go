package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

var errCut = errors.New("the power is cut")

// power is what files and stores run on. It is cut after so many writes, syncs
// and transactions, and then nothing works any more.
type power struct {
	mu   sync.Mutex // guards left, and all that runs on it
	left int        // -1: for ever
}

// cut makes the power last for so many uses; -1: for ever.
func (p *power) cut(after int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = after
}

func (p *power) gone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left == 0
}

func (p *power) use() error {
	switch {
	case p.left == 0:
		return errCut
	case p.left > 0:
		p.left--
	}
	return nil
}

// cutFile is a file whose writes are on the disk only once it is synced. What a
// cut finds unsynced is there or not, page by page.
type cutFile struct {
	*power
	disk    []byte
	pending []byte
	dirty   map[int]bool // pages
}

func newCutFile(p *power, size int) *cutFile {
	return &cutFile{power: p, disk: make([]byte, size), pending: make([]byte, size), dirty: map[int]bool{}}
}

func (f *cutFile) ReadAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return copy(b, f.pending[at:]), nil
}

func (f *cutFile) WriteAt(b []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cut := f.use()
	copy(f.pending[at:], b) // a cut may come when all of it, some of it, or none is on the way
	for page := int(at) / journalPage; page*journalPage < int(at)+len(b); page++ {
		f.dirty[page] = true
	}
	if cut != nil {
		return 0, cut
	}
	return len(b), nil
}

func (f *cutFile) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.use(); err != nil {
		return err
	}
	copy(f.disk, f.pending)
	clear(f.dirty)
	return nil
}

func (f *cutFile) Close() error { return nil }

// restore is the disk after the cut: of what was not synced, keep decides.
func (f *cutFile) restore(keep func() bool) {
	for page := range len(f.disk) / journalPage {
		at, end := page*journalPage, (page+1)*journalPage
		if f.dirty[page] && keep() {
			copy(f.disk[at:end], f.pending[at:end])
		}
	}
	copy(f.pending, f.disk)
	clear(f.dirty)
}

// cutStore is a store whose transactions are done or not.
type cutStore struct {
	*power
	*raft.InmemStore
}

func (s *cutStore) StoreLogs(logs []*raft.Log) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.use(); err != nil {
		return err
	}
	return s.InmemStore.StoreLogs(logs)
}

func (s *cutStore) DeleteRange(first, last uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.use(); err != nil {
		return err
	}
	// Only what is there, or the store in memory gets its bounds wrong.
	lo, _ := s.InmemStore.FirstIndex()
	hi, _ := s.InmemStore.LastIndex()
	if first, last = max(first, lo), min(last, hi); first > last {
		return nil
	}
	return s.InmemStore.DeleteRange(first, last)
}

// bench is a journal on such files, and the log that it should be.
type journalBench struct {
	power  *power
	disks  [2]*cutFile
	behind *cutStore
	j      *journal
	want   map[uint64]string
	first  uint64 // of want; 0: empty
	last   uint64
	// compacted are entries that were deleted from the front, of which some, the
	// last ones, may be there until they are deleted again.
	compacted map[uint64]string
}

const benchPages = 12

func newJournalBench(t interface{ Fatal(...any) }) *journalBench {
	p := &power{left: -1}
	b := &journalBench{power: p, behind: &cutStore{p, raft.NewInmemStore()}, want: map[uint64]string{}, compacted: map[uint64]string{}}
	for i := range b.disks {
		b.disks[i] = newCutFile(p, benchPages*journalPage)
		if err := (&journalFile{f: b.disks[i], size: benchPages * journalPage}).claim("n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.open(); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *journalBench) open() (err error) {
	var files [2]*journalFile
	for i, d := range b.disks {
		files[i] = &journalFile{f: d, size: int64(len(d.disk))}
	}
	b.j, err = openJournal(files, b.behind, func(string) {})
	return err
}

// difference is what the log has otherwise than it should; "": nothing.
func (b *journalBench) difference(want map[uint64]string, first, last uint64) string {
	gotFirst, _ := b.j.FirstIndex()
	gotLast, _ := b.j.LastIndex()
	if gotFirst > first || first == 0 && gotFirst > 0 || gotLast != last {
		return fmt.Sprintf("entries %d to %d, want %d to %d", gotFirst, gotLast, first, last)
	}
	for i := gotFirst; i != 0 && i <= last; i++ {
		var l raft.Log
		err := b.j.GetLog(i, &l)
		w, ok := want[i]
		if i < first {
			w, ok = b.compacted[i]
		}
		if ok != (err == nil) || ok && (string(l.Data) != w || l.Index != i || l.Term != i/10 || string(l.Extensions) != "x") {
			return fmt.Sprintf("entry %d: %v (%d bytes), want %v (%d bytes)", i, err, len(l.Data), ok, len(w))
		}
	}
	return ""
}

func logEntries(first uint64, sizes []int, mark byte) (logs []*raft.Log) {
	for i, n := range sizes {
		index := first + uint64(i)
		logs = append(logs, &raft.Log{Index: index, Term: index / 10, Data: bytes.Repeat([]byte{mark}, n), Extensions: []byte("x")})
	}
	return logs
}

// P9: whatever happens when, what was acknowledged is there afterwards, what was
// deleted is not, and what was under way is there as a whole or not at all.
func TestP9_JournalAgainstACutOfPower(t *testing.T) {
	cuts := 0
	rapid.Check(t, func(t *rapid.T) {
		b := newJournalBench(t)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "cut") == 0 {
				b.power.cut(rapid.IntRange(0, 8).Draw(t, "after"))
			}
			want, first, last, err := b.step(t)
			if err == nil && !b.power.gone() {
				b.want, b.first, b.last = want, first, last
				b.power.cut(-1)
				if d := b.difference(want, first, last); d != "" {
					t.Fatal(d)
				}
				continue
			}
			cuts++
			if b.j.settling != nil {
				<-b.j.settling.done
			}
			for again := true; again; {
				b.power.cut(-1)
				for _, d := range b.disks {
					d.restore(func() bool { return rapid.Bool().Draw(t, "page is there") })
				}
				if rapid.IntRange(0, 3).Draw(t, "and while it starts") == 0 {
					b.power.cut(rapid.IntRange(0, 4).Draw(t, "after"))
				}
				err := b.open()
				if again = errors.Is(err, errCut); err != nil && !again {
					t.Fatalf("after the cut: %v", err)
				}
			}
			b.power.cut(-1)
			if d := b.difference(want, first, last); d == "" {
				b.want, b.first, b.last = want, first, last
			} else if before := b.difference(b.want, b.first, b.last); err == nil || before != "" {
				t.Fatalf("after a cut it is neither as after the step (%s; answered %v) nor as before (%s)", d, err, before)
			}
		}
	})
	if cuts == 0 {
		t.Error("the power was never cut")
	}
}

// step does one thing, and says what the log should be then.
func (b *journalBench) step(t *rapid.T) (want map[uint64]string, first, last uint64, err error) {
	want, first, last = map[uint64]string{}, b.first, b.last
	for i, d := range b.want {
		want[i] = d
	}
	size := rapid.SampledFrom([]int{0, 10, 300, 5000, journalPage * benchPages})
	switch rapid.SampledFrom([]string{"append", "append", "append", "append", "prefix", "suffix", "gap"}).Draw(t, "step") {
	case "prefix":
		if first == 0 {
			return want, first, last, nil
		}
		to := rapid.Uint64Range(first, last).Draw(t, "to")
		for i := first; i <= to; i++ {
			b.compacted[i] = want[i]
			delete(want, i)
		}
		from, _ := b.j.FirstIndex() // as Raft does it
		err = b.j.DeleteRange(from, to)
		if first = to + 1; first > last {
			first, last = 0, 0
		}
		return want, first, last, err
	case "suffix":
		if first == 0 {
			return want, first, last, nil
		}
		from := rapid.Uint64Range(first, last).Draw(t, "from")
		for i := from; i <= last; i++ {
			delete(want, i)
		}
		if from == first { // all of it
			from, _ = b.j.FirstIndex() // as Raft does it
		}
		err = b.j.DeleteRange(from, last)
		if last = from - 1; first > last {
			first, last = 0, 0
		}
		return want, first, last, err
	case "gap": // as after a snapshot that was installed on an empty log
		if first == 0 {
			last += rapid.Uint64Range(1, 50).Draw(t, "by")
		}
	}
	logs := logEntries(last+1, rapid.SliceOfN(size, 1, 6).Draw(t, "sizes"), byte(rapid.IntRange('a', 'z').Draw(t, "mark")))
	for _, l := range logs {
		want[l.Index] = string(l.Data)
	}
	if first == 0 {
		first = logs[0].Index
	}
	return want, first, logs[len(logs)-1].Index, b.j.StoreLogs(logs)
}

// A record that was acknowledged and cannot be read any more is not passed over.
func TestP9_ADamagedJournalIsRefused(t *testing.T) {
	b := newJournalBench(t)
	for i := range uint64(4) {
		if err := b.j.StoreLogs(logEntries(i+1, []int{100}, 'a')); err != nil {
			t.Fatal(err)
		}
	}
	disk := b.disks[b.j.active]
	whole := bytes.Clone(disk.disk)
	for page := 2; page <= 5; page++ { // 0 is the claim, 1 the empty record
		copy(disk.pending, whole)
		disk.pending[page*journalPage+60] ^= 1
		err := b.open()
		if last := page == 5; last != (err == nil) { // the last one may have been cut off
			t.Errorf("damage in page %d: %v", page, err)
		} else if !last && !errors.Is(err, errDamaged) {
			t.Errorf("damage in page %d: %v", page, err)
		}
		b.behind.InmemStore = raft.NewInmemStore()
	}
}

// A store behind that has no room loses nothing, and is tried again.
func TestJournalOnAFullDisk(t *testing.T) {
	b := newJournalBench(t)
	full := &fullStore{LogStore: b.behind.InmemStore, full: true}
	b.j.behind = full
	next := uint64(1)
	var err error
	for err == nil && next < 1000 {
		if err = b.j.StoreLogs(logEntries(next, []int{3000}, 'a')); err == nil {
			next++
		}
	}
	if err == nil || !strings.Contains(err.Error(), "no space") {
		t.Fatalf("got %v after %d entries", err, next-1)
	}
	full.set(false)
	if err := b.j.StoreLogs(logEntries(next, []int{3000}, 'a')); err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= next; i++ {
		if err := b.j.GetLog(i, new(raft.Log)); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
}

type fullStore struct {
	raft.LogStore
	mu   sync.Mutex // guards full
	full bool
}

func (s *fullStore) set(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

func (s *fullStore) StoreLogs(logs []*raft.Log) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full {
		return errors.New("no space left on device")
	}
	return s.LogStore.StoreLogs(logs)
}

// Readers see every entry, wherever it is on its way.
func TestJournalIsReadWhileItSettles(t *testing.T) {
	b := newJournalBench(t)
	const entries = 2000
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				first, err := b.j.FirstIndex()
				last, err2 := b.j.LastIndex()
				if err != nil || err2 != nil {
					t.Error(err, err2)
					return
				}
				if first == 0 { // empty, when that was asked
					continue
				}
				i := first + rand.Uint64N(last-first+1)
				var l raft.Log
				if err := b.j.GetLog(i, &l); err != nil || l.Index != i {
					t.Errorf("entry %d of %d to %d: %v", i, first, last, err)
					return
				}
			}
		})
	}
	for i := uint64(1); i <= entries; i++ {
		if err := b.j.StoreLogs(logEntries(i, []int{2000}, 'a')); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	wg.Wait()
	if err := b.j.close(); err != nil {
		t.Fatal(err)
	}
	if last, _ := b.behind.LastIndex(); last != entries {
		t.Errorf("%d entries have settled, want %d", last, entries)
	}
}
