package cluster

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"google.golang.org/protobuf/proto"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// madeLog makes a data directory with these entries settled and, unless at is 0, an
// empty snapshot with this base.
func madeLog(t *testing.T, logs []*raft.Log, at, term, base uint64) string {
	t.Helper()
	dir := t.TempDir()
	d := &dataDir{path: dir}
	if err := d.save(identity{Version: identityVersion, Name: "n1", ID: "id-n1", ClusterID: "c", HasLog: true}); err != nil {
		t.Fatal(err)
	}
	bolt, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer bolt.Close()
	if err := bolt.Set(logOwner, []byte("id-n1")); err != nil {
		t.Fatal(err)
	}
	if err := (&soundStore{bolt, newDisk(hclog.NewNullLogger(), newMetrics(), func(why string) { t.Error(why) })}).StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
	if at == 0 {
		return dir
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	sink, err := snaps.Create(1, at, term, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := fsm.New().Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if base > 0 { // a snapshot with a base, as far as its header
		h, err := fsm.ReadSnapshotHeader(&b)
		if err != nil {
			t.Fatal(err)
		}
		h.Base, h.Index = base, base+at
		frame, err := proto.Marshal(&fsmpb.Record{Record: &fsmpb.Record_Header{Header: h}})
		if err != nil {
			t.Fatal(err)
		}
		b.Reset()
		b.WriteString("FENCEPOST\n")
		b.Write(append(binary.AppendUvarint(nil, uint64(len(frame))), frame...))
	}
	if _, err := sink.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// commands are entries of one term that end waits and nothing else.
func commands(t *testing.T, first, last, term uint64) (logs []*raft.Log) {
	for i := first; i <= last; i++ {
		logs = append(logs, command(t, i, term, &fsmpb.Command{Op: &fsmpb.Command_Advance{Advance: &fsmpb.Advance{}}}))
	}
	return logs
}

func command(t *testing.T, index, term uint64, c *fsmpb.Command) *raft.Log {
	t.Helper()
	b, err := fsm.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: b}
}

func tick(t *testing.T, index, term, digestAt uint64) *raft.Log {
	return command(t, index, term, &fsmpb.Command{Op: &fsmpb.Command_Tick{Tick: &fsmpb.Tick{DigestIndex: digestAt}}})
}

// What a leader's snapshot replaced is not told as part of the log, and proves nothing.
func TestReadLogLeavesOutWhatASnapshotReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		logs                   []*raft.Log
		at, term               uint64
		first, last, committed uint64
		abandoned              int
	}{
		"a whole log":         {logs: commands(t, 1, 12, 2), first: 1, last: 12},
		"with a snapshot":     {logs: commands(t, 1, 12, 2), at: 9, term: 2, first: 1, last: 12, committed: 9},
		"and a Tick":          {logs: append(commands(t, 1, 11, 2), tick(t, 12, 2, 10)), at: 9, term: 2, first: 1, last: 12, committed: 10},
		"an older Tick":       {logs: append(commands(t, 1, 11, 2), tick(t, 12, 2, 5)), at: 9, term: 2, first: 1, last: 12, committed: 9},
		"a gap":               {logs: append(commands(t, 1, 3, 1), commands(t, 10, 12, 2)...), at: 9, term: 2, first: 10, last: 12, committed: 9, abandoned: 3},
		"another term":        {logs: append(commands(t, 1, 9, 1), commands(t, 10, 12, 2)...), at: 9, term: 2, first: 10, last: 12, committed: 9, abandoned: 9},
		"all of it is before": {logs: append(commands(t, 1, 3, 1), tick(t, 4, 1, 3)), at: 9, term: 2, committed: 9, abandoned: 4},
		"nothing":             {},
		"only a snapshot":     {at: 9, term: 2, committed: 9},
	} {
		t.Run(name, func(t *testing.T) {
			info, _ := readLog(t, madeLog(t, c.logs, c.at, c.term, 0))
			if info.First != c.first || info.Last != c.last || info.Committed != c.committed || info.Abandoned != c.abandoned {
				t.Errorf("got %+v, want %+v", info, c)
			}
			if info.Snapshot != (LogPosition{c.at, c.term}) {
				t.Errorf("snapshot %+v", info.Snapshot)
			}
		})
	}
	gap := append(commands(t, 1, 3, 1), commands(t, 10, 12, 2)...)
	if info, err := ReadLog(madeLog(t, gap, 0, 0, 0), nil); err == nil || !strings.Contains(err.Error(), "entry 4 is missing") {
		t.Errorf("a gap that no snapshot explains: %+v, %v", info, err)
	}
}

// Indexes are the public ones.
func TestReadLogCountsTheBase(t *testing.T) {
	const base = 1 << 32
	info, entries := readLog(t, madeLog(t, append(commands(t, 8, 11, 2), tick(t, 12, 2, base+11)), 9, 2, base))
	if info.First != base+8 || info.Last != base+12 || info.Snapshot.Index != base+9 || info.Committed != base+11 || len(entries) != 5 {
		t.Errorf("%+v, %d entries", info, len(entries))
	}
}

// An entry that cannot be decoded is told as such, with its bytes, and does not hide
// the others; Raft's own are told by name.
func TestReadLogTellsWhatItCannotDecode(t *testing.T) {
	conf := raft.Configuration{Servers: []raft.Server{{ID: "id-n1", Address: "a:1"}, {ID: "id-n2", Address: "a:2", Suffrage: raft.Nonvoter}}}
	logs := append([]*raft.Log{
		{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)},
		{Index: 2, Term: 1, Type: raft.LogNoop},
		{Index: 3, Term: 1, Type: raft.LogBarrier},
		{Index: 4, Term: 1, Type: raft.LogCommand, Data: []byte("\xff\xff")},
		{Index: 5, Term: 1, Type: raft.LogCommand, Data: []byte("\xf8\x07\x01")}, // field 127
		{Index: 6, Term: 1, Type: raft.LogConfiguration, Data: []byte("\xc1")},
	}, commands(t, 7, 7, 1)...)
	var got []LogEntry
	if _, err := ReadLog(madeLog(t, logs, 0, 0, 0), func(e LogEntry) error { got = append(got, e); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(logs) {
		t.Fatalf("%d entries, want %d", len(got), len(logs))
	}
	for i, want := range []struct {
		kind string
		bad  bool
	}{{"configuration", false}, {"noop", false}, {"barrier", false}, {"command", true}, {"command", true}, {"configuration", true}, {"command", false}} {
		e := got[i]
		if e.Type != want.kind || (e.Err != nil) != want.bad || (e.Command != nil) != (want.kind == "command" && !want.bad) || string(e.Data) != string(logs[i].Data) {
			t.Errorf("entry %d: %+v, want %+v", i+1, e, want)
		}
	}
	if s := got[0].Servers; len(s) != 2 || s[0] != (LogServer{"id-n1", "a:1", true}) || s[1] != (LogServer{"id-n2", "a:2", false}) {
		t.Errorf("servers: %+v", s)
	}
}
