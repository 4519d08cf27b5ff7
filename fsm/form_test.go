package fsm

import (
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
	if l, ok := s.Lease(name); !ok || l.ExpiresInMS(s.ClockMS()) != maxTTLMS {
		t.Errorf("the longest lease: %v", ok)
	}
}
