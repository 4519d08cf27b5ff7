package fsm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"fencepost/fsm/fsmpb"
)

// Vectors are what a version wrote, kept for ever: testdata/format has a directory
// for each version of the log's format (see Understands), with
//
//	about.json       what wrote it
//	log.jsonl        entries, with what they decided and the digest after each
//	state.snapshot   the state after them, and state.jsonl its records
//	fields.snapshot  records with every field set, and fields.jsonl the same
//
// and the data directory of a node (package cluster). `go test ./fsm ./cluster -run
// Vectors -vectors` writes those of the present version, unless that was released:
// then its directory has a file "released", and a change needs a new version.
var writeVectors = flag.Bool("vectors", false, "write the vectors of the present version of the log's format")

const formatDir = "../testdata/format"

type vectorAbout struct {
	Understands     uint32 `json:"understands"`
	DigestVersion   uint32 `json:"digest_version"`
	SnapshotVersion uint32 `json:"snapshot_version"`
}

// A vectorEntry is a line of log.jsonl.
type vectorEntry struct {
	Index   uint64          `json:"index"` // the public one
	Term    uint64          `json:"term"`
	Data    []byte          `json:"data"` // as it is in the log
	Command json.RawMessage `json:"command"`
	Outcome json.RawMessage `json:"outcome"`
	Digest  string          `json:"digest"` // of the state after it
}

func hex(digest uint64) string { return fmt.Sprintf("%016x", digest) }

