package fsm

import (
	"fmt"
	"strings"
	"testing"

	"fencepost/fsm/fsmpb"
)

func TestP15_CheckName(t *testing.T) {
	for _, name := range []string{
		"a", "db", "a/b", "renew", "a.b", "...", "a/.b", "..a", "with space", "ünïcode", "\u00a0", "a\u2028b", "0", "%2e", strings.Repeat("x", 512),
	} {
		if err := CheckName(name, 512); err != nil {
			t.Errorf("CheckName(%q): %v, want none", name, err)
		}
	}
	for _, name := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/.", "./a", "a/../b", "a\x00", "a\nb", "\x7f", "\u0080", "\u009f", "\xff", "a\xc3", strings.Repeat("x", 513),
	} {
		if CheckName(name, 512) == nil {
			t.Errorf("CheckName(%q): none, want an error", name)
		}
	}
}

// TestP15_MalformedChangesNothing: whatever the edge lets through, the core
// refuses by itself; such an entry moves the index and the clock only.
func TestP15_MalformedChangesNothing(t *testing.T) {
	request := &fsmpb.Request{Key: "k", Path: "p"}
	long := strings.Repeat("x", maxNameBytes+1)
	acquire := func(change func(*fsmpb.Acquire)) *fsmpb.Command {
		c := &fsmpb.Acquire{Name: "n", Holder: "h", TtlMs: 1, Request: request}
		change(c)
		return &fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: c}}
	}
	write := func(change func(*fsmpb.Write)) *fsmpb.Command {
		c := &fsmpb.Write{Token: 1, Request: request, Ops: []*fsmpb.WriteOp{putOf("k", "v"), putOf("k2", "v")}}
		change(c)
		return &fsmpb.Command{Op: &fsmpb.Command_Write{Write: c}}
	}
	cases := []struct {
		field string
		c     *fsmpb.Command
	}{
		{"name", acquire(func(a *fsmpb.Acquire) { a.Name = "" })},
		{"name", acquire(func(a *fsmpb.Acquire) { a.Name = "a/../b" })},
		{"name", acquire(func(a *fsmpb.Acquire) { a.Name = long })},
		{"holder", acquire(func(a *fsmpb.Acquire) { a.Holder = "" })},
		{"holder", acquire(func(a *fsmpb.Acquire) { a.Holder = "\xff" })},
		{"holder", acquire(func(a *fsmpb.Acquire) { a.Holder = long })},
		{"ttl_ms", acquire(func(a *fsmpb.Acquire) { a.TtlMs = 0 })},
		{"ttl_ms", acquire(func(a *fsmpb.Acquire) { a.TtlMs = maxTTLMS + 1 })},
		{"metadata", acquire(func(a *fsmpb.Acquire) { a.Metadata = []*fsmpb.Pair{{Key: "b"}, {Key: "a"}} })},
		{"metadata", acquire(func(a *fsmpb.Acquire) { a.Metadata = []*fsmpb.Pair{{Key: "a"}, {Key: "a"}} })},
		{"wait_ms", acquire(func(a *fsmpb.Acquire) { a.WaitMs = maxTTLMS + 1 })},
		{"grace_ms", acquire(func(a *fsmpb.Acquire) { a.GraceMs = maxGraceMS + 1 })},
		{"slots", acquire(func(a *fsmpb.Acquire) { a.Slots = MaxSlots + 1 })},
		{"slots", acquire(func(a *fsmpb.Acquire) { a.Slots, a.Take = MaxSlots+1, MaxSlots+2 })},
		{"take", acquire(func(a *fsmpb.Acquire) { a.Take = 2 })},
		{"take", acquire(func(a *fsmpb.Acquire) { a.Slots, a.Take = 3, 4 })},
		{"request", acquire(func(a *fsmpb.Acquire) { a.WaitMs, a.Request = 1, nil })},
		{"request", acquire(func(a *fsmpb.Acquire) { a.WaitMs, a.Request = 1, &fsmpb.Request{Path: "p"} })},
		{"name", &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: "/", Request: request}}}},
		{"request", &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: "n"}}}},
		{"request", &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: "n", Request: &fsmpb.Request{Path: "p"}}}}},
		{"name", &fsmpb.Command{Op: &fsmpb.Command_Release{Release: &fsmpb.Release{Name: "/", Token: 1, Request: request}}}},
		{"token", &fsmpb.Command{Op: &fsmpb.Command_Release{Release: &fsmpb.Release{Name: "n", Request: request}}}},
		{"token", write(func(w *fsmpb.Write) { w.Token = 0 })},
		{"guard", write(func(w *fsmpb.Write) { w.Guard = 9 })},
		{"lease", write(func(w *fsmpb.Write) { w.Lease = "a//b" })},
		{"ops", write(func(w *fsmpb.Write) { w.Ops = nil })},
		{"ops", write(func(w *fsmpb.Write) { w.Ops = make([]*fsmpb.WriteOp, maxOps+1) })},
		{"key", write(func(w *fsmpb.Write) { w.Ops[1].Key = "" })},
		{"key", write(func(w *fsmpb.Write) { w.Ops[1].Key = "k" })},
		{"if_version", write(func(w *fsmpb.Write) { w.Ops[1].Kind = fsmpb.WriteOp_KIND_CHECK })},
		{"op", write(func(w *fsmpb.Write) { w.Ops[1].Kind = fsmpb.WriteOp_KIND_UNSPECIFIED })},
		{"op", write(func(w *fsmpb.Write) { w.Ops[1].Kind = 99 })},
		{"node", &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{ClusterId: "c"}}}},
		{"cluster_id", &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{Node: &fsmpb.Node{Name: "n", Id: "i"}}}}},
	}
	for _, c := range cases {
		s := New()
		mustApply(t, s, 0, acquireOf("n", "h", 1000))
		before := s.sum
		o := mustApply(t, s, 5, c.c)
		if o.Code != fsmpb.Code_CODE_INVALID_REQUEST || o.Field != c.field {
			t.Errorf("%v: %v %q, want invalid %q", c.c.Op, o.Code, o.Field, c.field)
		}
		if s.sum != before || s.Counts().Requests != 0 {
			t.Errorf("%v changed a record", c.c.Op)
		}
	}
}

