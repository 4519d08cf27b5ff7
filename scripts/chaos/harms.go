package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A harm is one thing that can be wrong with a data directory. It must change
// something; how says what.
type harm struct {
	what    string
	settled bool // to a node that was stopped in order
	do      func(r *rand.Rand, dir string) (how string, err error)
}

const (
	page = 4096
	// Of a journal's record: see cluster/journalfile.go.
	recordHead   = 28
	recordMagic  = 0x464a5231
	scatteredPer = 100_000 // of so many bits one is flipped
)

var errNothingToHarm = errors.New("there is nothing there to harm")

func harms() []harm {
	return []harm{
		{"a bit of the journal's last record", false, inJournal(func(r *rand.Rand, b []byte, at []int) ([]byte, string) {
			return flip(r, b, at[len(at)-2], at[len(at)-1])
		})},
		{"a bit of one of its other records", false, inJournal(func(r *rand.Rand, b []byte, at []int) ([]byte, string) {
			i := r.IntN(len(at) - 2)
			return flip(r, b, at[i], at[i]+recordHead)
		})},
		{"bits all over the journal", false, inJournal(func(r *rand.Rand, b []byte, _ []int) ([]byte, string) { return scatter(r, b) })},
		{"a page of the journal is zero", false, inJournal(func(r *rand.Rand, b []byte, at []int) ([]byte, string) { return zero(r, b, at[len(at)-2]) })},
		{"the journal is cut short", false, inJournal(func(r *rand.Rand, b []byte, at []int) ([]byte, string) { return cutShort(r, b, at[len(at)-1]) })},
		{"a journal file is missing", false, func(r *rand.Rand, dir string) (string, error) {
			name := fmt.Sprintf("raft.journal%d", r.IntN(2))
			return name, os.Remove(filepath.Join(dir, name))
		}},
		{"a bit of a value in raft.db", true, inLog(flipValue)},
		{"a bit of a value in raft.db", true, inLog(flipValue)},
		{"bits all over raft.db", true, inLog(scatter)},
		{"a page of raft.db is zero", true, inLog(func(r *rand.Rand, b []byte) ([]byte, string) { return zero(r, b, len(b)) })},
		{"raft.db is cut short", true, inLog(func(r *rand.Rand, b []byte) ([]byte, string) { return cutShort(r, b, len(b)) })},
		{"raft.db is missing", true, func(_ *rand.Rand, dir string) (string, error) { return "", os.Remove(filepath.Join(dir, "raft.db")) }},
		{"a bit of the newest snapshot", false, inSnapshot("state.bin", func(r *rand.Rand, b []byte) ([]byte, string) { return flip(r, b, 0, len(b)) })},
		{"the newest snapshot is cut short", false, inSnapshot("state.bin", func(r *rand.Rand, b []byte) ([]byte, string) { return cutShort(r, b, len(b)) })},
		{"a bit of the newest snapshot's meta.json", false, inSnapshot("meta.json", func(r *rand.Rand, b []byte) ([]byte, string) { return flip(r, b, 0, len(b)) })},
		{"the newest snapshot is missing", false, func(_ *rand.Rand, dir string) (string, error) {
			list, err := snapshotsOf(dir)
			if err != nil {
				return "", err
			}
			return filepath.Base(list[len(list)-1]), os.RemoveAll(list[len(list)-1])
		}},
		{"all snapshots are missing", false, func(_ *rand.Rand, dir string) (string, error) {
			return "", os.RemoveAll(filepath.Join(dir, "snapshots"))
		}},
		{"a bit of node.json", true, func(r *rand.Rand, dir string) (string, error) {
			return rewrite(filepath.Join(dir, "node.json"), func(b []byte) ([]byte, string) { return flip(r, b, 0, len(b)) })
		}},
		{"node.json is missing", true, func(_ *rand.Rand, dir string) (string, error) { return "", os.Remove(filepath.Join(dir, "node.json")) }},
	}
}

// snapshotsOf are the paths of the finished snapshots, the newest last.
func snapshotsOf(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".tmp") {
			paths = append(paths, filepath.Join(dir, "snapshots", e.Name()))
		}
	}
	// Term, index and time, without leading zeros.
	order := func(path string) (term, index uint64) {
		fmt.Sscanf(filepath.Base(path), "%d-%d-", &term, &index)
		return term, index
	}
	slices.SortFunc(paths, func(a, b string) int {
		termA, indexA := order(a)
		termB, indexB := order(b)
		return slices.Compare([]uint64{termA, indexA}, []uint64{termB, indexB})
	})
	return paths, nil
}

