package fsm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fencepost/fsm/fsmpb"
)

// TestAdvanceIsBounded: one Advance does at most a thousand things, in the
// order of their deadlines, and says what is left to do.
func TestAdvanceIsBounded(t *testing.T) {
	const leases = 1500
	s := New()
	for i := range uint64(leases) {
		// Later names are over earlier, two of them at each instant.
		mustApply(t, s, 0, acquireOf(fmt.Sprintf("lease-%04d", i), "h", 10_000-i/2))
	}
	first := applyEvents(t, s, 10_000, advanceOf())
	if got := s.Counts().Held; len(first) != maxAdvance || got != leases-maxAdvance {
		t.Fatalf("the first Advance made %d events and left %d held, want %d and %d", len(first), got, maxAdvance, leases-maxAdvance)
	}
	if at, ok := s.NextExpiryMS(); !ok || at > s.ClockMS() {
		t.Errorf("next expiry at %d, %v, want one that is due at %d", at, ok, s.ClockMS())
	}
	all := append(first, applyEvents(t, s, 10_000, advanceOf())...)
	if len(all) != leases || s.Counts().Held != 0 {
		t.Fatalf("two Advances made %d events, want %d", len(all), leases)
	}
	for i, e := range all {
		pair := leases - 2 - i/2*2 // the names of a deadline come in name order
		if want := fmt.Sprintf("lease-%04d", pair+i%2); e.Kind != EventExpired || e.Name != want {
			t.Fatalf("event %d: %v %s, want expired %s", i, e.Kind, e.Name, want)
		}
	}
	if more := applyEvents(t, s, 10_000, advanceOf()); len(more) != 0 {
		t.Errorf("a third Advance made %d events, want none", len(more))
	}

	// Removals are bounded, too, and the clock may stand still meanwhile.
	for want := leases; want > 0; want -= maxAdvance {
		if got := s.Counts().Leases; got != want {
			t.Fatalf("%d leases on record, want %d", got, want)
		}
		mustApply(t, s, 10_000+KeepEndedMS, advanceOf())
	}
	if c := s.Counts(); c.Leases != 0 || s.HasDeadline() || s.Floor() != leases {
		t.Errorf("after all: %+v, deadline %v, floor %d", c, s.HasDeadline(), s.Floor())
	}
}