// asJSON is a message in one line that is always the same.
func asJSON(t *testing.T, m proto.Message) json.RawMessage {
	t.Helper()
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func readVector(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func jsonLines[T any](t *testing.T, b []byte) (lines []T) {
	t.Helper()
	for line := range bytes.Lines(b) {
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, v)
	}
	return lines
}

// vectorDirs are the directories of all versions, oldest first.
func vectorDirs(t *testing.T) (dirs []string) {
	t.Helper()
	for version := uint32(1); version <= Understands; version++ {
		dirs = append(dirs, filepath.Join(formatDir, strconv.Itoa(int(version))))
	}
	found, err := filepath.Glob(formatDir + "/[0-9]*")
	if err != nil || len(found) != len(dirs) {
		t.Fatalf("%s has the vectors of %d versions, and this program understands %d: see docs/architecture.md, \"Upgrades\"", formatDir, len(found), Understands)
	}
	return dirs
}

// storyFiles are the files of the present version, made anew.
func storyFiles(t *testing.T) map[string][]byte {
	t.Helper()
	file := formatDir + "/story.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := newScriptRun(t)
	files := map[string][]byte{}
	line := func(name string, v any) {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = append(append(files[name], b...), '\n')
	}
	r.applied = func(index, term uint64, c *fsmpb.Command, o *fsmpb.Outcome) {
		line("log.jsonl", vectorEntry{index, term, encoded(t, c), asJSON(t, c), asJSON(t, o), hex(r.s.Digest())})
	}
	for _, c := range readScript(string(text)) {
		c.run(r, file)
	}
	files["state.snapshot"] = snapshotBytes(t, r.s)
	full := fullRecords()
	trailer := &fsmpb.Trailer{Records: uint64(len(full)), Digest: digestOf(t, full), DigestVersion: DigestVersion}
	files["fields.snapshot"] = sealed(t, append(full, &fsmpb.Record{Record: &fsmpb.Record_Trailer{Trailer: trailer}})...)
	for _, name := range []string{"state", "fields"} {
		for _, rec := range recordsOf(t, files[name+".snapshot"]) {
			line(name+".jsonl", asJSON(t, rec))
		}
	}
	line("about.json", vectorAbout{Understands, DigestVersion, snapshotVersion})
	return files
}

// recordsOf are the records of a snapshot.
func recordsOf(t *testing.T, snapshot []byte) (records []*fsmpb.Record) {
	t.Helper()
	in := &snapshotReader{r: bufio.NewReader(bytes.NewReader(snapshot)), sum: sha256.New()}
	err := in.magic(snapshotMagic)
	for err == nil {
		var rec *fsmpb.Record
		if rec, err = in.record(); rec == nil {
			break
		}
		records = append(records, rec)
	}
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// everything is all that a state has.
func everything(t *testing.T, s *State) (text string) {
	t.Helper()
	for _, rec := range recordsOf(t, snapshotBytes(t, s)) {
		text += string(asJSON(t, rec)) + "\n"
	}
	return text
}

// TestP14_VectorsOfThisVersion: what this program writes is what the vectors of its
// version have, byte for byte. A difference is a change of the format, or of what an
// entry does, and needs a new version once this one has been released: nodes of
// both run side by side during an upgrade.
func TestP14_VectorsOfThisVersion(t *testing.T) {
	dir := filepath.Join(formatDir, strconv.Itoa(Understands))
	files := storyFiles(t)
	if *writeVectors {
		if _, err := os.Stat(filepath.Join(dir, "released")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("version %d has been released: its vectors stay as they are (%v)", Understands, err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, b := range files {
			if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, got := range files {
		if want := readVector(t, dir, name); !bytes.Equal(got, want) {
			t.Errorf("%s/%s is not what this version writes, %s", dir, name, firstDifference(got, want))
		}
	}
}

func firstDifference(got, want []byte) string {
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			was := "nothing"
			if i < len(w) {
				was = w[i]
			}
			return fmt.Sprintf("from line %d on: %q, and not %q", i+1, g[i], was)
		}
	}
	return fmt.Sprintf("it ends at line %d of %d", len(g), len(w))
}

// TestP14_VectorsOfAllVersions: the logs of all versions decode to the same
// commands, which do what they did; their snapshots load to the same records.
func TestP14_VectorsOfAllVersions(t *testing.T) {
	for _, dir := range vectorDirs(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var about vectorAbout
			if err := json.Unmarshal(readVector(t, dir, "about.json"), &about); err != nil {
				t.Fatal(err)
			}
			s := New()
			for _, e := range jsonLines[vectorEntry](t, readVector(t, dir, "log.jsonl")) {
				replayVector(t, s, about, e)
			}
			for _, name := range []string{"state", "fields"} {
				loaded := loadVector(t, dir, name)
				if name == "state" && (loaded.Digest() != s.Digest() || everything(t, loaded) != everything(t, s)) {
					t.Errorf("the snapshot of the log's state has other contents than the log replayed")
				}
			}
		})
	}
}

func replayVector(t *testing.T, s *State, about vectorAbout, e vectorEntry) {
	t.Helper()
	c, err := Decode(e.Data)
	if err != nil {
		t.Fatalf("entry %d: %v", e.Index, err)
	}
	if got := asJSON(t, c); !bytes.Equal(got, e.Command) || !bytes.Equal(encoded(t, c), e.Data) {
		t.Errorf("entry %d is %s, was %s", e.Index, got, e.Command)
	}
	if need := Needs(c); need > about.Understands {
		t.Errorf("entry %d needs version %d, and was written by version %d", e.Index, need, about.Understands)
	}
	o, _, err := s.Apply(e.Index, e.Term, c)
	if err != nil {
		t.Fatal(err)
	}
	if got := asJSON(t, o); !bytes.Equal(got, e.Outcome) {
		t.Errorf("entry %d decides %s, and decided %s", e.Index, got, e.Outcome)
	}
	if got := hex(s.Digest()); about.DigestVersion == DigestVersion && got != e.Digest {
		t.Errorf("entry %d leaves digest %s, and left %s", e.Index, got, e.Digest)
	}
}

// loadVector reads a snapshot, and sees that it has the records that it had, and
// that nothing is lost when it is written again.
func loadVector(t *testing.T, dir, name string) *State {
	t.Helper()
	b := readVector(t, dir, name+".snapshot")
	s, err := ReadSnapshot(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	want := jsonLines[json.RawMessage](t, readVector(t, dir, name+".jsonl"))
	for i, rec := range recordsOf(t, b) {
		if got := asJSON(t, rec); i >= len(want) || !bytes.Equal(got, want[i]) {
			t.Errorf("%s: record %d is %s", name, i, got)
		}
	}
	if again, err := ReadSnapshot(bytes.NewReader(snapshotBytes(t, s))); err != nil || everything(t, again) != everything(t, s) {
		t.Errorf("%s: written again it is another state: %v", name, err)
	}
	return s
}
