package fsm

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"fencepost/fsm/fsmpb"
)

// permutations calls see with every order of 0 to n-1.
func permutations(n int, see func(order []int)) {
	var next func(order []int)
	next = func(order []int) {
		if len(order) == n {
			see(order)
			return
		}
	candidates:
		for i := range n {
			for _, taken := range order {
				if taken == i {
					continue candidates
				}
			}
			next(append(order[:len(order):len(order)], i))
		}
	}
	next(nil)
}

// What ends one lease, and what uses it, come in all orders. Every copy says the
// same to each command and has the same state after it, also one that was
// restored from a snapshot in the middle; no command is an error.
func TestP14_B38_WhateverEndsALeaseTwice(t *testing.T) {
	prepared := func() (*State, uint64) {
		s := New()
		a := acquireOf("db", "a", 1000)
		a.GetAcquire().Request = &fsmpb.Request{Key: "a", Path: "acquire/db", Digest: []byte("a")}
		token := mustApply(t, s, 0, a).Token
		mustApply(t, s, 0, writeOf(token, putOf("k", "v")))
		mustApply(t, s, 0, waitFor("db", "b", 1, 1))
		return s, token
	}
	_, token := prepared()
	// Each with its stamp: 950 is before the lease's end, 1000 is its end.
	steps := []struct {
		now     uint64
		command func() *fsmpb.Command
	}{
		{950, func() *fsmpb.Command { return releaseOf("db", token) }},
		{1000, advanceOf},
		{950, func() *fsmpb.Command { // by an operator, as by the client
			return &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: "db", Request: &fsmpb.Request{Key: "a", Path: "acquire/db"}}}}
		}},
		{950, func() *fsmpb.Command {
			return writeOf(token, &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_DELETE, Key: "k"})
		}},
		{950, func() *fsmpb.Command {
			return &fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: &fsmpb.Renew{Renewals: []*fsmpb.Renewal{{Name: "db", Token: token}}}}}
		}},
		{1000, func() *fsmpb.Command { return releaseOf("db", token) }},
	}
	orders, outcomes := 0, map[string]bool{}
	permutations(len(steps), func(order []int) {
		orders++
		straight, _ := prepared()
		beside, _ := prepared()
		restored, _ := prepared()
		var told string
		for at, i := range order {
			if at == orders%len(steps) {
				restored = throughSnapshot(t, restored)
			}
			want := mustApply(t, straight, steps[i].now, steps[i].command())
			told += fmt.Sprint(i, want.GetCode(), want.GetReleased(), want.GetCancelled(), " ")
			for which, s := range map[string]*State{"second": beside, "restored": restored} {
				got := mustApply(t, s, steps[i].now, steps[i].command())
				if !proto.Equal(got, want) || s.Digest() != straight.Digest() || s.Index() != straight.Index() {
					t.Fatalf("order %v, step %d: the %s copy says %v, the first %v; digests %x and %x", order, at, which, got, want, s.Digest(), straight.Digest())
				}
			}
		}
		outcomes[told] = true
		if h, ok := straight.Lease("db"); !ok || h.Live() && h.First().Token == token {
			t.Fatalf("order %v: the lease is still there", order)
		}
	})
	if orders != 720 || len(outcomes) < 100 {
		t.Errorf("%d orders came to %d different ends", orders, len(outcomes))
	}
}
