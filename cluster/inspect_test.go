package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"fencepost/fsm/fsmpb"
)

// lonelyNode runs a cluster of one on a real disk, that keeps three entries behind
// a snapshot.
func lonelyNode(t *testing.T) *Node {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Name, cfg.DataDir, cfg.HTTPAddr = "n1", filepath.Join(t.TempDir(), "data"), "127.0.0.1:1"
	cfg.RaftAddr, cfg.Peers, cfg.Expect = freeAddrs(t, 1)[0], []string{"http://127.0.0.1:1"}, 1
	cfg.TrailingEntries = 3
	cfg.Exit = func(why string) { t.Errorf("the node ended itself: %s", why) }
	d, err := openDataDir(cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	self := []raftServer{{ID: "id-n1", Addr: cfg.RaftAddr}}
	id := identity{Version: identityVersion, Name: cfg.Name, ID: self[0].ID, ClusterID: fmt.Sprintf("%032d", 7), Bootstrap: self}
	if err := errors.Join(d.save(id), d.close()); err != nil {
		t.Fatal(err)
	}
	return started(t, cfg)
}

// started runs a node of a cluster of one until it leads.
func started(t *testing.T, cfg Config) *Node {
	t.Helper()
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	for deadline := time.Now().Add(20 * time.Second); n.ready.term() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no leader in 20 s")
		}
	}
	return n
}

