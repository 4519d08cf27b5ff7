package replay

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fencepost/cluster/check"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// restoreNowAndThen takes backups of a node and restores each some time later, until
// ctx ends.
func (n *node) restoreNowAndThen(ctx context.Context, every time.Duration) {
	for i := 0; ; i++ {
		n.mu.Lock()
		var b bytes.Buffer
		if _, err := n.state.Snapshot().WriteBackup(&b, "c", 0); err != nil {
			panic(err)
		}
		n.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		chunk := &fsmpb.RestoreChunk{Id: fmt.Sprint(i)}
		backup, err := fsm.ReadBackup(&b, func(k *fsmpb.KeyRecord) error { chunk.Keys = append(chunk.Keys, k); return nil })
		if err != nil {
			panic(err)
		}
		n.apply(&fsmpb.Command{Op: &fsmpb.Command_RestoreBegin{RestoreBegin: &fsmpb.RestoreBegin{Id: chunk.Id, BackupIndex: backup.Header.Index, TtlMs: 60_000}}})
		n.apply(&fsmpb.Command{Op: &fsmpb.Command_RestoreChunk{RestoreChunk: chunk}})
		n.mu.Lock()
		base := n.state.Base()
		n.mu.Unlock()
		n.apply(&fsmpb.Command{Op: &fsmpb.Command_RestoreCommit{RestoreCommit: &fsmpb.RestoreCommit{
			Id: chunk.Id, Keys: backup.Header.Keys, Checksum: backup.Checksum, Base: base, BackupIndex: backup.Header.Index,
		}}})
	}
}

// P1, P5, P13: a run in whose middle backups were restored passes; and one whose log
// has another index behind a restore than it must have does not.
func TestRestoresInTheMiddleOfARun(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h, log := soundRunWith(t, seed, 8, 150, func(ctx context.Context, n *node) { n.restoreNowAndThen(ctx, 2*time.Second) })
	restores := 0
	for _, e := range log {
		if e.Command.GetRestoreCommit() != nil {
			restores++
		}
	}
	if restores < 3 {
		t.Fatalf("only %d restores in %d entries", restores, len(log))
	}
	for _, v := range Judge(h, log) {
		for _, finding := range v.Findings {
			t.Errorf("%s: %s", v.Name, finding)
		}
	}
	for i, e := range log {
		if e.Command.GetRestoreCommit() != nil {
			wrong := append([]check.Entry(nil), log...)
			wrong[i].Index += 5
			found := false
			for _, v := range Judge(h, wrong) {
				found = found || len(v.Findings) > 0 && v.Name == "P1 a restore passes every token"
			}
			if !found {
				t.Error("a restore that led to another index was not found")
			}
			break
		}
	}
}
