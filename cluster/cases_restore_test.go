package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// Known cases of restores that went wrong.

// B43: backups that are not whole are refused before anything goes into the log, and
// so is what must not or cannot be restored.
func TestP15_B43_RestoresThatAreRefused(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustWrite(l.mustAcquire("a", time.Hour).Token, "k", "v", 5)
		backup := l.backedUp()
		var before, after uint64
		l.machine.view(func(st *fsm.State) { before = st.Index() })
		for _, cut := range []int{0, 1, len(backup) / 10, len(backup) / 2, len(backup) * 99 / 100, len(backup) - 1} {
			if _, err := l.restore(t.Context(), backup[:cut], RestoreOptions{Force: true}); !errors.Is(err, fsm.ErrBadSnapshot) {
				t.Errorf("cut to %d bytes: %v", cut, err)
			}
		}
		for range 20 {
			flipped := bytes.Clone(backup)
			flipped[rand.IntN(len(flipped))] ^= 1 << rand.IntN(8)
			if _, err := l.restore(t.Context(), flipped, RestoreOptions{Force: true}); !errors.Is(err, fsm.ErrBadSnapshot) {
				t.Errorf("a bit flipped: %v", err)
			}
		}
		if _, err := l.restore(t.Context(), backup, RestoreOptions{Above: fsm.MaxToken}); !errors.Is(err, fsm.ErrJumpTooFar) {
			t.Errorf("above all numbers: %v", err)
		}
		for _, n := range s.nodes {
			if n != l {
				if _, err := n.restore(t.Context(), backup, RestoreOptions{}); !errors.Is(err, ErrNoLeader) {
					t.Errorf("on a follower: %v", err)
				}
			}
		}
		l.cfg.MaxDataBytes = 1000
		var quota *QuotaError
		var large *BackupTooLargeError
		if _, err := l.restore(t.Context(), backup, RestoreOptions{}); !errors.As(err, &large) && !errors.As(err, &quota) {
			t.Errorf("above the quota: %v", err)
		}
		l.cfg.MaxDataBytes = 1 << 30
		l.machine.view(func(st *fsm.State) { after = st.Index() })
		if after > before+1 { // a Tick, perhaps
			t.Errorf("what was refused left entries: index %d, then %d", before, after)
		}
	})
}

// B44: another cluster's backup is refused without force, and with it brings keys
// and nothing else: the members and the id stay, each node restarts, and the floor
// is above both clusters' newest.
func TestP5_B44_AnotherClustersBackup(t *testing.T) {
	s := fsm.New()
	apply := func(index uint64, c *fsmpb.Command) {
		c.Term = 1
		if _, _, err := s.Apply(index, 1, c); err != nil {
			t.Fatal(err)
		}
	}
	const far = 1 << 50 // its index, above where the clock alone would lead to
	apply(1, &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{ClusterId: "other", Node: &fsmpb.Node{Name: "x1", Id: "x1"}}}})
	apply(2, &fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{Name: "l", Holder: "h", TtlMs: 1000}}})
	apply(far, &fsmpb.Command{Op: &fsmpb.Command_Write{Write: &fsmpb.Write{Token: 2, Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_PUT, Key: "theirs", Value: []byte("v")}}}}})
	var b bytes.Buffer
	if _, err := s.Snapshot().WriteBackup(&b, "other", 0); err != nil {
		t.Fatal(err)
	}
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustWrite(l.mustAcquire("a", time.Hour).Token, "ours", "v", 2)
		who := func() (text string) { // a node records its version when it likes
			for _, m := range l.machine.members() {
				text += fmt.Sprintln(m.Name, m.Id, m.RaftAddr, m.HttpAddr, m.Voter)
			}
			return text
		}
		members := who()
		if _, err := l.restore(t.Context(), b.Bytes(), RestoreOptions{}); !errors.Is(err, ErrForeignBackup) {
			t.Fatalf("without force: %v", err)
		}
		done := l.mustRestore(b.Bytes(), RestoreOptions{Force: true})
		if done.Index < far+1<<32 {
			t.Errorf("floor %d is not above the other cluster's %d", done.Index, uint64(far))
		}
		s.sameEverywhere()
		for _, n := range s.nodes {
			n.crash()
			s.leader(n)
			n.restart()
		}
		l = s.ready(10 * time.Second)
		if got := l.contents(); !strings.HasPrefix(got, "theirs") || strings.Contains(got, "ours") {
			t.Errorf("contents %s", got)
		}
		var id string
		l.machine.view(func(st *fsm.State) { id = st.ClusterID() })
		if got := who(); got != members || id != "c1" {
			t.Errorf("cluster %s, members\n%s, were\n%s", id, got, members)
		}
		s.sameEverywhere()
	})
}

