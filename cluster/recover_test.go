package cluster

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// survivor is the directory of a node that has a snapshot, members, leases and keys.
func survivor(t *testing.T) (dir string) {
	t.Helper()
	logs := commands(t, 1, 2, 1)
	add := func(c *fsmpb.Command) { logs = append(logs, command(t, uint64(len(logs)+1), 2, c)) }
	for _, name := range []string{"n1", "n2", "n3"} {
		add(&fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{
			ClusterId: "c", Node: &fsmpb.Node{Name: name, Id: "id-" + name, RaftAddr: name + ":1", HttpAddr: name + ":2", Voter: true},
		}}})
	}
	add(&fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{Name: "db", Holder: "a", TtlMs: 60_000, GraceMs: 5000}}})
	add(&fsmpb.Command{Op: &fsmpb.Command_Write{Write: &fsmpb.Write{
		Token: 6, Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_PUT, Key: "k", Value: []byte("v")}},
	}}})
	logs = append(logs, &raft.Log{Index: 8, Term: 3, Type: raft.LogNoop})
	return madeLog(t, logs, 2, 1, 0)
}

// newest reads the state in a directory's newest snapshot.
func newest(t *testing.T, dir, clusterID string) *fsm.State {
	t.Helper()
	stored, err := newestSnapshot(dir, clusterID)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(stored.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := fsm.ReadSnapshot(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustRecover(t *testing.T, dir string, above uint64, after func(string) error) (RecoveryReport, error) {
	t.Helper()
	r, err := OpenRecovery(dir, above, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Report().Finished {
		return r.Report(), nil
	}
	r.after = after
	return r.Report(), r.Commit()
}

// checkRecovered sees that the directory is the new one, whole, and nothing else.
func checkRecovered(t *testing.T, dir string, want RecoveryReport) {
	t.Helper()
	info, entries := readLog(t, dir)
	if info.ID != want.ID || info.ClusterID != want.ClusterID || info.ID == "id-n1" || info.ClusterID == "c" || len(entries) != 0 {
		t.Errorf("the log is of %s in %s, with %d entries; the report says %+v", info.ID, info.ClusterID, len(entries), want)
	}
	if info.CurrentTerm < 3 || info.Snapshot.Term != 3 || info.Snapshot.Index < want.Floor {
		t.Errorf("term %d, snapshot %+v", info.CurrentTerm, info.Snapshot)
	}
	s := newest(t, dir, want.ClusterID)
	if s.Floor() != want.Floor || s.Floor() < want.RecoveredTo+1<<32 || s.PublicIndex(8) < s.Floor() || len(s.Nodes()) != 0 {
		t.Errorf("floor %d, base %d, members %v; the report says %+v", s.Floor(), s.Base(), s.Nodes(), want)
	}
	if k, ok := s.Key("k"); !ok || string(k.Value) != "v" {
		t.Error("the key is lost")
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	if snapshots, err := os.ReadDir(filepath.Join(dir, "snapshots")); err != nil || len(snapshots) != 1 {
		t.Errorf("%d snapshots, error %v", len(snapshots), err)
	}
	if !slices.Equal(names, []string{"lock", "node.json", "raft.db", "recovery.json", "snapshots"}) {
		t.Errorf("the directory has %q", names)
	}
}

var errPowerCut = errors.New("the power is cut")

// The power is cut behind each step of a recovery, and again behind each step of what
// ends it. The directory is the old one, whole, or becomes the new one by whatever
// opens it next; and recovering again comes to its end.
func TestP1_P9_RecoveryIsCutOffAtEveryStep(t *testing.T) {
	var steps []string
	all := func(step string) error { steps = append(steps, step); return nil }
	report, err := mustRecover(t, survivor(t), 0, all)
	if err != nil || len(steps) < 12 {
		t.Fatalf("%d steps, %+v, %v", len(steps), report, err)
	}
	cutBehind := func(step string) func(string) error {
		return func(s string) error {
			if s == step {
				return errPowerCut
			}
			return nil
		}
	}
	decided := slices.Index(steps, "decide")
	for at, step := range steps {
		t.Run(step, func(t *testing.T) {
			dir := survivor(t)
			report, err := mustRecover(t, dir, 0, cutBehind(step))
			if !errors.Is(err, errPowerCut) {
				t.Fatal(err)
			}
			if at < decided {
				info, entries := readLog(t, dir)
				if info.ID != "id-n1" || info.ClusterID != "c" || len(entries) != 8 || newest(t, dir, "c").Floor() != 0 {
					t.Fatalf("before it was decided the directory is %+v", info)
				}
				if report, err = mustRecover(t, dir, 0, nil); err != nil {
					t.Fatal(err)
				}
			} else if at < len(steps)-1 {
				if _, err := OpenLog(dir); err == nil || !strings.Contains(err.Error(), "interrupted") {
					t.Errorf("half of it was read as a log: %v", err)
				}
				for _, second := range steps[decided+1:] { // cut off again, at every step
					if err := finishRecovery(dir, cutBehind(second)); err != nil && !errors.Is(err, errPowerCut) {
						t.Fatalf("cut off again behind %q: %v", second, err)
					}
					if second == "replace the identity" {
						break
					}
				}
				again, err := mustRecover(t, dir, 0, nil)
				if err != nil || !again.Finished || again.ID != report.ID || again.Floor != report.Floor {
					t.Fatalf("finished %+v, error %v, want %+v", again, err, report)
				}
			}
			checkRecovered(t, dir, report)
		})
	}
}

// A node that is started on a directory whose recovery was cut off is the new one.
func TestP9_StartingEndsARecovery(t *testing.T) {
	dir := survivor(t)
	r, err := OpenRecovery(dir, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openDataDir(dir); err == nil {
		t.Error("the node could start beside the recovery")
	}
	r.after = func(step string) error {
		if step == "remove the older snapshots" {
			return errPowerCut
		}
		return nil
	}
	if err := r.Commit(); !errors.Is(err, errPowerCut) {
		t.Fatal(err)
	}
	r.Close()
	n := startAlone(t, dir, "n1")
	if id := n.identity(); id.ID != r.report.ID || id.ClusterID != r.report.ClusterID {
		t.Errorf("it started as %+v", id)
	}
	// Recorded under its own address, as the only member.
	eventually(t, "it has recorded itself", func() bool {
		m := n.machine.members()
		return len(m) == 1 && m[0].Id == r.report.ID && m[0].RaftAddr == n.cfg.RaftAddr
	})
	reply, err := n.Acquire(t.Context(), time.Now(), &fsmpb.Acquire{Name: "new", Holder: "h", TtlMs: 1000})
	if err != nil || reply.Outcome.Token <= r.report.Floor {
		t.Errorf("%v, error %v: want a token above %d", reply.Outcome, err, r.report.Floor)
	}
}

// The operator's word counts, the report tells what can be known, and a directory can
// be recovered more than once.
func TestP1_RecoverAboveWhatTheOperatorKnows(t *testing.T) {
	dir := survivor(t)
	const known = 1 << 52
	report, err := mustRecover(t, dir, known, nil)
	if err != nil || report.Floor < known {
		t.Fatalf("%+v, error %v", report, err)
	}
	if report.RecoveredTo != 8 || report.LongestTTLMS != 60_000 || report.LongestGraceMS != 5000 || report.Held != 1 || report.Keys != 1 ||
		report.FormerID != "id-n1" || !slices.Equal(report.Others, []string{"n2", "n3"}) {
		t.Errorf("the report is %+v", report)
	}
	again, err := mustRecover(t, dir, 0, nil)
	if err != nil || again.Floor < report.Floor+1<<32 || again.ClusterID == report.ClusterID || again.RecoveredTo < report.Floor {
		t.Errorf("recovered again: %+v, error %v, after %+v", again, err, report)
	}
	checkRecovered(t, dir, again)
	if _, err := OpenRecovery(dir, math.MaxUint64, false); !errors.Is(err, fsm.ErrJumpTooFar) {
		t.Errorf("above all numbers: %v", err)
	}
	checkRecovered(t, dir, again)
}

// What a snapshot of the leader's left behind it in the log, of an older term, was
// never committed, and is not recovered. What cannot be applied stops the recovery.
func TestP14_RecoverTakesNoEntryThatCannotBe(t *testing.T) {
	stale := append(commands(t, 1, 2, 1), command(t, 3, 1, &fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{Name: "db", Holder: "a", TtlMs: 1}}}))
	report, err := mustRecover(t, madeLog(t, stale, 2, 5, 0), 0, nil)
	if err != nil || report.Ignored != 1 || report.RecoveredTo != 2 || report.Held != 0 {
		t.Errorf("%+v, error %v", report, err)
	}
	unknown := append(commands(t, 1, 2, 1), &raft.Log{Index: 3, Term: 1, Type: raft.LogCommand, Data: []byte{0xc2, 0x3e, 0x01, 'x'}})
	dir := madeLog(t, unknown, 0, 0, 0)
	if _, err := OpenRecovery(dir, 0, false); !errors.Is(err, fsm.ErrUnknown) {
		t.Errorf("an entry of a later version: %v", err)
	}
	if _, err := OpenRecovery(dir, 0, false); !errors.Is(err, fsm.ErrUnknown) {
		t.Errorf("the directory was not let go: %v", err)
	}
	if _, err := OpenRecovery(madeLog(t, nil, 0, 0, 0), 0, false); err == nil || !strings.Contains(err.Error(), "nothing to recover") {
		t.Errorf("an empty log: %v", err)
	}
	if _, err := OpenRecovery(t.TempDir(), 0, false); err == nil || !strings.Contains(err.Error(), "no data directory") {
		t.Errorf("an empty directory: %v", err)
	}
	diverged := append(commands(t, 1, 2, 1), command(t, 3, 1, &fsmpb.Command{Op: &fsmpb.Command_Tick{Tick: &fsmpb.Tick{
		Digest: 1, DigestIndex: 2, DigestVersion: fsm.DigestVersion,
	}}}))
	if _, err := OpenRecovery(madeLog(t, diverged, 0, 0, 0), 0, false); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("digest at index %d", 2)) {
		t.Errorf("a replica that differed from its leader's: %v", err)
	}
}

// A node that was removed has not followed since: only who says so recovers from it.
func TestP9_RecoverFromARemovedNode(t *testing.T) {
	dir := survivor(t)
	id, err := readIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	id.Removed = true
	if err := (&dataDir{path: dir}).save(id); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRecovery(dir, 0, false); !errors.Is(err, ErrRemovedNode) {
		t.Errorf("without a word: %v", err)
	}
	r, err := OpenRecovery(dir, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Commit(), r.Close()); err != nil {
		t.Fatal(err)
	}
	checkRecovered(t, dir, r.Report())
	if id, err := readIdentity(dir); err != nil || id.Removed {
		t.Errorf("the new node is %+v, %v", id, err)
	}
}

// What recover makes, often as root, is whose the directory is: else the node could
// not open it.
func TestRecoveryIsTheDirectorysOwners(t *testing.T) {
	dir := survivor(t)
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	// One to which the answer was no leaves a lock, if there was none.
	if err := os.Remove(filepath.Join(dir, "lock")); ignoreMissing(err) != nil {
		t.Fatal(err)
	}
	r, err := OpenRecovery(dir, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	owner := func(path string) uint32 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Uid
	}
	want := owner(dir)
	check := func(when string) {
		if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if got := owner(path); got != want && (path == dir || filepath.Base(path) == "lock" || when == "recovered") {
				t.Errorf("%s: %s belongs to %d, not to %d", when, path, got, want)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	check("not recovered")
	if _, err := mustRecover(t, dir, 0, nil); err != nil {
		t.Fatal(err)
	}
	check("recovered")
}
