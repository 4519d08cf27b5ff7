package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const ms = int64(time.Millisecond)

// sound is a small history without a fault: two workers on one shared lease, and a
// kill between them.
func sound() ([]op, []kill) {
	ops := []op{
		{ID: 1, Kind: kindAcquire, Name: "a", Request: "r1", Token: 10, TTLMS: 10_000, Start: 1 * ms, End: 2 * ms, Result: endOK},
		{ID: 2, Kind: kindPut, Name: "a", Key: "k", Value: "v1", Token: 10, Version: 11, Start: 3 * ms, End: 4 * ms, Result: endOK},
		{ID: 3, Kind: kindRelease, Name: "a", Token: 10, Released: true, Start: 5 * ms, End: 6 * ms, Result: endOK},
		{ID: 4, Kind: kindAcquire, Name: "b", Request: "r2", Token: 20, TTLMS: 10_000, Start: 7 * ms, End: 8 * ms, Result: endOK},
		// after the kill at 10 ms
		{ID: 5, Kind: kindAcquire, Name: "a", Request: "r3", Token: 30, TTLMS: 10_000, Start: 11 * ms, End: 400 * ms, Result: endOK},
		{ID: 6, Kind: kindPut, Name: "a", Key: "k", Value: "v2", Token: 30, Version: 31, Start: 401 * ms, End: 402 * ms, Result: endOK},
		{ID: 7, Kind: kindStalePut, Name: "a", Key: "k", Value: "v3", Token: 10, Start: 403 * ms, End: 404 * ms, Result: endRefused, Code: "stale_token"},
		{ID: 8, Kind: kindPut, Name: "a", Key: "once", Value: "v4", Token: 30, Version: 33, Start: 405 * ms, End: 406 * ms, Result: endOK},
		{ID: 9, Kind: kindPut, Name: "a", Key: "k", Value: "v5", Token: 30, Start: 407 * ms, End: 408 * ms, Result: endUnknown},
		{ID: 10, Kind: kindRepeat, Of: 1, Token: 10, Start: 500 * ms, End: 501 * ms, Result: endRefused, Code: "lease_lost"},
		{ID: 11, Kind: kindRepeat, Of: 6, Version: 31, Start: 502 * ms, End: 503 * ms, Result: endOK},
		{ID: 12, Kind: kindRepeat, Of: 3, Released: true, Start: 504 * ms, End: 505 * ms, Result: endOK},
		{ID: 13, Kind: kindFinal, Key: "k", Value: "v2", Version: 31, Result: endOK, Start: 600 * ms, End: 601 * ms},
		{ID: 14, Kind: kindFinal, Key: "once", Value: "v4", Version: 33, Result: endOK, Start: 600 * ms, End: 601 * ms},
	}
	return ops, []kill{{Node: "n1", Term: 2, At: 10 * ms, Gone: true, NewLeader: "n2", NewTerm: 3}}
}

func failures(ops []op, kills []kill) []string {
	var names []string
	for _, v := range judge(ops, kills, 2*time.Second) {
		if v.Failed() {
			names = append(names, v.Name)
		}
	}
	return names
}

func TestASoundHistoryPasses(t *testing.T) {
	ops, kills := sound()
	for _, v := range judge(ops, kills, 2*time.Second) {
		if v.Failed() {
			t.Errorf("%s: %s", v.Name, v.Text())
		}
	}
	// An unknown write may have been applied.
	ops[12].Value, ops[12].Version = "v5", 40
	if got := failures(ops, kills); got != nil {
		t.Errorf("with the unknown write applied: %v", got)
	}
}