// A restore is remembered as any mutation is: also when another came after it, and
// also where it would be refused if it were new; for as long, and no longer.
func TestP11_RepeatedRestores(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustWrite(l.mustAcquire("a", time.Hour).Token, "k", "one", 3)
		one := l.backedUp()
		l.mustWrite(l.mustAcquire("b", time.Hour).Token, "k", "two", 3)
		two := l.backedUp()
		first, second := l.mustRestore(one, restoreUnder("first", 1)), l.mustRestore(two, restoreUnder("second", 2))
		served := l.contents()
		l.crash()
		s.leader(l)
		l.restart()
		l = s.ready(10 * time.Second)
		l.cfg.MaxRequests = 1 // a new one would be refused
		if again := l.mustRestore(one, restoreUnder("first", 1)); again.Index != first.Index {
			t.Errorf("the first at %d, repeated at %d", first.Index, again.Index)
		}
		if again := l.mustRestore(two, restoreUnder("second", 2)); again.Index != second.Index {
			t.Errorf("the second at %d, repeated at %d", second.Index, again.Index)
		}
		if _, err := l.restore(t.Context(), one, restoreUnder("first", 3)); !errors.Is(err, ErrKeyReused) {
			t.Errorf("another restore under that key: %v", err)
		}
		if l.contents() != served {
			t.Error("a repetition restored once more")
		}
		l.cfg.MaxRequests = 1 << 20
		time.Sleep(2 * fsm.KeepRequestMS * time.Millisecond)
		l = s.leader()
		if later := l.mustRestore(one, restoreUnder("first", 1)); later.Index <= second.Index {
			t.Errorf("at %d, which is not after %d: the key never lapses", later.Index, second.Index)
		}
	})
}

// Two restores at a time are one too many.
func TestRestoresAreOneAtATime(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustWrite(l.mustAcquire("a", time.Hour).Token, "k", "v", 3)
		backup := l.backedUp()
		resume := l.store.stall()
		first := make(chan error, 1)
		go func() {
			_, err := l.restore(t.Context(), backup, RestoreOptions{})
			first <- err
		}()
		time.Sleep(10 * time.Millisecond)
		if _, err := l.restore(t.Context(), backup, RestoreOptions{}); !errors.Is(err, ErrRestoreRunning) {
			t.Errorf("the second: %v", err)
		}
		resume()
		if err := <-first; err != nil {
			t.Errorf("the first: %v", err)
		}
	})
}

// B43: an upload that would fill the disk is refused, and takes its part away again:
// a log without room would end the node.
func TestP9_B43_UploadsLeaveRoomForTheLog(t *testing.T) {
	dir, left := t.TempDir(), uint64(spoolReserve+3*spoolStep)
	free := func(of string) (uint64, bool) {
		if of != dir {
			t.Errorf("asked about %s, not %s", of, dir)
		}
		left -= spoolStep
		return left, true
	}
	if _, err := newSpool(dir, 1<<40, bytes.NewReader(make([]byte, 5*spoolStep)), free); !errors.Is(err, ErrDiskFull) {
		t.Errorf("got %v", err)
	}
	// What was spooled must fit into the log and a snapshot as well.
	var whole bytes.Buffer
	st := fsm.New()
	if _, err := st.Snapshot().WriteBackup(&whole, "c", 0); err != nil {
		t.Fatal(err)
	}
	left = spoolReserve + 3*spoolStep
	if s, err := newSpool(dir, 1<<40, bytes.NewReader(whole.Bytes()), free); err != nil {
		t.Errorf("with room: %v", err)
	} else if err := s.Close(); err != nil {
		t.Error(err)
	}
	left = spoolReserve + 2*spoolStep
	if _, err := newSpool(dir, 1<<40, bytes.NewReader(whole.Bytes()), free); !errors.Is(err, ErrDiskFull) {
		t.Errorf("with room for the upload alone: %v", err)
	}
	if kept, err := os.ReadDir(dir); err != nil || len(kept) > 0 {
		t.Errorf("left behind: %v %v", kept, err)
	}
	if n, known := diskFree(dir); known && n == 0 {
		t.Error("the disk of the test is full, or cannot be asked")
	}
}
