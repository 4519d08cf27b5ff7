package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"fencepost/cluster"
	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
)

// everything is all that a directory has, with contents and times.
func everything(t *testing.T, dir string) string {
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
		fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime().UnixNano(), crc32.ChecksumIEEE(content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// dump is what 'debug log' prints.
func dump(t *testing.T, dir string, args ...string) (out, errs string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), append([]string{"debug", "log", "--data-dir", dir}, args...), strings.NewReader(""), &stdout, &stderr)
	return stdout.String(), stderr.String(), code
}

// dumped is the log of a node that was killed.
func dumped(t *testing.T, n *process) (info logInfo, entries map[uint64]check.Entry) {
	t.Helper()
	before := everything(t, n.dir)
	out, errs, code := dump(t, n.dir, "-o", "json")
	if code != exitDone {
		t.Fatalf("%s: %d %s", n.name, code, errs)
	}
	text, errs, code := dump(t, n.dir)
	if code != exitDone || !strings.Contains(text, "node "+n.name+" (") {
		t.Fatalf("%s: %d %s%s", n.name, code, text, errs)
	}
	if after := everything(t, n.dir); after != before {
		t.Fatalf("a dump changed the directory:\n%s\nbefore:\n%s", after, before)
	}
	var first struct{ Info logInfo }
	line, _, _ := strings.Cut(out, "\n")
	if err := json.Unmarshal([]byte(line), &first); err != nil {
		t.Fatal(err)
	}
	list, err := check.ReadEntries(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	entries = map[uint64]check.Entry{}
	for _, e := range list {
		entries[e.Index] = e
	}
	return first.Info, entries
}

// The logs of three nodes that were killed agree, and have every acknowledged write
// at the index that its client was told; the nodes go on afterwards.
func TestP9_DumpOfKilledNodes(t *testing.T) {
	c := startProcesses(t, 3)
	puts, grants := map[uint64]string{}, map[uint64]string{}
	put := func(token uint64, key string) {
		a := c.put(key, token, "of "+key)
		if a.status != 200 {
			t.Fatalf("put: %s", a)
		}
		puts[a.number("version")] = key
	}
	for i := range 5 {
		name := fmt.Sprintf("job%d", i)
		token := c.mustAcquire(name, time.Minute)
		grants[token] = name
		for k := range 4 {
			put(token, fmt.Sprintf("%s/%d", name, k))
		}
		if a := c.release(name, token); a.status != 200 {
			t.Fatalf("release: %s", a)
		}
	}
	// With all members on record nothing but a Tick commits behind this, and it names
	// what the leader has applied.
	eventually(t, "all members are on record", func() bool {
		known := 0
		for _, m := range c.mustDo("GET", "/v1/cluster", "").list("nodes") {
			if m["http_addr"] != "" && m["role"] == "voter" {
				known++
			}
		}
		return known == 3
	})
	last := c.mustAcquire("held", time.Minute)
	grants[last] = "held"
	eventually(t, "a Tick follows", func() bool { return c.mustDo("GET", "/v1/cluster", "").number("index") > last })
	if out, errs, code := dump(t, c.nodes[0].dir); code != exitRefused || out != "" || !strings.Contains(errs, "in use: stop the node first") {
		t.Errorf("a running node: %d %s%s", code, out, errs)
	}
	c.kill(c.nodes...)

	infos, logs := make([]logInfo, 3), make([]map[uint64]check.Entry, 3)
	var committed uint64
	for i, n := range c.nodes {
		infos[i], logs[i] = dumped(t, n)
		committed = max(committed, infos[i].Committed)
		if infos[i].Node != n.name || infos[i].ClusterID != infos[0].ClusterID || infos[i].First != 1 || infos[i].Last < 35 || infos[i].FromJournal == 0 {
			t.Errorf("%s: %+v", n.name, infos[i])
		}
	}
	if committed < last {
		t.Errorf("known to be committed up to %d, and %d was acknowledged before a Tick", committed, last)
	}
	for i, log := range logs {
		for index, e := range log {
			o, ok := logs[(i+1)%3][index]
			if !ok {
				continue
			}
			if o.Term != e.Term && index > committed {
				continue // not committed in one of them
			}
			if o.Term != e.Term || !proto.Equal(o.Command, e.Command) {
				t.Errorf("entry %d: %v in one log, %v in another", index, e, o)
			}
		}
	}
	have := func(index uint64, is func(*fsmpb.Command) bool) (nodes int) {
		for _, log := range logs {
			if e, ok := log[index]; ok && e.Command != nil && is(e.Command) {
				nodes++
			}
		}
		return nodes
	}
	for index, key := range puts {
		if n := have(index, func(c *fsmpb.Command) bool {
			ops := c.GetWrite().GetOps()
			return len(ops) == 1 && ops[0].Key == key && string(ops[0].Value) == "of "+key
		}); n < 2 {
			t.Errorf("%d nodes have the write of %s at %d, where it was acknowledged", n, key, index)
		}
	}
	for index, name := range grants {
		if n := have(index, func(c *fsmpb.Command) bool { return c.GetAcquire().GetName() == name }); n < 2 {
			t.Errorf("%d nodes have the acquisition of %s at %d, its token", n, name, index)
		}
	}

	for _, n := range c.nodes {
		c.start(n)
	}
	c.awaitReady(c.nodes...)
	token := c.mustAcquire("after", time.Minute)
	if token <= committed {
		t.Errorf("token %d after a log that is committed up to %d", token, committed)
	}
	put(token, "after")
}

func TestDebugLogRefuses(t *testing.T) {
	if _, errs, code := dump(t, ""); code != exitUsage || !strings.Contains(errs, "--data-dir is needed") {
		t.Errorf("no directory: %d %s", code, errs)
	}
	if _, errs, code := dump(t, t.TempDir(), "--from", "3", "--to", "2"); code != exitUsage || !strings.Contains(errs, "--from 3 is after --to 2") {
		t.Errorf("an empty range: %d %s", code, errs)
	}
	if out, errs, code := dump(t, t.TempDir(), "-o", "json"); code != exitRefused || out != "" || !strings.Contains(errs, "no data directory of a node") {
		t.Errorf("an empty directory: %d %s%s", code, out, errs)
	}
}

// shown are entries of every kind, and what a person sees of them.
func shown() (entries []cluster.LogEntry, lines []string) {
	add := func(line string, e cluster.LogEntry) {
		e.Index, e.Term = uint64(len(entries)+1), 2
		entries = append(entries, e)
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%8d     2  %s", e.Index, line), " "))
	}
	command := func(line string, c *fsmpb.Command) { add(line, cluster.LogEntry{Type: "command", Command: c}) }
	add(`configuration id-1=a:1 (voter), id-2=a:2 (nonvoter)`, cluster.LogEntry{
		Type: "configuration", Servers: []cluster.LogServer{{ID: "id-1", Addr: "a:1", Voter: true}, {ID: "id-2", Addr: "a:2"}},
	})
	add(`noop`, cluster.LogEntry{Type: "noop"})
	command(`acquire       jobs/nightly holder="h 1" ttl=10s wait=1m0s slots=4 take=1 grace=5s "a":"b<" principal="p" key=k1 now=1.5s`, &fsmpb.Command{NowMs: 1500, Term: 2, Op: &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{
		Name: "jobs/nightly", Holder: "h 1", TtlMs: 10_000, WaitMs: 60_000, Slots: 4, GraceMs: 5000, Principal: "p",
		Metadata: []*fsmpb.Pair{{Key: "a", Value: "b<"}}, Request: &fsmpb.Request{Key: "k1", Path: "x", Digest: []byte{1, 2}},
	}}})
	renewals := []*fsmpb.Renewal{{Name: "a", Token: 1 << 52, TtlMs: 1000}, {Name: "b", Token: 2}, {Name: "c", Token: 3}, {Name: "d", Token: 4}, {Name: "e", Token: 5}}
	command(`renew         a token=4503599627370496 ttl=1s b token=2 c token=3 d token=4 and 1 more`, &fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: &fsmpb.Renew{Renewals: renewals}}})
	command(`release       a token=7 key=k2 (made by the server)`, &fsmpb.Command{Op: &fsmpb.Command_Release{Release: &fsmpb.Release{Name: "a", Token: 7, Request: &fsmpb.Request{Key: "k2", ServerMade: true}}}})
	command(`cancel        a attempt=2 key=k3`, &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: "a", Attempt: 2, Request: &fsmpb.Request{Key: "k3"}}}})
	command(`advance`, &fsmpb.Command{Op: &fsmpb.Command_Advance{Advance: &fsmpb.Advance{}}})
	command(`write         put r 40 bytes "00000000000000000000000000000000"... type="text/plain" delete s if_version=0 token=9 guard=held lease=a`, &fsmpb.Command{Op: &fsmpb.Command_Write{Write: &fsmpb.Write{
		Token: 9, Guard: fsmpb.Guard_GUARD_HELD, Lease: "a", Ops: []*fsmpb.WriteOp{
			{Kind: fsmpb.WriteOp_KIND_PUT, Key: "r", Value: bytes.Repeat([]byte("0"), 40), ContentType: "text/plain"},
			{Kind: fsmpb.WriteOp_KIND_DELETE, Key: "s", IfVersion: new(uint64)},
		},
	}}})
	command(`write         put b 3 bytes "\x00\n\xff" token=9`, &fsmpb.Command{Op: &fsmpb.Command_Write{Write: &fsmpb.Write{
		Token: 9, Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_PUT, Key: "b", Value: []byte("\x00\n\xff")}},
	}}})
	command(`set_node      n1 id=id-1 raft=a:1 http=a:2 voter=true cluster=c`, &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{
		ClusterId: "c", Node: &fsmpb.Node{Name: "n1", Id: "id-1", RaftAddr: "a:1", HttpAddr: "a:2", Voter: true},
	}}})
	command(`remove_node   n1 id=id-1`, &fsmpb.Command{Op: &fsmpb.Command_RemoveNode{RemoveNode: &fsmpb.RemoveNode{Name: "n1", Id: "id-1"}}})
	command(`tick          digest=00000000000000ff at=11`, &fsmpb.Command{Op: &fsmpb.Command_Tick{Tick: &fsmpb.Tick{Digest: 255, DigestIndex: 11, DigestVersion: 1}}})
	return entries, lines
}