// Each fault is put into the sound history by itself, and must be found by the
// check that is there for it.
func TestFaultsAreFound(t *testing.T) {
	for _, tt := range []struct {
		fault string
		want  string // the check that must fail
		make  func(ops []op, kills []kill) ([]op, []kill)
	}{
		{"a later acquisition of a lease has a smaller token", "P1 tokens of a lease rise", func(o []op, k []kill) ([]op, []kill) {
			o[4].Token = 9
			return o, k
		}},
		{"a later acquisition of a lease has the same token", "P1 tokens of a lease rise", func(o []op, k []kill) ([]op, []kill) {
			o[4].Token = 10
			return o, k
		}},
		{"a later acquisition of another lease has a smaller token", "P1 tokens of all leases rise", func(o []op, k []kill) ([]op, []kill) {
			o[3].Token = 9
			return o, k
		}},
		{"two concurrent acquisitions have one token", "P2 one entry, one grant", func(o []op, k []kill) ([]op, []kill) {
			o[3].Start, o[3].Token = 0, 10
			return o, k
		}},
		{"a write has the index of a grant", "P2 one entry, one grant", func(o []op, k []kill) ([]op, []kill) {
			o[5].Version = 30
			return o, k
		}},
		{"an acquisition without a token", "P2 one entry, one grant", func(o []op, k []kill) ([]op, []kill) {
			o[3].Token = 0
			return o, k
		}},
		{"a lease granted while it is held", "P3, P7 one holder at a time", func(o []op, k []kill) ([]op, []kill) {
			o[2].Start, o[2].End = 450*ms, 451*ms
			return o, k
		}},
		{"a live holder refused", "P7 no live holder is refused", func(o []op, k []kill) ([]op, []kill) {
			o[7].Result, o[7].Code = endRefused, "stale_token"
			return o, k
		}},
		{"the last acknowledged write is gone", "P9 every acknowledged write is there", func(o []op, k []kill) ([]op, []kill) {
			o[12].Value, o[12].Version = "v1", 11
			return o, k
		}},
		{"a key is gone", "P9 every acknowledged write is there", func(o []op, k []kill) ([]op, []kill) {
			return o[:13], k
		}},
		{"another value at the acknowledged version", "P9 every acknowledged write is there", func(o []op, k []kill) ([]op, []kill) {
			o[12].Value = "v1"
			return o, k
		}},
		{"a refused write is there", "P9 every acknowledged write is there", func(o []op, k []kill) ([]op, []kill) {
			o[12].Value, o[12].Version = "v3", 50
			return o, k
		}},
		{"a value that nobody wrote", "P9 every acknowledged write is there", func(o []op, k []kill) ([]op, []kill) {
			o[12].Value, o[12].Version = "v99", 50
			return o, k
		}},
		{"an acknowledged write was applied again", "P9 every acknowledged write is there", func(o []op, k []kill) ([]op, []kill) {
			o[12].Version = 50
			return o, k
		}},
		{"a version goes back", "versions of a key rise", func(o []op, k []kill) ([]op, []kill) {
			o[5].Version = 10
			return o, k
		}},
		{"a stale write accepted", "P4 no stale write was accepted", func(o []op, k []kill) ([]op, []kill) {
			o[6].Result, o[6].Code, o[6].Version = endOK, "", 32
			return o, k
		}},
		{"a stale write refused for another reason", "P4 no stale write was accepted", func(o []op, k []kill) ([]op, []kill) {
			o[6].Code = "key_reused"
			return o, k
		}},
		{"no stale write tried", "P4 no stale write was accepted", func(o []op, k []kill) ([]op, []kill) {
			return slices.Delete(o, 6, 7), k
		}},
		{"a repeated acquire got another token", "P11 a repeated request tells the same", func(o []op, k []kill) ([]op, []kill) {
			o[9].Result, o[9].Code, o[9].Token = endOK, "", 60
			return o, k
		}},
		{"a repeated acquire lost another token", "P11 a repeated request tells the same", func(o []op, k []kill) ([]op, []kill) {
			o[9].Token = 30
			return o, k
		}},
		{"a repeated write got another version", "P11 a repeated request tells the same", func(o []op, k []kill) ([]op, []kill) {
			o[10].Version = 60
			return o, k
		}},
		{"a repeated write refused", "P11 a repeated request tells the same", func(o []op, k []kill) ([]op, []kill) {
			o[10].Result, o[10].Code = endRefused, "stale_token"
			return o, k
		}},
		{"a repeated release told otherwise", "P11 a repeated request tells the same", func(o []op, k []kill) ([]op, []kill) {
			o[11].Released = false
			return o, k
		}},
		{"no repetition answered", "P11 a repeated request tells the same", func(o []op, k []kill) ([]op, []kill) {
			return slices.Delete(o, 9, 12), k
		}},
		{"a kill that killed nobody", "every kill hit the leader", func(o []op, k []kill) ([]op, []kill) {
			k[0].Gone = false
			return o, k
		}},
		{"the killed node leads", "every kill hit the leader", func(o []op, k []kill) ([]op, []kill) {
			k[0].NewLeader = "n1"
			return o, k
		}},
		{"nobody leads", "every kill hit the leader", func(o []op, k []kill) ([]op, []kill) {
			k[0].NewLeader, k[0].NewTerm = "", 0
			return o, k
		}},
		{"the same term: it was no leader", "every kill hit the leader", func(o []op, k []kill) ([]op, []kill) {
			k[0].NewTerm = 2
			return o, k
		}},
		{"no kill", "every kill hit the leader", func(o []op, _ []kill) ([]op, []kill) { return o, nil }},
		{"a long outage", "time without service", func(o []op, k []kill) ([]op, []kill) {
			for i := 4; i < len(o); i++ {
				o[i].End += 2000 * ms
				if i > 4 {
					o[i].Start += 2000 * ms
				}
			}
			return o, k
		}},
		// It had been sent before the kill: its answer says nothing of service after.
		{"nothing succeeds that began after the kill", "time without service", func(o []op, k []kill) ([]op, []kill) {
			k[0].At = 700 * ms
			return o, k
		}},
		{"nothing written after the kill", "load was served", func(o []op, k []kill) ([]op, []kill) {
			k[0].At = 450 * ms
			return o, k
		}},
		{"nothing acknowledged", "load was served", func(_ []op, k []kill) ([]op, []kill) { return nil, k }},
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
	ops, kills := sound()
	ops[3].Start, ops[3].End = 0, 600*ms // over everything
	if got := failures(ops, kills); got != nil {
		t.Errorf("failed checks %q", got)
	}
}

func TestFindingsAreCut(t *testing.T) {
	v := &verdict{Name: "x"}
	for range 10 {
		v.find("f")
	}
	if got := v.Text(); !strings.HasSuffix(got, "and 7 more") {
		t.Errorf("got %q", got)
	}
}
