package fsm

import (
	"errors"
	"fmt"
	"testing"

	"fencepost/fsm/fsmpb"
)

// P1: a jump passes what is known by 2^32, the time by 2^22 a second, and what
// the operator says; and never the greatest token.
func TestP1_JumpPassesWhatWasIssued(t *testing.T) {
	for _, c := range []struct {
		index uint64
		jump  Jump
		want  uint64 // 0: refused
	}{
		{100, Jump{}, 1<<32 + 100},
		{100, Jump{BackupIndex: 200}, 1<<32 + 200},
		{300, Jump{BackupIndex: 200}, 1<<32 + 300},
		{100, Jump{SinceMS: 200_000_000_000}, 200_000_000 << 22},
		{100, Jump{SinceMS: 2000_001}, 2000<<22 + 1<<22/1000},
		{1 << 50, Jump{SinceMS: 200_000_000_000}, 1<<50 + 1<<32},
		{100, Jump{Above: 1 << 40}, 1 << 40},
		{100, Jump{Above: maxAbove}, maxAbove},
		{100, Jump{Above: maxAbove + 1}, 0},
		{maxAbove, Jump{Above: maxAbove}, maxAbove + 1<<32},
		{100, Jump{Above: 1<<64 - 1}, 0},
		{maxJump, Jump{}, 0},
		{MaxToken, Jump{}, 0},
		{100, Jump{BackupIndex: maxJump}, 0},
		{100, Jump{BackupIndex: 1<<64 - 1}, 0},
		{100, Jump{SinceMS: 1<<64 - 1}, 0},
		{100, Jump{SinceMS: 1 << 31 * 1000}, 0}, // in 2088
	} {
		s := New()
		mustApply(t, s, 0, acquireOf("db", "h", 1000))
		s.base, s.index = c.index-1, c.index
		digest := s.Digest()
		err := s.Jump(c.jump)
		if c.want == 0 {
			if !errors.Is(err, ErrJumpTooFar) || s.Digest() != digest {
				t.Errorf("%d, %+v: error %v; changed: %v", c.index, c.jump, err, s.Digest() != digest)
			}
			continue
		}
		if err != nil || s.Index() != c.want || s.Floor() != c.want || s.RestoreFloor() != c.want || s.PublicIndex(2) != c.want+1 {
			t.Errorf("%d, %+v: to %d, next %d, error %v, want %d", c.index, c.jump, s.Index(), s.PublicIndex(2), err, c.want)
		}
	}
	if got := SinceJumpEpochMS(JumpEpochUnix*1000 + 5); got != 5 || SinceJumpEpochMS(5) != 0 {
		t.Errorf("five milliseconds into 2020 are %d", got)
	}
}