// A line says of an entry of any kind what a person looks for.
func TestDebugLogText(t *testing.T) {
	entries, lines := shown()
	entries = append(entries, cluster.LogEntry{Index: 99, Term: 2, Type: "command", Data: []byte("\xff"), Err: errors.New("no")})
	lines = append(lines, `      99     2  command       CANNOT BE DECODED: no (1 bytes "\xff")`)
	for i := range entries {
		var b bytes.Buffer
		w := bufio.NewWriter(&b)
		if err := errors.Join(writeEntryText(w, &entries[i]), w.Flush()); err != nil {
			t.Fatal(err)
		}
		if b.String() != lines[i]+"\n" {
			t.Errorf("got  %swant %s", b.String(), lines[i])
		}
	}
}

func jsonDump(t *testing.T, entries []cluster.LogEntry) string {
	t.Helper()
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	last := entries[len(entries)-1].Index
	err := writeInfoJSON(w, cluster.LogInfo{Node: "n1", First: 1, Last: last}, last)
	for i := range entries {
		err = errors.Join(err, writeEntryJSON(w, &entries[i]))
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What is printed in JSON is read back as it was, entries of every kind.
func TestDebugLogJSONIsReadBack(t *testing.T) {
	entries, _ := shown()
	text := jsonDump(t, entries)
	got, err := check.ReadEntries(strings.NewReader(text))
	if err != nil || len(got) != len(entries) {
		t.Fatalf("%d entries of %d, %v\n%s", len(got), len(entries), err, text)
	}
	for i, e := range got {
		want := entries[i]
		if e.Index != want.Index || e.Term != want.Term || (e.Command == nil) != (want.Command == nil) || !proto.Equal(e.Command, want.Command) {
			t.Errorf("got %v, want %v", e, want)
		}
	}
	if want := `{"index":5,"term":2,"type":"command","command":{"release":{"name":"a","token":"7","request":{"key":"k2","server_made":true}}}}`; strings.Split(text, "\n")[5] != want {
		t.Errorf("the form has changed:\n%s\nwant\n%s", strings.Split(text, "\n")[5], want)
	}
	bad := append(entries[:2:2], cluster.LogEntry{Index: 3, Term: 2, Type: "command", Data: []byte("\xff"), Err: errors.New("no")})
	if _, err := check.ReadEntries(strings.NewReader(jsonDump(t, bad))); err == nil || !strings.Contains(err.Error(), "entry 3: it could not be decoded: no") {
		t.Errorf("an entry that cannot be decoded: %v", err)
	}
}
