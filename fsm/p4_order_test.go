package fsm

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"fencepost/fsm/fsmpb"
)

// mustApply applies a command as the next entry, in term 1 and at that time.
func mustApply(t rapid.TB, s *State, nowMS uint64, c *fsmpb.Command) *fsmpb.Outcome {
	t.Helper()
	c.NowMs, c.Term = nowMS, 1
	o, _, err := s.Apply(s.Index()+1, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func acquireOf(name, holder string, ttlMS uint64) *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{Name: name, Holder: holder, TtlMs: ttlMS}}}
}

func releaseOf(name string, token uint64) *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_Release{Release: &fsmpb.Release{Name: name, Token: token}}}
}

func writeOf(token uint64, ops ...*fsmpb.WriteOp) *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_Write{Write: &fsmpb.Write{Token: token, Ops: ops}}}
}

func putOf(key, value string) *fsmpb.WriteOp {
	return &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_PUT, Key: key, Value: []byte(value)}
}

func tickOf() *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_Tick{Tick: &fsmpb.Tick{}}}
}

func advanceOf() *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_Advance{Advance: &fsmpb.Advance{}}}
}

// What can be wrong with a write, in the order in which it is checked.
const (
	wrongNotIssued = 1 << iota
	wrongNotOnRecord
	wrongPrincipal
	wrongLease
	wrongWatermark
	wrongNotHeld
	wrongVersion
	wrongEverything = 1<<iota - 1
)

// TestP4_ChecksInOrder tries every combination of what can be wrong with a
// write: the answer is that of the first check that fails, and nothing changes.
func TestP4_ChecksInOrder(t *testing.T) {
	type answer struct {
		wrong  int
		code   fsmpb.Code
		reason fsmpb.Reason
	}
	answers := []answer{
		{wrongNotIssued, fsmpb.Code_CODE_TOKEN_NOT_ISSUED, fsmpb.Reason_REASON_NONE},
		{wrongNotOnRecord, fsmpb.Code_CODE_STALE_TOKEN, fsmpb.Reason_REASON_NOT_ON_RECORD},
		{wrongPrincipal, fsmpb.Code_CODE_FORBIDDEN, fsmpb.Reason_REASON_NONE},
		{wrongLease, fsmpb.Code_CODE_STALE_TOKEN, fsmpb.Reason_REASON_WRONG_LEASE},
		{wrongWatermark, fsmpb.Code_CODE_STALE_TOKEN, fsmpb.Reason_REASON_BELOW_WATERMARK},
		{wrongNotHeld, fsmpb.Code_CODE_STALE_TOKEN, fsmpb.Reason_REASON_NOT_HELD},
		{wrongVersion, fsmpb.Code_CODE_VERSION_MISMATCH, fsmpb.Reason_REASON_NONE},
		{0, fsmpb.Code_CODE_OK, fsmpb.Reason_REASON_NONE},
	}
	for wrong := range wrongEverything + 1 {
		want := answers[slices.IndexFunc(answers, func(a answer) bool { return wrong&a.wrong != 0 || a.wrong == 0 })]
		t.Run(fmt.Sprintf("%07b", wrong), func(t *testing.T) {
			s, w := wrongWrite(t, wrong)
			before := contents(s)
			o := mustApply(t, s, 0, &fsmpb.Command{Op: &fsmpb.Command_Write{Write: w}})
			if o.Code != want.code || o.Reason != want.reason {
				t.Fatalf("got %v %v, want %v %v", o.Code, o.Reason, want.code, want.reason)
			}
			if changed := contents(s) != before; changed != (want.code == fsmpb.Code_CODE_OK) {
				t.Errorf("the state changed: %v, outcome %v", changed, o)
			}
		})
	}
}

