package fsm

import (
	"fmt"
	"testing"

	"fencepost/fsm/fsmpb"
)

// benchmarkLeases is how many other leases are held meanwhile.
const benchmarkLeases = 10_000

func benchmarkState(b *testing.B) (s *State, tokens []uint64) {
	b.Helper()
	s = New()
	for i := range benchmarkLeases {
		tokens = append(tokens, mustApply(b, s, 0, acquireOf(fmt.Sprint("lease/", i), "h", 3_600_000)).Token)
	}
	return s, tokens
}

func BenchmarkApplyAcquireRelease(b *testing.B) {
	s, _ := benchmarkState(b)
	b.ReportAllocs()
	for b.Loop() {
		token := mustApply(b, s, 0, acquireOf("db", "h", 10_000)).Token
		if o := mustApply(b, s, 0, releaseOf("db", token)); !o.Released {
			b.Fatal(o)
		}
	}
}

func BenchmarkApplyPut(b *testing.B) {
	s, tokens := benchmarkState(b)
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = fmt.Sprint("key/", i)
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		if o := mustApply(b, s, 0, writeOf(tokens[len(tokens)-1], putOf(keys[i%len(keys)], "value"))); o.Code != fsmpb.Code_CODE_OK {
			b.Fatal(o)
		}
	}
}

// BenchmarkApplyRenew100 renews a hundred leases in one entry.
func BenchmarkApplyRenew100(b *testing.B) {
	s, tokens := benchmarkState(b)
	renew := &fsmpb.Renew{}
	for i := range 100 {
		renew.Renewals = append(renew.Renewals, &fsmpb.Renewal{Name: fmt.Sprint("lease/", i*97), Token: tokens[i*97]})
	}
	c := &fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: renew}}
	now := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		now++
		if o := mustApply(b, s, now%3_000_000, c); o.Renewals[99].Code != fsmpb.Code_CODE_OK {
			b.Fatal(o.Renewals[99])
		}
	}
}

// BenchmarkSnapshot takes one of a full state, which costs the same as of an
// empty one.
func BenchmarkSnapshot(b *testing.B) {
	s, _ := benchmarkState(b)
	b.ReportAllocs()
	for b.Loop() {
		s.Snapshot()
	}
}
