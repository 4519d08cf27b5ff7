package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"fencepost/cluster/bubble"
	"fencepost/fsm/fsmpb"
)

// A damaged page, or a file that became shorter, under a node that runs: bbolt panics,
// or is stopped by the machine. The process ends with the reason.
func TestP9_DamageUnderARunningNode(t *testing.T) {
	for what, spoil := range map[string]func(f *os.File) error{
		"pages are zero": func(f *os.File) error {
			_, err := f.WriteAt(make([]byte, 1<<20), 2*int64(os.Getpagesize()))
			return err
		},
		"the file is cut": func(f *os.File) error { return f.Truncate(2 * int64(os.Getpagesize())) },
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "raft.db")
			bolt, err := raftboltdb.NewBoltStore(path)
			if err != nil {
				t.Fatal(err)
			}
			var ended string
			s := &soundStore{bolt, newDisk(hclog.NewNullLogger(), newMetrics(), func(why string) { ended = why })}
			if err := s.StoreLogs(manyEntries(1, 5000, 1)); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := spoil(f); err != nil {
				t.Fatal(err)
			}
			if err := s.GetLog(2500, new(raft.Log)); err == nil || !strings.Contains(ended, "the log is damaged") {
				t.Errorf("%v, ended %q", err, ended)
			}
		})
	}
}

// What is stored comes back as it was, and what has no seal as it is.
func TestP9_Seals(t *testing.T) {
	mem := raft.NewInmemStore()
	s := &soundStore{mem, newDisk(hclog.NewNullLogger(), newMetrics(), func(why string) { t.Error(why) })}
	l := raft.Log{Index: 1, Term: 2, Type: raft.LogCommand, Data: []byte("data"), AppendedAt: time.Unix(1, 2)}
	if err := s.StoreLogs([]*raft.Log{&l}); err != nil || l.Extensions != nil {
		t.Fatalf("%v; the caller's entry: %+v", err, l)
	}
	old := raft.Log{Index: 2, Term: 2, Data: []byte("of before")}
	if err := mem.StoreLog(&old); err != nil {
		t.Fatal(err)
	}
	for _, want := range []raft.Log{l, old} {
		var got raft.Log
		if err := s.GetLog(want.Index, &got); err != nil || got.Term != want.Term || string(got.Data) != string(want.Data) || got.Extensions != nil {
			t.Errorf("%+v %v", got, err)
		}
	}
	if err := errors.Join(s.SetUint64([]byte("n"), 7), s.Set([]byte("to"), []byte("n1:7101")), mem.Set([]byte("old"), []byte("x"))); err != nil {
		t.Fatal(err)
	}
	n, err := s.GetUint64([]byte("n"))
	to, err2 := s.Get([]byte("to"))
	before, err3 := s.Get([]byte("old"))
	if errors.Join(err, err2, err3) != nil || n != 7 || string(to) != "n1:7101" || string(before) != "x" {
		t.Errorf("%d %q %q", n, to, before)
	}
	if _, err := s.Get([]byte("none")); err == nil {
		t.Error("a value that is not there")
	}
}

// While the journal settles, a full disk is tried again, and a failing one ends the
// process at the first.
func TestP9_AFailureWhileTheJournalSettles(t *testing.T) {
	for name, c := range map[string]struct {
		failure error
		ends    bool
	}{
		"no room": {pathError("write", syscall.ENOSPC), false}, "quota": {pathError("write", syscall.EDQUOT), false},
		"a write fails": {pathError("write", syscall.EIO), true}, "a flush fails": {syscall.EIO, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newJournalBench(t)
			var mu sync.Mutex // guards ended
			ended := ""
			d := newDisk(hclog.NewNullLogger(), newMetrics(), func(why string) {
				mu.Lock()
				defer mu.Unlock()
				ended = why
			})
			behind := &simStore{InmemStore: b.behind.InmemStore}
			behind.fails(c.failure)
			b.j.behind = &soundStore{behind, d}
			next := uint64(1)
			var err error
			for ; err == nil && next < 1000; next++ {
				err = b.j.StoreLogs(logEntries(next, []int{3000}, 'a'))
			}
			behind.fails(nil)
			mu.Lock()
			why := ended
			mu.Unlock()
			if err == nil || (why != "") != c.ends {
				t.Fatalf("%v after %d entries, ended %q", err, next, why)
			}
			if full := d.isFull(); (full != nil) == c.ends {
				t.Errorf("full: %v", full)
			}
			err = b.j.retry()
			last, _ := behind.LastIndex()
			switch {
			case c.ends && (err == nil || last > 0):
				t.Errorf("a disk that failed was used again: %v, %d entries", err, last)
			case !c.ends && (err != nil || last != next-2 || d.isFull() != nil):
				t.Errorf("with room again: %v, %d of %d entries, %v", err, last, next-2, d.isFull())
			}
		})
	}
}

// failingSnapshots cannot be written to.
type failingSnapshots struct {
	*raft.InmemSnapshotStore
	mu    sync.Mutex // guards what follows
	fails bool
	tries int
}

func (s *failingSnapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.fails {
		return nil, pathError("write", syscall.ENOSPC)
	}
	return s.InmemSnapshotStore.Create(v, index, term, c, ci, trans)
}

// Snapshots that find no room are tried again, ever more rarely, and counted; the log
// grows meanwhile, is measured, and is cut when one is taken.
func TestB70_SnapshotsAreTriedAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		snaps := &failingSnapshots{InmemSnapshotStore: raft.NewInmemSnapshotStore(), fails: true}
		store := &simStore{InmemStore: raft.NewInmemStore()}
		_, trans := raft.NewInmemTransport("n1")
		cfg := DefaultConfig()
		cfg.Name, cfg.HTTPAddr, cfg.RaftAddr = "n1", "n1:80", "n1"
		cfg.SnapshotEntries, cfg.TrailingEntries, cfg.TrailingBytes = 500, minTrailing, 1
		cfg.Exit = func(why string) { t.Error(why) }
		n, err := OpenOn(cfg, StandIns{ID: "id1", ClusterID: "c1", Voters: map[string]string{"id1": "n1"}, Logs: store, Stable: store, Snapshots: snaps, Transport: trans})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			n.Close()
			time.Sleep(time.Minute)
		}()
		for n.ready.term() == 0 {
			time.Sleep(time.Second)
		}
		r, err := n.Acquire(t.Context(), time.Now(), &fsmpb.Acquire{Name: "a", Holder: "h", TtlMs: 10_000})
		if err != nil {
			t.Fatal(err)
		}
		renew := func(times int) {
			t.Helper()
			for range times {
				time.Sleep(time.Second)
				if _, err := n.Renew(t.Context(), []*fsmpb.Renewal{{Name: "a", Token: r.Outcome.Token}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		renew(3600)
		if tries := int(gauge(t, n, "fencepost_snapshots_failed_total")); tries < 30 || tries > 70 || tries != snaps.tries {
			t.Errorf("%d tries in an hour, %d of them counted", snaps.tries, tries)
		}
		if log := gauge(t, n, "fencepost_log_entries"); log < 3600 {
			t.Errorf("the log has %v entries", log)
		}
		snaps.mu.Lock()
		snaps.fails = false
		snaps.mu.Unlock()
		renew(90)
		if log := gauge(t, n, "fencepost_log_entries"); log > 1000 {
			t.Errorf("the log still has %v entries", log)
		}
	})
}