// rewrite puts what change makes of a file in its place; what is no change fails.
func rewrite(path string, change func([]byte) ([]byte, string)) (how string, err error) {
	before, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	after, how := change(slices.Clone(before))
	if bytes.Equal(before, after) {
		return "", errNothingToHarm
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	_, err = f.WriteAt(after, 0)
	return filepath.Base(path) + " " + how, errors.Join(err, f.Truncate(int64(len(after))), f.Close())
}

// inJournal changes the journal file with the newest records; at is where they begin
// that count, and at last where they end.
func inJournal(change func(r *rand.Rand, b []byte, at []int) ([]byte, string)) func(*rand.Rand, string) (string, error) {
	return func(r *rand.Rand, dir string) (string, error) {
		most, path := 0, ""
		for i := range 2 {
			p := filepath.Join(dir, fmt.Sprintf("raft.journal%d", i))
			b, err := os.ReadFile(p)
			if err != nil {
				return "", err
			}
			if n := len(records(b)); n > most {
				most, path = n, p
			}
		}
		if most < 4 {
			return "", errNothingToHarm
		}
		return rewrite(path, func(b []byte) ([]byte, string) { return change(r, b, records(b)) })
	}
}

func records(b []byte) (at []int) {
	next, generation := page, uint64(0)
	for next+recordHead <= len(b) {
		head := b[next:]
		g := binary.LittleEndian.Uint64(head[8:])
		if binary.LittleEndian.Uint32(head) != recordMagic || len(at) > 0 && g != generation {
			break
		}
		generation = g
		at = append(at, next)
		next += (recordHead + int(binary.LittleEndian.Uint64(head[20:])) + page - 1) / page * page
	}
	return append(at, next)
}

// inLog changes what is in use of raft.db; behind that are zeros.
func inLog(change func(r *rand.Rand, b []byte) ([]byte, string)) func(*rand.Rand, string) (string, error) {
	return func(r *rand.Rand, dir string) (string, error) {
		return rewrite(filepath.Join(dir, "raft.db"), func(b []byte) ([]byte, string) {
			used := len(bytes.TrimRight(b, "\x00"))
			used = min((used+page-1)/page*page, len(b))
			changed, how := change(r, b[:used:used])
			if len(changed) < used {
				return changed, how
			}
			return append(changed, b[used:]...), how
		})
	}
}

func inSnapshot(name string, change func(r *rand.Rand, b []byte) ([]byte, string)) func(*rand.Rand, string) (string, error) {
	return func(r *rand.Rand, dir string) (string, error) {
		list, err := snapshotsOf(dir)
		if err != nil {
			return "", err
		}
		if len(list) == 0 {
			return "", errNothingToHarm
		}
		return rewrite(filepath.Join(list[len(list)-1], name), func(b []byte) ([]byte, string) { return change(r, b) })
	}
}

// flip flips a bit from one place to another.
func flip(r *rand.Rand, b []byte, from, to int) ([]byte, string) {
	at, bit := from+r.IntN(to-from), r.IntN(8)
	b[at] ^= 1 << bit
	return b, fmt.Sprintf("(bit %d of byte %d)", bit, at)
}

// flipValue flips a bit of something that a worker wrote.
func flipValue(r *rand.Rand, b []byte) ([]byte, string) {
	all := regexp.MustCompile(`w[0-9]-[0-9]+`).FindAllIndex(b, -1)
	if len(all) == 0 {
		return b, ""
	}
	at := pick(r, all)
	return flip(r, b, at[0], at[1])
}

func scatter(r *rand.Rand, b []byte) ([]byte, string) {
	count := max(1, len(b)*8/scatteredPer)
	for range count {
		flip(r, b, 0, len(b))
	}
	return b, fmt.Sprintf("(%d bits)", count)
}

// zero clears one page before an end that has something.
func zero(r *rand.Rand, b []byte, end int) ([]byte, string) {
	pages := (end + page - 1) / page
	for _, i := range r.Perm(pages) {
		p := b[i*page : min((i+1)*page, len(b))]
		if len(bytes.Trim(p, "\x00")) > 0 {
			clear(p)
			return b, fmt.Sprintf("(page %d)", i)
		}
	}
	return b, ""
}

func cutShort(r *rand.Rand, b []byte, before int) ([]byte, string) {
	n := r.IntN(before)
	return b[:n], fmt.Sprintf("(to %d bytes)", n)
}