// TestP15_AtTheLimits: what is just within the ceilings is accepted.
func TestP15_AtTheLimits(t *testing.T) {
	s := New()
	name := strings.Repeat("n", maxNameBytes)
	token := mustApply(t, s, 0, acquireOf(name, strings.Repeat("h", maxNameBytes), maxTTLMS)).Token
	if o := mustApply(t, s, 0, writeOf(token, putOf(name, "v"))); o.Code != fsmpb.Code_CODE_OK {
		t.Errorf("write to the longest key: %v", o.Code)
	}
	if l, ok := s.Lease(name); !ok || l.First().ExpiresInMS(s.ClockMS()) != maxTTLMS {
		t.Errorf("the longest lease: %v", ok)
	}
}

// TestP15_TheMostHolders: a lease is shared by as many as the ceiling allows,
// and by no more.
func TestP15_TheMostHolders(t *testing.T) {
	s := New()
	most := func(take, wait uint64) *fsmpb.Command {
		c := acquireOf("db", "h", maxTTLMS)
		a := c.GetAcquire()
		a.Slots, a.Take, a.WaitMs, a.GraceMs = MaxSlots, take, wait, KeepEndedMS
		a.Request = &fsmpb.Request{Key: fmt.Sprint(s.Index()), Path: "p"}
		return c
	}
	for range MaxSlots - 1 {
		if o := mustApply(t, s, 0, most(1, 0)); o.Code != fsmpb.Code_CODE_OK {
			t.Fatal(o)
		}
	}
	if o := mustApply(t, s, 0, most(2, 0)); o.Code != fsmpb.Code_CODE_LEASE_HELD {
		t.Errorf("two slots where one is left: %v", o.Code)
	}
	if o := mustApply(t, s, 0, most(1, 0)); o.Code != fsmpb.Code_CODE_OK || o.OldestToken != 1 {
		t.Errorf("the last slot: %v", o)
	}
	if o := mustApply(t, s, 0, most(MaxSlots, maxTTLMS)); o.Code != fsmpb.Code_CODE_QUEUED {
		t.Errorf("all slots, with the longest wait: %v", o.Code)
	}
	if l, _ := s.Lease("db"); len(l.Holders) != MaxSlots || l.Used() != MaxSlots {
		t.Errorf("%d holders of %d slots, want %d", len(l.Holders), l.Used(), MaxSlots)
	}
}
