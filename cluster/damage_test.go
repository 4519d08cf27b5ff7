package cluster

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// stored is all that a node needs of what its data directory has: votes, and what is
// behind the snapshot. Entries that the snapshot has as well are for followers, who
// get the snapshot if one is missing.
func stored(dir string) (string, error) {
	var b strings.Builder
	s, err := OpenLog(dir)
	if err != nil {
		return "", err
	}
	defer s.Close()
	i := s.Info()
	fmt.Fprintf(&b, "snapshot %v, entries to %d, term %d, vote for %s in %d\n", i.Snapshot, i.Last, i.CurrentTerm, i.VotedFor, i.VotedInTerm)
	err = s.Each(i.Snapshot.Index+1, 0, func(e LogEntry) error {
		fmt.Fprintf(&b, "%d %d %s %x\n", e.Index, e.Term, e.Type, e.Data)
		return nil
	})
	return b.String(), err
}

// crashed is a data directory as a crash leaves it: a snapshot, entries that have
// settled behind it, and others in the journal. Its raft.db has no more pages than are
// in use.
func crashed(t *testing.T) (string, Config) {
	t.Helper()
	_, _, _, n := killedNode(t)
	cfg := n.cfg
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = started(t, cfg) // and all has settled
	token := mustHold(t, []*Node{n}, "again")
	for i := range 5 {
		store(t, []*Node{n}, token, fmt.Sprint("in the journal/", i), []byte("v"))
	}
	dir := copied(t, cfg.DataDir)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(dir, "raft.db")
	b, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	var pages uint64
	for page := range int64(2) {
		pages = max(pages, u64(b[page*int64(os.Getpagesize())+boltPageHead+40:]))
	}
	if err := os.Truncate(db, int64(pages)*int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	cfg.DataDir = dir
	return dir, cfg
}

// one finds the file that a pattern means.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v %v", pattern, found, err)
	}
	return found[0]
}

