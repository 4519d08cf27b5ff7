package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/cluster/check"
)

const ms = int64(time.Millisecond)

// sound is a small history without a fault: two workers on one shared lease, and a
// fault between them.
func sound() []op {
	return []op{
		{ID: 1, Kind: kindAcquire, Name: "a", Slots: 1, Token: 10, Until: 10_000 * ms, Start: 1 * ms, End: 2 * ms, Result: endOK},
		{ID: 2, Kind: kindPut, Name: "a", Key: "k", Value: "v1", Token: 10, Version: 11, Start: 3 * ms, End: 4 * ms, Result: endOK},
		{ID: 3, Kind: kindRelease, Name: "a", Token: 10, Released: true, Start: 5 * ms, End: 6 * ms, Result: endOK},
		{ID: 4, Kind: kindAcquire, Name: "b", Slots: 1, Token: 20, Until: 10_000 * ms, Start: 7 * ms, End: 8 * ms, Result: endOK},
		{ID: 5, Kind: kindAcquire, Name: "a", Slots: 1, Token: 30, Until: 10_000 * ms, Start: 11 * ms, End: 400 * ms, Result: endOK},
		{ID: 6, Kind: kindPut, Name: "a", Key: "k", Value: "v2", Token: 30, Version: 31, Start: 401 * ms, End: 402 * ms, Result: endOK},
		{ID: 7, Kind: kindPut, Name: "a", Key: "k", Value: "v3", Token: 10, Start: 403 * ms, End: 404 * ms, Result: endRefused, Code: "stale_token"},
		{ID: 8, Kind: kindPut, Name: "a", Key: "once", Value: "v4", Token: 30, Version: 33, Start: 405 * ms, End: 406 * ms, Result: endOK},
		{ID: 9, Kind: kindPut, Name: "a", Key: "k", Value: "v5", Token: 30, Start: 407 * ms, End: 408 * ms, Result: endUnknown},
		{ID: 10, Kind: kindRepeat, Of: 1, Token: 10, Start: 500 * ms, End: 501 * ms, Result: endRefused, Code: "lease_lost"},
		{ID: 11, Kind: kindRepeat, Of: 6, Version: 31, Start: 502 * ms, End: 503 * ms, Result: endOK},
		{ID: 12, Kind: kindRepeat, Of: 3, Released: true, Start: 504 * ms, End: 505 * ms, Result: endOK},
		{ID: 13, Kind: kindFinal, Key: "k", Value: "v2", Version: 31, Result: endOK, Start: 600 * ms, End: 601 * ms},
		{ID: 14, Kind: kindFinal, Key: "once", Value: "v4", Version: 33, Result: endOK, Start: 600 * ms, End: 601 * ms},
		{ID: 15, Kind: kindRenew, Name: "b", Token: 20, Until: 12_000 * ms, Start: 610 * ms, End: 611 * ms, Result: endOK},
	}
}

func failures(ops []op) []string {
	var names []string
	for _, v := range answers(ops) {
		if len(v.Findings) > 0 {
			names = append(names, v.Name)
		}
	}
	return names
}

func TestASoundHistoryPasses(t *testing.T) {
	ops := sound()
	for _, v := range answers(ops) {
		if len(v.Findings) > 0 {
			t.Errorf("%s: %s", v.Name, text(v))
		}
	}
	// An unknown write may have been applied.
	ops[12].Value, ops[12].Version = "v5", 40
	if got := failures(ops); got != nil {
		t.Errorf("with the unknown write applied: %v", got)
	}
	// A deleted key may be gone.
	ops = append(sound(), op{ID: 16, Kind: kindDelete, Name: "a", Key: "once", Token: 30, Start: 550 * ms, End: 551 * ms, Result: endUnknown})
	if got := failures(append(ops[:13], ops[14:]...)); got != nil {
		t.Errorf("with a key perhaps deleted: %v", got)
	}
}