// TestAdvanceBoundIsShared: ending and removing count as one work, so that an
// Advance late by ten minutes is bounded as well.
func TestAdvanceBoundIsShared(t *testing.T) {
	const leases = 1500
	s := New()
	for i := range leases {
		mustApply(t, s, 0, acquireOf(fmt.Sprint(i), "h", 1000))
	}
	for _, want := range []Counts{
		{Leases: leases, Held: leases - maxAdvance},
		{Leases: 1000}, // 500 ended, 500 removed
		{},
	} {
		mustApply(t, s, 1000+KeepEndedMS, advanceOf())
		if got := s.Counts(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// TestAdvanceBoundsTombstones: the watermarks of deleted keys go in bounded
// steps, too, and the state says that some are left.
func TestAdvanceBoundsTombstones(t *testing.T) {
	s := New()
	token := mustApply(t, s, 0, acquireOf("db", "h", 1000)).Token
	for i := range maxAdvance + 1 {
		mustApply(t, s, 0, writeOf(token, &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_FENCE, Key: fmt.Sprintf("k%d", i)}))
	}
	if at, ok := s.NextRemovalMS(); ok {
		t.Errorf("a removal at %d while the token is live", at)
	}
	mustApply(t, s, 1000, advanceOf())
	if at, ok := s.NextRemovalMS(); !ok || at != 1000+KeepEndedMS {
		t.Errorf("next removal at %d, %v, want that of the lease", at, ok)
	}
	left := []int{}
	for range 3 {
		mustApply(t, s, 1000+KeepEndedMS, advanceOf())
		left = append(left, s.Counts().Records)
		if _, ok := s.NextRemovalMS(); ok != (s.Counts().Records > 0) {
			t.Errorf("with %d records left, something to remove: %v", s.Counts().Records, ok)
		}
	}
	// The lease itself is one of the thousand.
	if !slices.Equal(left, []int{2, 0, 0}) {
		t.Errorf("records left after each Advance: %v, want [2 0 0]", left)
	}
}

func applyEvents(t *testing.T, s *State, nowMS uint64, c *fsmpb.Command) []Event {
	t.Helper()
	c.NowMs, c.Term = nowMS, 1
	_, events, err := s.Apply(s.Index()+1, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(events)
}

// TestP1_ApplyRefusesAnOldIndex: an index that does not rise would issue a
// token twice, so the replica stops.
func TestP1_ApplyRefusesAnOldIndex(t *testing.T) {
	s := New()
	mustApply(t, s, 0, acquireOf("a", "h", 1000))
	mustApply(t, s, 0, tickOf())
	digest := s.Digest()
	for _, index := range []uint64{0, 1, 2} {
		if _, _, err := s.Apply(index, 1, acquireOf("b", "h", 1000)); err == nil {
			t.Errorf("entry %d was applied after entry 2", index)
		}
	}
	if s.Digest() != digest {
		t.Error("a refused entry changed the state")
	}
}

// TestP14_B39_UnknownCommandStops: an entry without a command that this version
// knows is an error, not an outcome.
func TestP14_B39_UnknownCommandStops(t *testing.T) {
	if o, _, err := New().Apply(1, 1, &fsmpb.Command{}); err == nil {
		t.Errorf("got outcome %v, want an error", o)
	}
	if c, err := Decode(nil); err == nil {
		t.Errorf("no bytes are the command %v, want an error", c)
	}
	if _, err := ReadSnapshot(strings.NewReader("")); !errors.Is(err, ErrBadSnapshot) {
		t.Errorf("no bytes as a snapshot: %v, want ErrBadSnapshot", err)
	}
}

// TestP2_AdvanceGrantsOne: however many heads can be granted, an entry grants
// one, the lowest ticket first.
func TestP2_AdvanceGrantsOne(t *testing.T) {
	const names = 900
	s := New()
	for i := range names {
		mustApply(t, s, 0, acquireOf(fmt.Sprint("lease/", i), "h", 1000))
	}
	for i := range names {
		c := waitFor(fmt.Sprint("lease/", i), fmt.Sprint(i), 1, 1)
		c.GetAcquire().WaitMs, c.GetAcquire().TtlMs = 2000, 9000
		mustApply(t, s, 0, c)
	}
	for i := range 3 {
		events := applyEvents(t, s, 1000, advanceOf())
		if e := events[len(events)-1]; e.Kind != EventGranted || e.Ticket != uint64(names+1+i) {
			t.Fatalf("Advance %d ends with %v of ticket %d", i, e.Kind, e.Ticket)
		}
		if want := []int{names + 1, 1, 1}[i]; len(events) != want || s.Ready() != names-1-i {
			t.Errorf("Advance %d made %d events, want %d; %d heads can be granted", i, len(events), want, s.Ready())
		}
	}
	// Those whose wait is over are not granted, though their lease is free.
	for _, e := range applyEvents(t, s, 2000, advanceOf()) {
		if e.Kind != EventDequeued {
			t.Fatalf("%v of ticket %d, want only waits that are over", e.Kind, e.Ticket)
		}
	}
	if c := s.Counts(); c.Waiters != 0 || s.Ready() != 0 {
		t.Errorf("%d wait, %d can be granted", c.Waiters, s.Ready())
	}
}

// TestAdvanceBoundsWaits: waits that are over are as much work as leases, also
// those behind a head that could be granted if its own were not.
func TestAdvanceBoundsWaits(t *testing.T) {
	const waiters = 2*maxAdvance + 500
	s := New()
	mustApply(t, s, 0, acquireOf("db", "h", 50)) // ends before all the waits
	for i := range waiters {
		mustApply(t, s, 0, waitFor("db", fmt.Sprint(i), 1, 1)) // 100 ms
	}
	last := waitFor("db", "last", 1, 1)
	last.GetAcquire().WaitMs = 9000
	mustApply(t, s, 0, last)
	for left := waiters + 1; left > 0; left -= maxAdvance {
		want := maxAdvance
		if left < maxAdvance {
			want = left + 1 // and the grant
		}
		if events := applyEvents(t, s, 1000, advanceOf()); len(events) != want {
			t.Fatalf("an Advance with %d things that are over made %d events, want %d", left, len(events), want)
		}
		if at, ok := s.NextExpiryMS(); left > maxAdvance && (!ok || at > 1000) {
			t.Fatalf("with %d things left that are over the next Advance is due at %d, %v", left-maxAdvance, at, ok)
		}
	}
	if l, _ := s.Lease("db"); !l.Live() || l.Holders[0].Holder != "last" || s.Counts().Waiters != 0 {
		t.Errorf("%d wait, %+v has the lease", s.Counts().Waiters, l.Holders)
	}
}
