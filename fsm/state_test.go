package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"fencepost/fsm/fsmpb"
)

// TestListsArePaged: pages of any size are, put together, the names with the
// prefix, in order, each once.
func TestListsArePaged(t *testing.T) {
	names := rapid.SliceOfNDistinct(rapid.StringMatching(`[ab]{1,3}(/[ab]{1,2})?`), 0, 12, rapid.ID[string])
	rapid.Check(t, func(t *rapid.T) {
		s := New()
		token := mustApply(t, s, 0, acquireOf("zz", "h", 1000)).Token
		var want []string
		prefix := rapid.SampledFrom([]string{"", "a", "ab", "b/", "c"}).Draw(t, "prefix")
		after := rapid.SampledFrom([]string{"", "a", "ab", "abb/a", "b", "zzz"}).Draw(t, "after")
		for _, name := range names.Draw(t, "names") {
			mustApply(t, s, 0, acquireOf(name, "h", 1000))
			op := putOf(name, "v")
			if rapid.IntRange(1, 4).Draw(t, "no value") == 1 {
				op = &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_FENCE, Key: "a/" + name} // never listed
			} else if strings.HasPrefix(name, prefix) && name > after {
				want = append(want, name)
			}
			mustApply(t, s, 0, writeOf(token, op))
		}
		slices.Sort(want)
		limit := rapid.IntRange(1, 4).Draw(t, "limit")
		var got []string
		for more := true; more && len(got) <= len(want); {
			var page []*Key
			page, more = s.Keys(prefix, after, limit)
			if len(page) > limit || more && len(page) != limit {
				t.Fatalf("a page of %d at limit %d, more: %v", len(page), limit, more)
			}
			for _, k := range page {
				got, after = append(got, k.Key), k.Key
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

// TestP11_Remembers: a request is known by whose it is, where it went and its
// key, before and after a snapshot.
func TestP11_Remembers(t *testing.T) {
	s := New()
	c := acquireOf("db", "h", 1000)
	c.GetAcquire().Principal = "alice"
	c.GetAcquire().Request = &fsmpb.Request{Key: "k", Path: "p"}
	mustApply(t, s, 0, c)
	for _, s := range []*State{s, throughSnapshot(t, s)} {
		for _, ask := range []struct {
			principal, path, key string
			want                 bool
		}{
			{"alice", "p", "k", true}, {"bob", "p", "k", false}, {"alice", "q", "k", false}, {"alice", "p", "l", false}, {"", "", "", false},
		} {
			if got := s.Remembers(ask.principal, &fsmpb.Request{Path: ask.path, Key: ask.key}); got != ask.want {
				t.Errorf("remembers %+v: %v", ask, got)
			}
		}
	}
}

// TestMembersAreCopied: a member in the state is not the caller's message.
func TestMembersAreCopied(t *testing.T) {
	s := New()
	n := &fsmpb.Node{Name: "n1", Id: "r1", HttpAddr: "http://a"}
	mustApply(t, s, 0, &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{ClusterId: "c", Node: n}}})
	n.HttpAddr = "http://changed"
	if got, ok := s.Node("n1"); !ok || got.HttpAddr != "http://a" {
		t.Errorf("got %v, %v", got, ok)
	}
	if got, ok := s.Node("n2"); ok {
		t.Errorf("got member %v, want none", got)
	}
}

// TestP12_WaitersAreListed: those of one name in ticket order, and no more than
// asked for; and all of them.
func TestP12_WaitersAreListed(t *testing.T) {
	s := New()
	for _, name := range []string{"b", "a", "a/b"} {
		for i := range 4 { // the first one is granted
			mustApply(t, s, 0, waitFor(name, fmt.Sprint(name, i), 1, 1))
		}
	}
	all := 0
	s.AllWaiters(func(*Waiter) bool { all++; return true })
	if all != 9 || s.Counts().Waiters != 9 || s.QueueLength("a") != 3 || s.QueueLength("none") != 0 {
		t.Errorf("%d wait, counted %d, %d of them for a", all, s.Counts().Waiters, s.QueueLength("a"))
	}
	for limit, want := range map[int]int{0: 0, 1: 1, 2: 2, 3: 3, 100: 3} {
		ws := s.Waiters("a", limit)
		if len(ws) != want {
			t.Errorf("%d of the waiters at limit %d, want %d", len(ws), limit, want)
		}
		for i, w := range ws {
			if key := fmt.Sprint("a", i+1); w.Acquire.Request.Key != key || w.Ticket != uint64(6+i) {
				t.Errorf("waiter %d: %s with ticket %d", i, w.Acquire.Request.Key, w.Ticket)
			}
		}
	}
}

// TestP10_AttemptsAreTold: what a leader asks before it gives an attempt up.
func TestP10_AttemptsAreTold(t *testing.T) {
	s := New()
	see := func(key string, wantAttempt uint64, wantQueued, wantOK bool) {
		t.Helper()
		attempt, queued, ok := s.Attempt("", &fsmpb.Request{Key: key, Path: "acquire/db", Digest: []byte(key)})
		if attempt != wantAttempt || queued != wantQueued || ok != wantOK {
			t.Errorf("%s: attempt %d, queued %v, open %v; want %d, %v, %v", key, attempt, queued, ok, wantAttempt, wantQueued, wantOK)
		}
	}
	see("a", 0, false, false)
	mustApply(t, s, 0, waitFor("db", "a", 1, 1))
	see("a", 1, false, true)
	mustApply(t, s, 0, waitFor("db", "b", 1, 1))
	see("b", 1, true, true)
	mustApply(t, s, 0, waitFor("db", "b", 1, 1))
	see("b", 2, true, true)
	mustApply(t, s, 100, advanceOf())
	see("b", 2, false, false)
}

// TestP12_NextExpiryIsNow: while a head can be granted an Advance is due, though
// nobody's time is over.
func TestP12_NextExpiryIsNow(t *testing.T) {
	s := New()
	if at, ok := s.NextExpiryMS(); ok {
		t.Errorf("an empty state has something due at %d", at)
	}
	mustApply(t, s, 0, waitFor("db", "a", 1, 1)) // until 1000, and a grace of 5
	second := waitFor("db", "b", 1, 1)
	second.GetAcquire().WaitMs = 9000
	mustApply(t, s, 950, second)
	for _, step := range []struct {
		now, due uint64
		events   int
	}{{950, 1000, 0}, {1000, 1005, 1}, {1004, 1005, 0}, {1005, 2005, 1}} {
		if events := applyEvents(t, s, step.now, advanceOf()); len(events) != step.events {
			t.Errorf("at %d: %s, want %d", step.now, eventsText(events), step.events)
		}
		if at, ok := s.NextExpiryMS(); !ok || at != step.due {
			t.Errorf("after an Advance at %d the next one is due at %d, %v; want %d", step.now, at, ok, step.due)
		}
	}
	mustApply(t, s, 1005, waitFor("db", "c", 1, 1))
	mustApply(t, s, 2010, acquireOf("db", "d", 1000)) // ends what is over, and grants nobody
	if at, ok := s.NextExpiryMS(); ok && at <= 2010 {
		t.Errorf("c's wait is over, but something is due at %d", at)
	}
}
