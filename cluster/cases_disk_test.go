package cluster

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm/fsmpb"
)

// Known cases of disks that are full or fail.

// pathError is what the operating system says about a write.
func pathError(op string, errno syscall.Errno) error {
	return &fs.PathError{Op: op, Path: "raft.db", Err: errno}
}

// fails makes each write of entries fail so; nil: none.
func (s *simStore) fails(err error) {
	if err == nil {
		s.failing.Store(nil)
		return
	}
	s.failing.Store(&err)
}

// asked tries until an acquire is answered, and says how long that took.
func (s *sim) asked(name string, except ...*simNode) (token uint64, took time.Duration) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		for _, n := range s.nodes {
			if n.reading.Load() == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
			r, err := n.Acquire(ctx, time.Now(), &fsmpb.Acquire{Name: name, Holder: "h", TtlMs: 3_600_000})
			cancel()
			if err == nil && r.Outcome.Code == fsmpb.Code_CODE_OK {
				return r.Outcome.Token, time.Since(began)
			}
		}
	}
	s.t.Fatalf("no acquire of %s was answered in a minute", name)
	return 0, 0
}

// The leader's disk is full: another leads at once, and the full one neither comes
// back into office nor ends. It says so, and takes part again when there is room.
func TestP9_B70_TheLeadersDiskIsFull(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		full := s.leader()
		held := full.mustAcquire("held", time.Hour)
		full.store.fails(pathError("write", syscall.ENOSPC))
		if o, err := full.acquire("lost", time.Hour, "k"); err == nil {
			t.Fatalf("acknowledged, and not on the disk: %v", o)
		}
		next := s.leader(full)
		if why := full.Ready(); why == nil || !strings.Contains(why.Error(), "no room on the disk") {
			t.Errorf("the full node is ready: %v", why)
		}
		for i := range 60 {
			if o, err := next.acquire(fmt.Sprint("a", i), time.Hour, ""); err != nil || o.Code != fsmpb.Code_CODE_OK {
				t.Fatalf("acquire %d: %v %v", i, o, err)
			}
			if full.member.Load().raft.State() == raft.Leader {
				t.Fatal("the full node leads again")
			}
			time.Sleep(time.Second)
		}
		if o, err := next.renew("held", held.Token); err != nil || o.Code != fsmpb.Code_CODE_OK {
			t.Fatalf("a renewal: %v %v", o, err)
		}
		if got := gauge(t, full.Node, "fencepost_disk_full"); got != 1 {
			t.Errorf("the gauge says %v", got)
		}
		full.store.fails(nil)
		time.Sleep(15 * time.Second) // Raft waits up to 10.24 s between tries
		s.sameEverywhere()
		if why := full.Ready(); why != nil || full.exited != "" {
			t.Errorf("with room again: %v, ended: %q", why, full.exited)
		}
	})
}

// Two of three are full: nothing is acknowledged, nobody ends, and all goes on when
// one has room again.
func TestP9_B70_TwoOfThreeAreFull(t *testing.T) {
	for _, leads := range []bool{true, false} {
		t.Run(fmt.Sprint("the leader is one of them: ", leads), func(t *testing.T) {
			inSim(t, func(t *testing.T, s *sim) {
				l := s.leader()
				before := l.mustAcquire("before", time.Hour)
				var full []*simNode
				if leads {
					full = append(full, l)
				}
				for _, n := range s.nodes {
					if n != l && len(full) < 2 {
						full = append(full, n)
					}
				}
				for _, n := range full {
					n.store.fails(pathError("write", syscall.ENOSPC))
				}
				for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
					for _, n := range s.nodes {
						ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
						if r, err := n.Acquire(ctx, time.Now(), &fsmpb.Acquire{Name: "during", Holder: "h", TtlMs: 1000}); err == nil {
							t.Fatalf("acknowledged with one disk of three: %v", r.Outcome)
						}
						cancel()
					}
				}
				full[0].store.fails(nil)
				token, took := s.asked("after")
				if token <= before.Token || took > 15*time.Second {
					t.Errorf("token %d after %d, served again after %s", token, before.Token, took)
				}
				full[1].store.fails(nil)
				time.Sleep(15 * time.Second)
				l = s.leader()
				if lease, _, err := l.lease("before"); err != nil || lease.LastToken != before.Token {
					t.Errorf("what was acknowledged before: %+v %v", lease, err)
				}
				s.sameEverywhere()
				for _, n := range s.nodes {
					if n.exited != "" {
						t.Errorf("%s ended: %s", n.id, n.exited)
					}
				}
			})
		})
	}
}