// wrongWrite makes a state and a write to it of which these things are wrong.
func wrongWrite(t *testing.T, wrong int) (*State, *fsmpb.Write) {
	s := New()
	live := mustApply(t, s, 0, acquireOf("live", "h", 1000_000)).Token
	over := mustApply(t, s, 0, acquireOf("over", "h", 1000_000)).Token
	mustApply(t, s, 0, releaseOf("over", over))
	nobodys := mustApply(t, s, 0, tickOf()).Index
	// The newest lease: not the one that the write names wrongly, lest the
	// reason be newer_issued.
	newest := mustApply(t, s, 0, acquireOf("newest", "h", 1000_000)).Token
	mustApply(t, s, 0, writeOf(live, putOf("low", "1")))
	mustApply(t, s, 0, writeOf(newest, putOf("high", "1")))

	w := &fsmpb.Write{Token: live, Ops: []*fsmpb.WriteOp{putOf("low", "2"), putOf("low2", "2")}}
	switch {
	case wrong&wrongNotIssued != 0:
		w.Token = s.Index() + 1
	case wrong&wrongNotOnRecord != 0:
		w.Token = nobodys
	case wrong&wrongNotHeld != 0:
		w.Token = over
	}
	if wrong&wrongNotHeld != 0 {
		w.Guard = fsmpb.Guard_GUARD_HELD
	}
	if wrong&wrongPrincipal != 0 {
		w.Principal = "mallory"
	}
	if wrong&wrongLease != 0 {
		w.Lease = "nothing"
	}
	if wrong&wrongWatermark != 0 {
		w.Ops[1].Key = "high"
	}
	if wrong&wrongVersion != 0 {
		version := uint64(99)
		w.Ops[0].IfVersion = &version
	}
	return s, w
}

// contents is all that a refused entry must leave alone: everything but the
// index, the clock, the counts of refusals and what is remembered of requests;
// and a grace that is over, whose end makes no event.
func contents(s *State) string {
	out := fmt.Sprintf("floor %d last %d\n", s.Floor(), s.LastToken())
	leases, _ := s.Leases("", "", s.leases.Len())
	for _, l := range leases {
		r := l.record()
		r.GraceUntilMs = 0
		out += fmt.Sprintln("lease", r)
	}
	s.AllWaiters(func(w *Waiter) bool {
		out += fmt.Sprintln("waiter", w.record())
		return true
	})
	s.keys.Scan(func(_ string, k *Key) bool {
		out += fmt.Sprintf("key %+v\n", *k)
		return true
	})
	return out
}

// TestP4_SupersededAtTheGrant: an old holder is fenced by the acquisition
// itself, before the new holder has written anything.
func TestP4_SupersededAtTheGrant(t *testing.T) {
	s := New()
	old := mustApply(t, s, 0, acquireOf("db", "a", 1000)).Token
	if o := mustApply(t, s, 1000, writeOf(old, putOf("k", "expired"))); o.Code != fsmpb.Code_CODE_OK {
		t.Fatalf("write of a holder that is over but not superseded: %v, want OK", o)
	}
	mustApply(t, s, 1000, acquireOf("db", "b", 1000))
	o := mustApply(t, s, 1000, writeOf(old, putOf("k", "superseded")))
	if o.Code != fsmpb.Code_CODE_STALE_TOKEN || o.Reason != fsmpb.Reason_REASON_NOT_ON_RECORD {
		t.Fatalf("write of a superseded holder: %v, want a stale token", o)
	}
	if k, _ := s.Key("k"); string(k.Value) != "expired" {
		t.Errorf("value %q, want that of the accepted write", k.Value)
	}
}

// TestP6_FloorRefuses: at or below the floor a token is refused on every key,
// even one that is live; so a floor that a restore has set fences by itself.
func TestP6_FloorRefuses(t *testing.T) {
	s := New()
	token := mustApply(t, s, 0, acquireOf("db", "a", 1000)).Token
	s.floor = token
	if o := mustApply(t, s, 0, writeOf(token, putOf("k", "v"))); o.Reason != fsmpb.Reason_REASON_NOT_ON_RECORD {
		t.Errorf("write at the floor: %v, want a stale token", o)
	}
	if s.Floor() != token {
		t.Errorf("P5: the floor fell from %d to %d", token, s.Floor())
	}
	s.floor = token - 1
	if o := mustApply(t, s, 0, writeOf(token, putOf("k", "v"))); o.Code != fsmpb.Code_CODE_OK {
		t.Errorf("write above the floor: %v, want OK", o)
	}
}
