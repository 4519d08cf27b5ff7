package fsm

import (
	"testing"

	"fencepost/fsm/fsmpb"
)

// TestP14_RefoundIsOfNobody: a state that was founded anew has no members, takes
// those of the new cluster only, and is the same after a snapshot.
func TestP14_RefoundIsOfNobody(t *testing.T) {
	s := smallState(t)
	s.Refound("c2")
	if s.ClusterID() != "c2" || len(s.Nodes()) != 0 {
		t.Fatalf("cluster %s, members %v", s.ClusterID(), s.Nodes())
	}
	if restored := throughSnapshot(t, s); restored.Digest() != s.Digest() {
		t.Error("its snapshot has another digest")
	}
	for cluster, want := range map[string]fsmpb.Code{"c1": fsmpb.Code_CODE_INVALID_REQUEST, "c2": fsmpb.Code_CODE_OK} {
		o := mustApply(t, s, 0, &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{
			ClusterId: cluster, Node: &fsmpb.Node{Name: "n1", Id: "r9"},
		}}})
		if o.Code != want {
			t.Errorf("a member of %s: %v, want %v", cluster, o.Code, want)
		}
	}
}

// The longest TTL is that of whoever holds, held or waits.
func TestP7_LongestTTL(t *testing.T) {
	s := New()
	expect := func(ttl, grace uint64) {
		t.Helper()
		if gotTTL, gotGrace := s.LongestTTLMS(); gotTTL != ttl || gotGrace != grace {
			t.Errorf("longest TTL %d and grace %d, want %d and %d", gotTTL, gotGrace, ttl, grace)
		}
	}
	expect(0, 0)
	token := mustApply(t, s, 0, acquireOf("a", "h", 2000)).Token
	expect(2000, 0)
	waits := waitFor("a", "k", 1, 1)
	waits.GetAcquire().TtlMs = 3000
	mustApply(t, s, 0, waits)
	expect(3000, 5)
	mustApply(t, s, 0, acquireOf("b", "h", 9000))
	expect(9000, 5)
	mustApply(t, s, 9000, advanceOf())
	mustApply(t, s, 9000, releaseOf("a", token))
	expect(9000, 0) // the waiter's time is over: it never had the lease
}
