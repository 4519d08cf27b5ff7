package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// The data directory of a node is a vector of the format, too (see package fsm):
// node.tar.gz is one whose process was killed, with entries in raft.db, a snapshot,
// and entries in the journal; node.jsonl is what is in it.
var writeVectors = flag.Bool("vectors", false, "write the vectors of the present version of the log's format")

const formatDir = "../testdata/format"

// A nodeVector is the first line of node.jsonl; a line for each entry follows.
type nodeVector struct {
	Info   LogInfo           `json:"info"`
	Digest string            `json:"digest"` // of the state after all entries
	Keys   map[string]string `json:"keys"`
	Tokens map[string]uint64 `json:"tokens"` // of held leases, by name
}

type nodeVectorEntry struct {
	Index   uint64          `json:"index"`
	Term    uint64          `json:"term"`
	Type    string          `json:"type"`
	Command json.RawMessage `json:"command,omitempty"`
	Servers []LogServer     `json:"servers,omitempty"`
}

// nodeLines is what node.jsonl says of a directory.
func nodeLines(t *testing.T, dir string) []byte {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	line := func(v any) {
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	info, entries := readLog(t, dir)
	r := Recovery{dir: &dataDir{path: dir}} // replays all of it, and changes nothing
	if err := r.replay(); err != nil {
		t.Fatal(err)
	}
	v := nodeVector{Info: info, Digest: fmt.Sprintf("%016x", r.machine.state.Digest())}
	v.Keys, v.Tokens = keysAndTokens(r.machine.state)
	line(v)
	for _, e := range entries {
		l := nodeVectorEntry{Index: e.Index, Term: e.Term, Type: e.Type, Servers: e.Servers}
		if e.Err != nil {
			t.Fatalf("entry %d: %v", e.Index, e.Err)
		}
		if e.Command != nil {
			b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e.Command)
			if err != nil {
				t.Fatal(err)
			}
			l.Command = b // the encoder takes out protojson's random spaces
		}
		line(l)
	}
	return out.Bytes()
}

func keysAndTokens(s *fsm.State) (keys map[string]string, tokens map[string]uint64) {
	keys, tokens = map[string]string{}, map[string]uint64{}
	all, _ := s.Keys("", "", 1000)
	for _, k := range all {
		keys[k.Key] = string(k.Value)
	}
	leases, _ := s.Leases("", "", 1000)
	for _, l := range leases {
		if h := l.First(); h != nil {
			tokens[l.Name] = h.Token
		}
	}
	return keys, tokens
}

// killedDirectory makes such a directory: a node has worked, was stopped, has worked
// again, taken a snapshot, and worked on when it was killed.
func killedDirectory(t *testing.T) (dir string) {
	t.Helper()
	live := t.TempDir()
	d, err := openDataDir(live)
	if err != nil {
		t.Fatal(err)
	}
	id := identity{Version: identityVersion, Name: "n1", ID: "n1-0123456789abcdef", ClusterID: fmt.Sprintf("%032d", 7)}
	id.Bootstrap = []raftServer{{ID: id.ID, Addr: "127.0.0.1:1"}}
	if err := errors.Join(d.save(id), d.close()); err != nil {
		t.Fatal(err)
	}
	n := startAlone(t, live, "n1")
	work(t, n, "settled")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = startAlone(t, live, "n1")
	work(t, n, "in-snapshot")
	if err := n.member.Load().raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	work(t, n, "in-journal")
	dir = filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(dir, os.DirFS(live)); err != nil { // what a kill would leave now
		t.Fatal(err)
	}
	return dir
}

func work(t *testing.T, n *Node, name string) {
	t.Helper()
	eventually(t, "it has recorded itself", func() bool {
		m := n.machine.members()
		return len(m) == 1 && m[0].RaftAddr == n.cfg.RaftAddr
	})
	request := &fsmpb.Request{Key: name, Path: "acquire " + name, Digest: []byte(name)}
	a, err := n.Acquire(t.Context(), time.Now(), &fsmpb.Acquire{Name: name, Holder: "h", TtlMs: 3_600_000, Request: request})
	if err != nil || a.Outcome.Code != fsmpb.Code_CODE_OK {
		t.Fatal(a.Outcome, err)
	}
	w, err := n.Write(t.Context(), time.Now(), &fsmpb.Write{
		Token: a.Outcome.Token, Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_PUT, Key: name, Value: []byte("value of " + name)}},
	})
	if err != nil || w.Outcome.Code != fsmpb.Code_CODE_OK {
		t.Fatal(w.Outcome, err)
	}
	if _, err := n.propose(t.Context(), time.Now(), n.tick()); err != nil {
		t.Fatal(err)
	}
}

// TestP9_VectorsOfDataDirectories: the directories that all versions left are read
// as what they were, entry by entry, in raft.db, snapshot and journal; and a node
// starts from each, and has everything.
func TestP9_VectorsOfDataDirectories(t *testing.T) {
	if *writeVectors {
		writeNodeVector(t)
	}
	for version := 1; version <= fsm.Understands; version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			from := filepath.Join(formatDir, fmt.Sprint(version))
			dir := unpacked(t, filepath.Join(from, "node.tar.gz"))
			want, err := os.ReadFile(filepath.Join(from, "node.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			if got := nodeLines(t, dir); !bytes.Equal(got, want) {
				t.Errorf("the directory is read as\n%s\nand was\n%s", got, want)
			}
			var v nodeVector
			if err := json.NewDecoder(bytes.NewReader(want)).Decode(&v); err != nil {
				t.Fatal(err)
			}
			if i := v.Info; i.FromJournal == 0 || i.Snapshot.Index == 0 || i.First >= i.Snapshot.Index || i.Last <= i.Snapshot.Index || len(v.Keys) != 3 || len(v.Tokens) != 3 {
				t.Fatalf("the vector lacks something: %+v", v)
			}
			n := startAlone(t, dir, v.Info.Node)
			var keys map[string]string
			var tokens map[string]uint64
			if _, err := n.Read(t.Context(), false, func(s *fsm.State) { keys, tokens = keysAndTokens(s) }); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(keys, tokens) != fmt.Sprint(v.Keys, v.Tokens) {
				t.Errorf("the node has %v and %v, want %v and %v", keys, tokens, v.Keys, v.Tokens)
			}
			work(t, n, "later")
		})
	}
}

func writeNodeVector(t *testing.T) {
	to := filepath.Join(formatDir, fmt.Sprint(fsm.Understands))
	if _, err := os.Stat(filepath.Join(to, "released")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("version %d has been released: its vectors stay as they are (%v)", fsm.Understands, err)
	}
	dir := killedDirectory(t)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	w := tar.NewWriter(zip)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"node.tar.gz": packed.Bytes(), "node.jsonl": nodeLines(t, dir)} {
		if err := os.WriteFile(filepath.Join(to, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func unpacked(t *testing.T, archive string) (dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o700)
		} else {
			var b []byte
			if b, err = io.ReadAll(r); err == nil {
				err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
