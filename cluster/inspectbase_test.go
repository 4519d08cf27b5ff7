package cluster

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"fencepost/fsm/fsmpb"
)

// P1: in the log of a node in which backups were restored each entry has the index
// that it was told by, before and behind each restore; wherever the newest snapshot
// is, and also where a commit restored nothing.
func TestP1_ReadLogOverRestores(t *testing.T) {
	for _, snapshots := range [][]bool{
		{false, false, false}, // the state machine tells
		{false, true, false},  // the last restore is ahead of the snapshot
		{false, false, true},  // all are behind it
		{true, true, true},
	} {
		t.Run(fmt.Sprint(snapshots), func(t *testing.T) {
			n := lonelyNode(t)
			told := map[uint64]string{} // key that the entry with this index put
			step := func(key string) {
				t.Helper()
				a, err := n.Acquire(t.Context(), time.Now(), &fsmpb.Acquire{Name: "l/" + key, Holder: "h", TtlMs: 100_000})
				if err != nil {
					t.Fatal(err)
				}
				w, err := n.Write(t.Context(), time.Now(), &fsmpb.Write{
					Token: a.Outcome.Token, Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_PUT, Key: key, Value: []byte("v")}},
				})
				if err != nil || w.Outcome.Code != fsmpb.Code_CODE_OK {
					t.Fatal(w, err)
				}
				told[w.Outcome.Version] = key
			}
			var floors []uint64
			for i, snapshot := range snapshots {
				step(fmt.Sprint("before", i))
				floors = append(floors, restoreOwn(t, n))
				// One that must restore nothing, though it looks as if it could.
				if r, err := n.propose(t.Context(), time.Now(), &fsmpb.Command{Op: &fsmpb.Command_RestoreCommit{RestoreCommit: &fsmpb.RestoreCommit{Id: "x"}}}); err != nil || r.Outcome.Code == fsmpb.Code_CODE_OK {
					t.Fatal(r, err)
				}
				step(fmt.Sprint("after", i))
				if snapshot {
					if err := n.member.Load().raft.Snapshot().Error(); err != nil {
						t.Fatal(err)
					}
				}
			}
			step("last")
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			checkLog(t, n.cfg.DataDir, told, floors)
		})
	}
}

// restoreOwn restores a backup of the node's own contents, and says what the floor is.
func restoreOwn(t *testing.T, n *Node) uint64 {
	t.Helper()
	b, err := n.Backup()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var out bytes.Buffer
	if _, err := b.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	s, err := n.Spool(&out, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	done, err := n.Restore(t.Context(), s, RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return done.Index
}

func checkLog(t *testing.T, dir string, told map[uint64]string, floors []uint64) {
	t.Helper()
	log, err := OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	info, found, restores, last, entries := log.Info(), 0, 0, uint64(0), uint64(0)
	if err := log.Each(0, 0, func(e LogEntry) error {
		if e.Index <= last {
			t.Errorf("entry %d follows entry %d", e.Index, last)
		}
		last, entries = e.Index, entries+1
		if w := e.Command.GetWrite(); w != nil {
			if found++; told[e.Index] != w.Ops[0].Key {
				t.Errorf("entry %d puts %s, and was told to put %q", e.Index, w.Ops[0].Key, told[e.Index])
			}
		}
		if c := e.Command.GetRestoreCommit(); c != nil && c.Id != "x" {
			if restores++; !slices.Contains(floors, e.Index) {
				t.Errorf("a restore at %d, want one of %d", e.Index, floors)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if found == 0 || restores == 0 || last != info.Last || log.Count(0, 0) != entries || entries == 0 {
		t.Errorf("%d writes and %d restores in %d entries to %d; %+v", found, restores, entries, last, info)
	}
	floor := floors[len(floors)-1]
	if first, _ := log.Range(floor, 0); first != floor {
		t.Errorf("the entries from %d on begin at %d", floor, first)
	}
	if first, end := log.Range(floor-1000, floor-1); first != 0 || end != 0 {
		t.Errorf("between the restore and what came before it there are entries %d to %d", first, end)
	}
}
