package fsm

import (
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
