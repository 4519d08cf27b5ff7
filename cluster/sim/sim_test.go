package sim

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"fencepost/cluster/bubble"
)

// TestWorlds lives through worlds until so many failovers have been seen
// (SIM_FAILOVERS). SIM_SEED is the first seed; otherwise it is of the time.
func TestWorlds(t *testing.T) {
	want := number(t, "SIM_FAILOVERS", 25)
	seed := uint64(number(t, "SIM_SEED", int(time.Now().UnixNano()>>10&0xffffffff)))
	failovers := 0
	for failovers < want {
		var r *Report
		began := time.Now()
		bubble.Test(t, func(t *testing.T) { r = Run(Options{Seed: seed, Faults: 25, Dir: os.Getenv("SIM_DIR")}) })
		failovers += r.Failovers
		t.Logf("seed %d: %d failovers, %d exchanges, %d entries, %d installs, %s in %s, exits %q, %v", seed, r.Failovers, r.Operations, r.Entries, r.Installs, r.Lasted.Round(time.Second), time.Since(began).Round(time.Millisecond), r.Exits, r.Landed)
		for _, f := range r.Failed() {
			t.Errorf("seed %d: %s", seed, f)
		}
		if t.Failed() {
			return
		}
		seed++
	}
	fmt.Printf("%d failovers\n", failovers)
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