// Any one bit of what is stored flips. Either the start is refused, or all is there
// that was: never less, never something else, never a panic.
func TestP9_B79_AnyFlippedBit(t *testing.T) {
	dir, cfg := crashed(t)
	want, err := stored(dir)
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	start := func() error {
		n := newNode(cfg)
		defer n.close()
		n.dir = &dataDir{path: dir}
		if n.id, err = readIdentity(dir); err != nil {
			return err
		}
		bolt, err := n.openLog()
		if err != nil {
			return err
		}
		return bolt.Close()
	}
	for pattern, flips := range map[string]int{
		"raft.db": 80, "snapshots/*/state.bin": 30, "snapshots/*/meta.json": 30, "snapshots/*/meta.sum": 10,
	} {
		path := one(t, dir, pattern)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for i := range flips {
			at := rng.IntN(len(whole))
			if i%4 == 0 { // where the pages say what they are
				at = at/4096*4096 + rng.IntN(min(96, len(whole)-at/4096*4096))
			}
			spoiled := slices.Clone(whole)
			spoiled[at] ^= 1 << rng.IntN(8)
			if err := os.WriteFile(path, spoiled, 0o600); err != nil {
				t.Fatal(err)
			}
			if start() != nil {
				refused++
				continue
			}
			if got, err := stored(dir); err != nil || got != want {
				t.Errorf("seed %d: %s with byte %d of %d flipped to %02x was taken: %v\n%s\nwas\n%s", seed, path, at, len(whole), spoiled[at], err, got, want)
			}
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := start(); err != nil {
			t.Fatalf("%s is whole again: %v", path, err)
		}
		t.Logf("%s: %d of %d flips refused", pattern, refused, flips)
		if refused == 0 {
			t.Errorf("nothing in %s was found out", pattern)
		}
	}
}

// What happens to files after a loss of power, or to people who tidy up: each is
// refused with what it is about, and what to do.
func TestP9_B79_ADamagedDirectory(t *testing.T) {
	dir, cfg := crashed(t)
	page := int64(os.Getpagesize())
	write := func(pattern string, change func(b []byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := one(t, dir, pattern)
			b, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(b), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(pattern string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.RemoveAll(one(t, dir, pattern)); err != nil {
				t.Fatal(err)
			}
		}
	}
	cut := func(bytes int64) func([]byte) []byte {
		return func(b []byte) []byte { return b[:max(0, int64(len(b))-bytes)] }
	}
	zero := func(from, to int64) func([]byte) []byte {
		return func(b []byte) []byte { clear(b[from:min(to, int64(len(b)))]); return b }
	}
	flip := func(at int64) func([]byte) []byte { return func(b []byte) []byte { b[at] ^= 4; return b } }
	const snapshot = "snapshots/*"
	for name, c := range map[string]struct {
		spoil func(*testing.T, string)
		want  string
	}{
		"log: a page less":              {write("raft.db", cut(page)), "cut short"},
		"log: half of it":               {write("raft.db", func(b []byte) []byte { return b[:len(b)/2] }), "cut short"},
		"log: part of the first page":   {write("raft.db", func(b []byte) []byte { return b[:100] }), "meta page"},
		"log: empty":                    {write("raft.db", cut(1<<40)), "is not the log that node"},
		"log: the first page flipped":   {write("raft.db", flip(boltPageHead+20)), "meta page 0"},
		"log: the second page flipped":  {write("raft.db", flip(page+boltPageHead+20)), "meta page 1"},
		"log: the first pages are zero": {write("raft.db", zero(0, 2*page)), "meta page 0"},
		"log: all but these is zero":    {write("raft.db", zero(2*page, 1<<40)), "is none, or another"},
		"log: an entry changed": {write("raft.db", func(b []byte) []byte {
			return bytes.Replace(b, []byte("of after/"), []byte("of After/"), -1)
		}), "differs from its checksum"},
		"log: the term changed": {write("raft.db", func(b []byte) []byte {
			// The value of CurrentTerm: the seal, the checksum and eight bytes.
			for at := 0; ; {
				i := bytes.Index(b[at:], []byte("CurrentTerm"+valueSeal))
				if i < 0 {
					return b
				}
				at += i + len("CurrentTerm"+valueSeal) + 4 + 8
				b[at-1] ^= 2
			}
		}), "CurrentTerm differs"},
		"log: lost":                  {remove("raft.db"), "is not the log that node"},
		"journal: lost":              {remove("raft.journal1"), "not the journal"},
		"journal: cut short":         {write("raft.journal0", cut(page)), "not the journal"},
		"journal: all zero":          {write("raft.journal0", zero(0, 1<<40)), "not the journal"},
		"journal: a record is zero":  {write("raft.journal0", zero(2*page, 3*page)), "cannot be read"},
		"journal: a record flipped":  {write("raft.journal0", flip(2*page+recordHeadSize+1)), "cannot be read"},
		"journal: the first flipped": {write("raft.journal0", flip(page+9)), "cannot be read"},
		"snapshot: state flipped":    {write(snapshot+"/state.bin", flip(20)), "checksum differs"},
		"snapshot: state cut short":  {write(snapshot+"/state.bin", cut(1)), "checksum differs"},
		"snapshot: state zero":       {write(snapshot+"/state.bin", zero(0, 1<<40)), "checksum differs"},
		"snapshot: state lost":       {remove(snapshot + "/state.bin"), "no such file"},
		"snapshot: meta lost":        {remove(snapshot + "/meta.json"), "no such file"},
		"snapshot: meta empty":       {write(snapshot+"/meta.json", cut(1<<40)), "meta data is damaged"},
		"snapshot: meta changed": {write(snapshot+"/meta.json", func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"ConfigurationIndex":1`), []byte(`"ConfigurationIndex":3`), 1)
		}), "meta data is damaged"},
		"snapshots: lost":  {remove("snapshots"), "no snapshot reaches so far"},
		"node.json: empty": {write("node.json", cut(1<<40)), "damaged node.json"},
		"node.json: lost":  {remove("node.json"), "its identity is lost"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.DataDir = copied(t, dir)
			c.spoil(t, cfg.DataDir)
			for range 2 { // nor the second time
				n, err := Open(cfg)
				if err == nil {
					n.Close()
					t.Fatal("it started")
				}
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %q, want it to be about %q", err, c.want)
				}
				if advised := strings.Contains(err.Error(), "wipe"); !advised && !strings.HasPrefix(name, "node.json") {
					t.Errorf("no advice: %q", err)
				}
			}
		})
	}
}