// A disk that fails otherwise is not tried again: the process ends, whatever was
// being written, and answers nothing more.
func TestP9_ADiskThatFailsEndsTheNode(t *testing.T) {
	for name, failure := range map[string]error{
		"a write": pathError("write", syscall.EIO), "a flush": syscall.EIO, "read-only": pathError("write", syscall.EROFS),
		"a flush without room": syscall.ENOSPC, // what it dropped had been taken
	} {
		t.Run(name, func(t *testing.T) {
			inSim(t, func(t *testing.T, s *sim) {
				l := s.leader()
				l.store.fails(failure)
				if o, err := l.acquire("a", time.Hour, ""); err == nil {
					t.Fatalf("acknowledged: %v", o)
				}
				l.mu.Lock()
				why := l.exited
				l.mu.Unlock()
				if !strings.Contains(why, "the log cannot be written") || !strings.Contains(why, failure.Error()) {
					t.Errorf("ended with %q", why)
				}
				l.store.fails(nil) // a second flush would say that all is well
				if err := l.disk.usable(); err == nil {
					t.Error("the disk is used again")
				}
				s.leader(l)
			})
		})
	}
}

// What replaces a deleted end of the log finds no room. Raft would go on as if it
// had what was deleted: so the process ends.
func TestP9_NoRoomForWhatReplacesTheEndOfTheLog(t *testing.T) {
	logs := raft.NewInmemStore()
	if err := logs.StoreLogs(manyEntries(1, 20, 1)); err != nil {
		t.Fatal(err)
	}
	store := &simStore{InmemStore: logs}
	s := watchStore(store, store)
	var ended string
	s.end = func(what string, _ error) { ended = what }
	store.fails(pathError("write", syscall.ENOSPC))
	if err := s.StoreLogs(manyEntries(21, 1, 2)); err == nil || ended != "" {
		t.Fatalf("an append without room: %v, ended %q", err, ended)
	}
	if err := s.DeleteRange(1, 5); err != nil {
		t.Fatal(err)
	}
	if err := s.StoreLogs(manyEntries(21, 1, 2)); err == nil || ended != "" {
		t.Fatalf("after a compaction: %v, ended %q", err, ended)
	}
	if err := s.DeleteRange(16, 20); err != nil {
		t.Fatal(err)
	}
	if err := s.StoreLogs(manyEntries(16, 1, 2)); err == nil || ended == "" {
		t.Fatalf("%v, ended %q", err, ended)
	}
}

// The term cannot be written: Raft would panic, and instead the process ends with
// the reason. A vote that finds no room is only not given.
func TestP9_NoRoomForTheTerm(t *testing.T) {
	for key, ends := range map[string]bool{"CurrentTerm": true, "LastVoteTerm": false} {
		var ended string
		n := newNode(DefaultConfig())
		n.close()
		s := &soundStore{refusing{pathError("write", syscall.ENOSPC)}, newDisk(n.log, n.metrics, func(why string) { ended = why })}
		if err := s.SetUint64([]byte(key), 7); err == nil || (ended != "") != ends {
			t.Errorf("%s: %v, ended %q", key, err, ended)
		}
	}
}

// refusing is a store that can write nothing.
type refusing struct{ err error }

func (r refusing) FirstIndex() (uint64, error)      { return 0, nil }
func (r refusing) LastIndex() (uint64, error)       { return 0, nil }
func (r refusing) GetLog(uint64, *raft.Log) error   { return raft.ErrLogNotFound }
func (r refusing) StoreLog(*raft.Log) error         { return r.err }
func (r refusing) StoreLogs([]*raft.Log) error      { return r.err }
func (r refusing) DeleteRange(uint64, uint64) error { return r.err }
func (r refusing) Set([]byte, []byte) error         { return r.err }
func (r refusing) Get([]byte) ([]byte, error)       { return nil, nil }
func (r refusing) SetUint64([]byte, uint64) error   { return r.err }
func (r refusing) GetUint64([]byte) (uint64, error) { return 0, nil }

// gauge is what the node's metrics say.
func gauge(t *testing.T, n *Node, name string) float64 {
	t.Helper()
	families, err := n.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// Right after its write has failed, the full node's log is as long as the others',
// and it could win the election; but the others stand first, each time.
func TestB70_AFullNodeLetsOthersStandFirst(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		for round := range 12 {
			full := s.leader()
			full.store.fails(pathError("write", syscall.ENOSPC))
			full.acquire(fmt.Sprint("lost", round), time.Hour, "")
			left := false
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
				leads := full.member.Load().raft.State() == raft.Leader
				if left && leads {
					t.Fatalf("round %d: the full node was elected", round)
				}
				left = left || !leads
			}
			if !left {
				t.Fatalf("round %d: it still leads", round)
			}
			full.store.fails(nil)
			time.Sleep(12 * time.Second)
		}
		s.sameEverywhere()
	})
}