// killedNode is the disk of a node that was killed after it had acknowledged writes,
// before and after a snapshot, and what it had acknowledged: keys by index.
func killedNode(t *testing.T) (dir string, snapshot uint64, acknowledged map[uint64]string, n *Node) {
	t.Helper()
	n = lonelyNode(t)
	g, err := n.Acquire(t.Context(), time.Now(), &fsmpb.Acquire{Name: "job", Holder: "h", TtlMs: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	acknowledged = map[uint64]string{}
	write := func(key string) {
		op := &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_PUT, Key: key, Value: []byte("of " + key)}
		r, err := n.Write(t.Context(), time.Now(), &fsmpb.Write{Token: g.Outcome.Token, Ops: []*fsmpb.WriteOp{op}})
		if err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
			t.Fatal(r.Outcome, err)
		}
		acknowledged[r.Outcome.Index] = key
	}
	for i := range 10 {
		write(fmt.Sprintf("before/%d", i))
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = started(t, n.cfg) // so that all has settled, and can be cut off behind a snapshot
	f := n.member.Load().raft.Snapshot()
	if err := f.Error(); err != nil {
		t.Fatal(err)
	}
	meta, r, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	for i := range 10 {
		write(fmt.Sprintf("after/%d", i))
	}
	// raft.db is not written to now, so a copy is what a kill would leave.
	return copied(t, n.cfg.DataDir), meta.Index, acknowledged, n
}

func copied(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// tree is all that a directory has, with contents and times.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var content []byte
		if !d.IsDir() {
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime().UnixNano(), checksum(content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func readLog(t *testing.T, dir string) (LogInfo, []LogEntry) {
	t.Helper()
	before := tree(t, dir)
	var entries []LogEntry
	info, err := ReadLog(dir, func(e LogEntry) error {
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if after := tree(t, dir); after != before {
		t.Fatalf("reading changed the directory:\n%s\nbefore:\n%s", after, before)
	}
	for i, e := range entries {
		if e.Index != info.First+uint64(i) || e.Err != nil || (e.Command != nil) != (e.Type == "command") {
			t.Fatalf("entry %d of a log from %d: %+v", i, info.First, e)
		}
	}
	if n := len(entries); n > 0 && entries[n-1].Index != info.Last || n == 0 && info.Last != 0 {
		t.Fatalf("%d entries of %d to %d", n, info.First, info.Last)
	}
	return info, entries
}

// startedLog is the log as a node has it that starts from this disk. It changes the
// directory.
func startedLog(t *testing.T, dir, id string) (entries []raft.Log) {
	t.Helper()
	bolt, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer bolt.Close()
	var files [2]*journalFile
	for i := range files {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("raft.journal%d", i)), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		files[i] = &journalFile{f: diskFile{f}, size: journalBytes}
		if mine, err := files[i].claimed(id); !mine || err != nil {
			t.Fatal(mine, err)
		}
	}
	j, err := openJournal(files, &soundStore{bolt, newDisk(hclog.NewNullLogger(), newMetrics(), func(why string) { t.Error(why) })}, func(why string) { t.Error(why) })
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	first, _ := j.FirstIndex()
	last, _ := j.LastIndex()
	for i := first; i != 0 && i <= last; i++ {
		var l raft.Log
		if err := j.GetLog(i, &l); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, l)
	}
	return entries
}

func sameLog(t *testing.T, got []LogEntry, want []raft.Log) {
	t.Helper()
	if len(got) != len(want) || len(got) == 0 {
		t.Fatalf("%d entries, a started node has %d", len(got), len(want))
	}
	for i, e := range got {
		if w := want[i]; e.Index != w.Index || e.Term != w.Term || !bytes.Equal(e.Data, w.Data) {
			t.Fatalf("got entry %+v, a started node has %+v", e, w)
		}
	}
}

// P9: what was acknowledged is in the log of a node that was killed, at its index;
// what is read is what a start would find, and nothing on the disk is changed by it.
func TestP9_ReadLogOfAKilledNode(t *testing.T) {
	dir, snapshot, acknowledged, n := killedNode(t)
	info, entries := readLog(t, dir)
	if info.Node != "n1" || info.ID != "id-n1" || info.ClusterID != fmt.Sprintf("%032d", 7) {
		t.Errorf("whose log: %+v", info)
	}
	if info.Snapshot.Index != snapshot || info.Snapshot.Term == 0 || info.First < 2 || info.First > snapshot-2 {
		t.Errorf("the snapshot is at %d, and three entries were to stay: %+v", snapshot, info)
	}
	if want := int(info.Last - snapshot); info.FromJournal < want {
		t.Errorf("%d entries from the journal, want at least the %d after the snapshot", info.FromJournal, want)
	}
	if info.CurrentTerm != entries[len(entries)-1].Term || info.VotedInTerm != info.CurrentTerm || info.VotedFor != n.cfg.RaftAddr {
		t.Errorf("term and vote: %+v", info)
	}
	if info.Committed < snapshot || info.Committed > info.Last {
		t.Errorf("known to be committed: %+v", info)
	}
	seen := 0
	for index, key := range acknowledged {
		if index < info.First {
			continue
		}
		seen++
		if index > info.Last {
			t.Fatalf("the write at %d was acknowledged, and the log ends at %d", index, info.Last)
		}
		if ops := entries[index-info.First].Command.GetWrite().GetOps(); len(ops) != 1 || ops[0].Key != key || string(ops[0].Value) != "of "+key {
			t.Errorf("at %d: %v, want the write of %s", index, ops, key)
		}
	}
	if seen < 10 {
		t.Errorf("%d acknowledged writes are in the log, want the 10 after the snapshot", seen)
	}
	sameLog(t, entries, startedLog(t, copied(t, dir), "id-n1"))

	// A clean stop lets everything settle, and the log goes on from the same entries.
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	whole, all := readLog(t, n.cfg.DataDir)
	if whole.FromJournal != 0 || len(all) < len(entries) || whole.First != info.First {
		t.Fatalf("after a clean stop: %+v, %d entries; before: %+v", whole, len(all), info)
	}
	sameLog(t, all, startedLog(t, n.cfg.DataDir, "id-n1"))
}

// lastRecord is where the last record of the journal that counts begins.
func lastRecord(t *testing.T, dir string) (path string, at int64) {
	t.Helper()
	for i := range 2 {
		p := filepath.Join(dir, fmt.Sprintf("raft.journal%d", i))
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		number, generation, records := uint32(0), uint64(0), 0
		for from := journalPage; from < len(b); {
			r, ok := recordAt(b[from:])
			if !ok || r.number != number || number > 0 && r.generation != generation {
				break
			}
			if len(r.body) > 0 {
				path, at, records = p, int64(from), records+1
			}
			number, generation = number+1, r.generation
			from += int(padded(recordHeadSize + len(r.body)))
		}
		if records == 1 {
			t.Fatal("the journal has only one record")
		}
	}
	if path == "" {
		t.Fatal("the journal is empty")
	}
	return path, at
}

func spoil(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{^b[0]}, at); err != nil {
		t.Fatal(err)
	}
}

// A record that a crash cut off is left out, as at a start; one that cannot be read
// though a later one can is damage.
func TestReadLogWithATornJournal(t *testing.T) {
	dir, _, _, n := killedNode(t)
	n.Close()
	_, whole := readLog(t, dir)
	torn := copied(t, dir)
	path, at := lastRecord(t, torn)
	spoil(t, path, at+recordHeadSize)
	info, entries := readLog(t, torn)
	if len(entries) >= len(whole) || info.Last >= whole[len(whole)-1].Index {
		t.Fatalf("%d entries with a torn record, %d without", len(entries), len(whole))
	}
	sameLog(t, entries, startedLog(t, torn, "id-n1"))

	damaged := copied(t, dir)
	spoil(t, filepath.Join(damaged, filepath.Base(path)), at-journalPage+recordHeadSize) // the record before, of one page
	if _, err := ReadLog(damaged, nil); !errors.Is(err, errDamaged) {
		t.Fatalf("a damaged record before others: %v", err)
	}
}

// Whoever reads has the directory for reading, beside others who do; a node that
// runs, or starts meanwhile, is not disturbed.
func TestReadLogAndARunningNode(t *testing.T) {
	dir, _, _, n := killedNode(t)
	if _, err := ReadLog(n.cfg.DataDir, nil); err == nil || !strings.Contains(err.Error(), "in use: stop the node first") {
		t.Fatalf("the log of a running node: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLog(dir, nil); err != nil {
		t.Errorf("a second reader: %v", err)
	}
	cfg := n.cfg
	cfg.DataDir = dir
	if again, err := Open(cfg); err == nil {
		again.Close()
		t.Error("a node started while its log was read")
	}
	last := s.Info().Last
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(cfg)
	if err != nil {
		t.Fatalf("start after reading: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if info, _ := readLog(t, dir); info.Last < last {
		t.Errorf("after another start the log ends at %d, before at %d", info.Last, last)
	}
}

// What is no whole data directory is refused, with a reason, and stays as it is.
func TestReadLogRefuses(t *testing.T) {
	dead, _, _, n := killedNode(t)
	n.Close()
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	put := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		spoil func(*testing.T, string)
		want  string
	}{
		"no node.json":      {remove("node.json"), "no data directory of a node"},
		"damaged node.json": {put("node.json", "{"), "damaged node.json"},
		"unknown format":    {put("node.json", `{"version":9,"id":"x"}`), "format 9"},
		"another node":      {put("node.json", `{"version":1,"name":"n2","id":"id-n2","has_log":true}`), "is not the log that node"},
		"lost log":          {remove("raft.db"), "was lost"},
		"empty log":         {put("raft.db", ""), "raft.db"},
		"no log of bbolt":   {put("raft.db", strings.Repeat("x", 1<<16)), "raft.db"},
		"lost journal":      {remove("raft.journal1"), "raft.journal1"},
		"foreign journal":   {put("raft.journal1", string(claimPage("id-n2"))), "not the journal that node"},
		"lost snapshots":    {remove("snapshots"), "no snapshot reaches so far"},
		"not of a cluster": {func(t *testing.T, dir string) {
			remove("raft.db")(t, dir)
			put("node.json", `{"version":1,"name":"n1","id":"id-n1"}`)(t, dir)
		}, "has not entered a cluster"},
		"damaged snapshot": {func(t *testing.T, dir string) {
			found, _ := filepath.Glob(filepath.Join(dir, "snapshots", "*", "state.bin"))
			spoil(t, found[0], 20)
		}, "checksum differs"},
		"damaged pages": {func(t *testing.T, dir string) {
			f, err := os.OpenFile(filepath.Join(dir, "raft.db"), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, 1<<20), 2*4096); err != nil { // all but the two pages that say where all is
				t.Fatal(err)
			}
		}, "is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, dead)
			c.spoil(t, dir)
			before := tree(t, dir)
			if info, err := ReadLog(dir, nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %+v, %v; want an error about %q", info, err, c.want)
			}
			if after := tree(t, dir); after != before {
				t.Errorf("the directory was changed:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := ReadLog(missing, nil); err == nil || !strings.Contains(err.Error(), "no data directory") {
		t.Errorf("a missing directory: %v", err)
	}
	if _, err := os.Stat(missing); !os.IsNotExist(err) {
		t.Errorf("the directory was made: %v", err)
	}
	empty := t.TempDir()
	if _, err := ReadLog(empty, nil); err == nil {
		t.Error("an empty directory was read")
	}
	if left, _ := os.ReadDir(empty); len(left) > 0 {
		t.Errorf("left in an empty directory: %v", left)
	}
}

// Each gives the range that is asked for, and what see returns.
func TestEachGivesARange(t *testing.T) {
	dir, _, _, n := killedNode(t)
	n.Close()
	s, err := OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	first, last := s.Info().First, s.Info().Last
	for _, c := range []struct{ from, to, wantFirst, wantLast uint64 }{
		{0, 0, first, last},
		{first + 1, last - 1, first + 1, last - 1},
		{1, 1 << 40, first, last},
		{last, last, last, last},
		{last + 1, 0, 0, 0},
		{1, first - 1, 0, 0},
	} {
		var got []uint64
		if err := s.Each(c.from, c.to, func(e LogEntry) error { got = append(got, e.Index); return nil }); err != nil {
			t.Fatal(err)
		}
		var want []uint64
		for i := c.wantFirst; i != 0 && i <= c.wantLast; i++ {
			want = append(want, i)
		}
		if !slices.Equal(got, want) {
			t.Errorf("from %d to %d: %v, want %v", c.from, c.to, got, want)
		}
	}
	stop := errors.New("enough")
	calls := 0
	if err := s.Each(0, 0, func(LogEntry) error { calls++; return stop }); !errors.Is(err, stop) || calls != 1 {
		t.Errorf("after an error: %v, %d calls", err, calls)
	}
}
