package sim

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"fencepost/cluster/bubble"
	"fencepost/cluster/check"
)

// faultsPerWorld: enough that they meet each other's consequences, and few enough
// that the history of a violation can be read.
const faultsPerWorld = 25

// manyWorlds are so many that each fault must have landed in one of them.
const manyWorlds = 25

// TestWorlds lives through worlds, of one seed after the other, until so many
// failovers have been seen (SIM_FAILOVERS), or a check fails. SIM_SEED is the first
// seed, otherwise it is of the time. The evidence of a failure goes to SIM_DIR.
func TestWorlds(t *testing.T) {
	want := number(t, "SIM_FAILOVERS", 40)
	seed := uint64(number(t, "SIM_SEED", int(time.Now().UnixNano()>>10&0xffffff)))
	var sum totals
	for sum.failovers < want && !t.Failed() {
		var r *Report
		began := time.Now()
		bubble.Test(t, func(t *testing.T) { r = Run(Options{Seed: seed, Faults: faultsPerWorld, Dir: os.Getenv("SIM_DIR")}) })
		r.Judge()
		sum.add(r)
		t.Logf("seed %d: %d failovers in %s, %d exchanges, %s", seed, r.Failovers, r.Lasted.Round(time.Second), r.Operations, time.Since(began).Round(time.Millisecond))
		for _, f := range r.Failed() {
			t.Errorf("seed %d: %s", seed, f)
		}
		if t.Failed() {
			if err := keep(os.Getenv("SIM_DIR"), r); err != nil {
				t.Error(err)
			}
		}
		seed++
	}
	if len(sum.landed) < len(faults)/2 {
		t.Errorf("only these faults have landed: %v", sum.landed)
	}
	for _, f := range faults {
		if sum.worlds >= manyWorlds && sum.landed[f.name] == 0 {
			t.Errorf("%s has never landed in %d worlds", f.name, sum.worlds)
		}
	}
	fmt.Print(sum.text(t.Failed()))
}

// totals are those of several worlds.
type totals struct {
	worlds, failovers, exchanges, entries, installs, exits int
	landed                                                 map[string]int
	checks                                                 []string
}

func (s *totals) add(r *Report) {
	s.worlds++
	s.failovers += r.Failovers
	s.exchanges += r.Operations
	s.entries += r.Entries
	s.installs += r.Installs
	s.exits += len(r.Exits)
	if s.landed == nil {
		s.landed = make(map[string]int)
		for _, v := range r.Verdicts {
			s.checks = append(s.checks, v.Name)
		}
	}
	for name, n := range r.Landed {
		s.landed[name] += n
	}
}

// text is what scripts/sim.sh adds up: lines of a name and a number.
func (s *totals) text(failed bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "checks: %s\n", strings.Join(s.checks, "; "))
	for _, name := range slices.Sorted(maps.Keys(s.landed)) {
		fmt.Fprintf(&b, "landed %s\t%d\n", name, s.landed[name])
	}
	violations := 0
	if failed {
		violations = 1
	}
	for _, line := range []struct {
		name string
		n    int
	}{
		{"worlds", s.worlds}, {"failovers", s.failovers}, {"exchanges", s.exchanges}, {"log entries", s.entries},
		{"snapshots installed", s.installs}, {"nodes that ended themselves", s.exits}, {"worlds with violations", violations},
	} {
		fmt.Fprintf(&b, "total %s\t%d\n", line.name, line.n)
	}
	return b.String()
}

// keep leaves the evidence of a world for people: the findings, the history and the
// log.
func keep(dir string, r *Report) error {
	if dir == "" {
		return nil
	}
	base := filepath.Join(dir, fmt.Sprintf("seed-%d", r.Seed))
	if err := os.WriteFile(base+".findings", []byte(strings.Join(r.Failed(), "\n")+"\n"), 0o600); err != nil {
		return err
	}
	f, err := os.Create(base + ".history")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := r.History.Write(f); err != nil {
		return err
	}
	return os.WriteFile(base+".log", logText(r.Log), 0o600)
}

func logText(entries []check.Entry) []byte {
	var b strings.Builder
	for _, e := range entries {
		text := "raft's own"
		if e.Command != nil {
			text = protojson.Format(e.Command)
		}
		fmt.Fprintf(&b, "%d term %d %s\n", e.Index, e.Term, strings.Join(strings.Fields(text), " "))
	}
	return []byte(b.String())
}

func number(t *testing.T, name string, otherwise int) int {
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