// Each fault is put into the sound history by itself, and must be found by the
// check that is there for it.
func TestFaultsAreFound(t *testing.T) {
	for _, tt := range []struct {
		fault string
		want  string // the check that must fail
		make  func(ops []op) []op
	}{
		{"a later acquisition of a lease has a smaller token", "P1 tokens of a lease rise", func(o []op) []op {
			o[4].Token = 9
			return o
		}},
		{"a later acquisition of a lease has the same token", "P1 tokens of a lease rise", func(o []op) []op {
			o[4].Token = 10
			return o
		}},
		{"a later acquisition of another lease has a smaller token", "P1 tokens of all leases rise", func(o []op) []op {
			o[3].Token = 9
			return o
		}},
		{"two concurrent acquisitions have one token", "P2 one entry, one grant", func(o []op) []op {
			o[3].Start, o[3].Token = 0, 10
			return o
		}},
		{"a write has the index of a grant", "P2 one entry, one grant", func(o []op) []op {
			o[5].Version = 30
			return o
		}},
		{"an acquisition without a token", "P2 one entry, one grant", func(o []op) []op {
			o[3].Token = 0
			return o
		}},
		{"a lease granted while it is held", "P3, P7 one holder at a time", func(o []op) []op {
			o[2].Start, o[2].End = 450*ms, 451*ms
			return o
		}},
		{"a live holder refused", "P7 no live holder is refused", func(o []op) []op {
			o[7].Result, o[7].Code = endRefused, "stale_token"
			return o
		}},
		{"the last acknowledged write is gone", "P9 every acknowledged write is there", func(o []op) []op {
			o[12].Value, o[12].Version = "v1", 11
			return o
		}},
		{"a key is gone", "P9 every acknowledged write is there", func(o []op) []op {
			return slices.Delete(o, 13, 14)
		}},
		{"another value at the acknowledged version", "P9 every acknowledged write is there", func(o []op) []op {
			o[12].Value = "v1"
			return o
		}},
		{"a refused write is there", "P9 every acknowledged write is there", func(o []op) []op {
			o[12].Value, o[12].Version = "v3", 50
			return o
		}},
		{"a value that nobody wrote", "P9 every acknowledged write is there", func(o []op) []op {
			o[12].Value, o[12].Version = "v99", 50
			return o
		}},
		{"an acknowledged write was applied again", "P9 every acknowledged write is there", func(o []op) []op {
			o[12].Version = 50
			return o
		}},
		{"a version goes back", "versions of a key rise", func(o []op) []op {
			o[5].Version = 10
			return o
		}},
		{"a stale write accepted", "P4 no stale write was accepted", func(o []op) []op {
			o[6].Result, o[6].Code, o[6].Version = endOK, "", 32
			return o
		}},
		{"a stale write refused for another reason", "P4 no stale write was accepted", func(o []op) []op {
			o[6].Code = "key_reused"
			return o
		}},
		{"no stale write tried", "P4 no stale write was accepted", func(o []op) []op {
			return slices.Delete(o, 6, 7)
		}},
		{"a repeated acquire got another token", "P11 a repeated request tells the same", func(o []op) []op {
			o[9].Result, o[9].Code, o[9].Token = endOK, "", 60
			return o
		}},
		{"a repeated acquire lost another token", "P11 a repeated request tells the same", func(o []op) []op {
			o[9].Token = 30
			return o
		}},
		{"a repeated write got another version", "P11 a repeated request tells the same", func(o []op) []op {
			o[10].Version = 60
			return o
		}},
		{"a repeated write refused", "P11 a repeated request tells the same", func(o []op) []op {
			o[10].Result, o[10].Code = endRefused, "stale_token"
			return o
		}},
		{"a repeated release told otherwise", "P11 a repeated request tells the same", func(o []op) []op {
			o[11].Released = false
			return o
		}},
		{"no repetition answered", "P11 a repeated request tells the same", func(o []op) []op {
			return slices.Delete(o, 9, 12)
		}},
		{"a holder's renewal refused", "P7 no live holder is refused", func(o []op) []op {
			return append(o, op{ID: 16, Kind: kindRenew, Name: "b", Token: 20, Start: 620 * ms, End: 621 * ms, Result: endRefused, Code: "lease_lost"})
		}},
		{"a lease granted before the end that a renewal promised", "P3, P7 one holder at a time", func(o []op) []op {
			return append(o, op{ID: 16, Kind: kindAcquire, Name: "b", Slots: 1, Token: 60, Until: 30_000 * ms, Start: 11_000 * ms, End: 11_001 * ms, Result: endOK})
		}},
		{"a request refused and then acknowledged", "P11 a repeated request tells the same", func(o []op) []op {
			return append(o, op{ID: 16, Kind: kindRepeat, Of: 7, Version: 70, Start: 620 * ms, End: 621 * ms, Result: endOK})
		}},
		{"nothing acknowledged", "load was served", func([]op) []op { return nil }},
	} {
		t.Run(tt.fault, func(t *testing.T) {
			got := failures(tt.make(sound()))
			if !slices.Contains(got, tt.want) {
				t.Errorf("failed checks %q, want %q among them", got, tt.want)
			}
		})
	}
}

// Concurrent acquisitions may have their tokens in any order.
func TestConcurrentAcquisitionsHaveNoOrder(t *testing.T) {
	ops := sound()
	ops[3].Start, ops[3].End = 0, 600*ms // over everything
	if got := failures(ops); got != nil {
		t.Errorf("failed checks %q", got)
	}
}

func TestFindingsAreCut(t *testing.T) {
	v := &check.Verdict{Name: "x"}
	for range 10 {
		find(v, "f")
	}
	if got := text(v); !strings.HasSuffix(got, "and 7 more") {
		t.Errorf("got %q", got)
	}
}