// P1, P3, P5: what a token from before a jump still does: nothing; and who gets
// its name: nobody before its time and grace are over.
func TestP5_TokensFromBeforeAJump(t *testing.T) {
	s := New()
	plain := mustApply(t, s, 0, acquireOf("plain", "h", 1000)).Token
	graced := acquireOf("graced", "h", 1000)
	graced.GetAcquire().GraceMs = 500
	mustApply(t, s, 0, graced)
	ended := mustApply(t, s, 0, acquireOf("ended", "h", 1000)).Token
	mustApply(t, s, 0, releaseOf("ended", ended))
	waits := waitFor("plain", "k", 1, 1)
	waits.GetAcquire().WaitMs = 5000
	mustApply(t, s, 0, waits)
	mustApply(t, s, 0, writeOf(plain, putOf("x", "1")))
	if err := s.Jump(Jump{}); err != nil {
		t.Fatal(err)
	}
	s = throughSnapshot(t, s)
	if at, ok := s.NextExpiryMS(); !ok || at > 0 {
		t.Errorf("the next Advance is due at %d, want at once: somebody waits whose wait is over", at)
	}
	events := applyEvents(t, s, 0, advanceOf())
	if len(events) != 1 || events[0].Decided == nil || events[0].Decided.Outcome.Code != fsmpb.Code_CODE_CANCELLED {
		t.Errorf("of the wait: %s", eventsText(events))
	}

	for name, token := range map[string]uint64{"plain": plain, "ended": ended, "never seen here": 7} {
		o := mustApply(t, s, 10, &fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: &fsmpb.Renew{Renewals: []*fsmpb.Renewal{{Name: name, Token: token}}}}})
		if r := o.Renewals[0]; r.Code != fsmpb.Code_CODE_LEASE_LOST || r.Reason != fsmpb.Reason_REASON_RESTORED {
			t.Errorf("renew %s: %v %v", name, r.Code, r.Reason)
		}
		if o := mustApply(t, s, 10, releaseOf(name, token)); o.Code != fsmpb.Code_CODE_OK || o.Released {
			t.Errorf("release %s: %v", name, o)
		}
		for _, key := range []string{"x", "a key without a record"} {
			if o := mustApply(t, s, 10, writeOf(token, putOf(key, "old"))); o.Code != fsmpb.Code_CODE_STALE_TOKEN {
				t.Errorf("write of %s: %v", key, o)
			}
		}
	}
	if o := mustApply(t, s, 20, acquireOf("ended", "i", 1000)); o.Token <= s.RestoreFloor() || o.PreviousToken != 0 {
		t.Errorf("acquire of a free name: %v, floor %d", o, s.RestoreFloor())
	}
	if l, ok := s.Lease("plain"); !ok || l.Live() || l.GraceUntilMS != 1000 {
		t.Errorf("a lease from before is shown as %+v", l)
	}
	for _, c := range []struct {
		now  uint64
		name string
		want fsmpb.Code
	}{
		{999, "plain", fsmpb.Code_CODE_LEASE_HELD},
		{1000, "plain", fsmpb.Code_CODE_OK},
		{1499, "graced", fsmpb.Code_CODE_LEASE_HELD},
		{1500, "graced", fsmpb.Code_CODE_OK},
	} {
		o := mustApply(t, s, c.now, acquireOf(c.name, "i", 1000))
		if o.Code != c.want || c.want == fsmpb.Code_CODE_LEASE_HELD && (o.GraceMs != 1 || o.Holder != "" || o.Token != 0) {
			t.Errorf("acquire of %s at %d: %v", c.name, c.now, o)
		}
	}
}

// P12: more waits from before a jump than one Advance ends, with new ones beside
// them: they end in the order of their tickets, and then the new ones are granted.
func TestP12_WaitsFromBeforeAJump(t *testing.T) {
	s := New()
	hold := acquireOf("a", "h", 1000)
	mustApply(t, s, 0, hold)
	for i := range maxAdvance + 5 {
		c := waitFor(fmt.Sprint("a", i%3)[:1+i%2], fmt.Sprint("old", i), 1, 1)
		c.GetAcquire().WaitMs = 100_000
		mustApply(t, s, 0, c)
	}
	if err := s.Jump(Jump{}); err != nil {
		t.Fatal(err)
	}
	fresh := waitFor("a", "new", 1, 1)
	fresh.GetAcquire().WaitMs = 100_000
	mustApply(t, s, 0, fresh) // drops the others of its name itself
	dropped := 0
	for range 3 {
		last := uint64(0)
		for _, e := range applyEvents(t, s, 0, advanceOf()) {
			if e.Kind == EventDequeued {
				if e.Ticket <= last || e.Reason != fsmpb.Reason_REASON_RESTORED {
					t.Fatalf("ticket %d ended after %d, %v", e.Ticket, last, e.Reason)
				}
				last, dropped = e.Ticket, dropped+1
			}
		}
	}
	if c := s.Counts(); c.Waiters != 1 || dropped == 0 {
		t.Fatalf("%d waiters are left, %d dropped", c.Waiters, dropped)
	}
	events := applyEvents(t, s, 1000, advanceOf())
	if e := events[0]; e.Kind != EventExpired || e.Reason != fsmpb.Reason_REASON_RESTORED || events[len(events)-1].Holder != "new" {
		t.Errorf("when the old holder's time is over: %s", eventsText(events))
	}
}
