package httpapi

import (
	"fmt"
	"testing"
	"time"

	"fencepost/cluster"
)

// Each outcome of a change of the members has its answer; "nothing changed" is said
// only where that is so (P10).
func TestP10_AnswersAboutMembers(t *testing.T) {
	s := loadSpec(t)
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{nil, 200, ""},
		{cluster.ErrUnknownMember, 404, "not_found"},
		{fmt.Errorf("of n2: %w", cluster.ErrNotEligible), 409, "not_eligible"},
		{cluster.ErrNoLeader, 503, "no_leader"},
		{cluster.ErrShuttingDown, 503, "shutting_down"},
		{cluster.ErrOverloaded, 503, "overloaded"},
		{fmt.Errorf("%w: half of it: %w", cluster.ErrOutcomeUnknown, cluster.ErrNoLeader), 504, "outcome_unknown"},
		{fmt.Errorf("anything else"), 500, "internal"},
	} {
		a := newAPIOf(t, s)
		removed, forced := "", false
		a.node.onRemove = func(name string, force bool) error { removed, forced = name, force; return c.err }
		a.node.onTransfer = func(to string) (string, error) { return "n2", c.err }
		got := a.do("DELETE", "/v1/cluster/members/rack%201/n2?force=true", "").is(c.status, c.code)
		if removed != "rack 1/n2" || !forced {
			t.Errorf("removed %q, forced %v", removed, forced)
		}
		moved := a.do("POST", "/v1/cluster/transfer", `{"to":"n2"}`).is(c.status, c.code)
		if c.err == nil {
			got.has("removed", true, "name", "rack 1/n2")
			moved.has("leader", "n2")
		}
	}
	a := newAPIOf(t, s)
	a.node.onRemove = func(string, bool) error { return fmt.Errorf("n1: %w", cluster.ErrLosesQuorum) }
	a.do("DELETE", "/v1/cluster/members/n1", "").is(409, "would_lose_quorum")
	a.node.onTransfer = func(to string) (string, error) {
		if to != "" {
			t.Errorf("asked for %q", to)
		}
		return "n3", nil
	}
	a.do("POST", "/v1/cluster/transfer", "").is(200, "").has("leader", "n3")
	a.do("POST", "/v1/cluster/transfer", "{}").is(200, "")
}

// What is wrong with a request is said before anything is done (P15).
func TestP15_RequestsAboutMembers(t *testing.T) {
	a := newAPI(t) // without hooks: to call one would be a panic, and so 500
	a.do("DELETE", "/v1/cluster/members/", "").is(400, "invalid_request").has("field", "name")
	a.do("DELETE", "/v1/cluster/members/n1?force=yes", "").is(400, "invalid_request").has("field", "force")
	a.do("DELETE", "/v1/cluster/members/n1?forced=true", "").is(400, "invalid_request").has("field", "forced")
	a.do("DELETE", "/v1/cluster/members/n1", "x").is(400, "invalid_request").has("field", "body")
	a.do("POST", "/v1/cluster/transfer", `{"to":""}`).is(400, "invalid_request").has("field", "to")
	a.do("POST", "/v1/cluster/transfer", `{"to":7}`).is(400, "invalid_request").has("field", "to")
	a.do("POST", "/v1/cluster/transfer", `{"from":"n1"}`).is(400, "invalid_request").has("field", "from")
}

// A node of another cluster gets no place in this one, and one that was removed is
// told so in place of being made a member again.
func TestB75_AnotherClustersNodeDoesNotJoin(t *testing.T) {
	a := newAPI(t)
	const node = `"name":"n9","id":"n9-1","raft_addr":"h:1","http_addr":"h:2"`
	a.do("POST", "/v1/cluster/members", `{`+node+`,"cluster_id":"other"}`).is(409, "wrong_cluster")
	a.do("POST", "/v1/cluster/members", `{`+node+`,"cluster_id":"c1","member":true}`).is(409, "removed")
	if _, ok := a.node.state.Node("n9"); ok {
		t.Fatal("it was made a member")
	}
	a.do("POST", "/v1/cluster/members", `{`+node+`,"cluster_id":"c1"}`).is(200, "").has("joined", true)
	a.do("POST", "/v1/cluster/members", `{`+node+`,"cluster_id":"c1","member":true}`).is(200, "")
}

// A leader that is to be removed hands over, and the answer is its successor's: also to
// a request that another node has forwarded already.
func TestRemovalGoesOnToTheSuccessor(t *testing.T) {
	for _, forwarded := range []bool{false, true} {
		p := newPair(t)
		p.leader.onRemove = func(name string, _ bool) error { return nil }
		old := p.follower
		old.mu.Lock()
		old.status.IsLeader = true
		old.mu.Unlock()
		calls := 0
		old.onRemove = func(string, bool) error {
			calls++
			old.mu.Lock()
			old.status.IsLeader = false
			old.mu.Unlock()
			return cluster.ErrHandedOver
		}
		var headers []string
		if forwarded {
			headers = []string{"Fencepost-Forwarded", "n7"}
		}
		p.do("DELETE", "/v1/cluster/members/n2", "", headers...).is(200, "").has("removed", true)
		if calls != 1 {
			t.Fatalf("asked %d times to hand over", calls)
		}
	}
}

// The leader changes while it answers a transfer: the node that has forwarded the call
// waits for the answer all the same.
func TestTransferIsAnsweredThroughAFollower(t *testing.T) {
	p := newPair(t)
	asked, seen := make(chan struct{}), make(chan struct{})
	p.leader.onTransfer = func(string) (string, error) {
		close(asked)
		<-seen
		return "n3", nil
	}
	go func() {
		<-asked
		p.follower.mu.Lock()
		p.follower.status.LeaderURL = "http://n3.test"
		p.follower.mu.Unlock()
		time.Sleep(4 * leaderLook) // it looks meanwhile; a node that breaks off fails the test
		close(seen)
	}()
	p.do("POST", "/v1/cluster/transfer", "").is(200, "").has("leader", "n3")
}

// A node that was removed says so wherever it says no.
func TestRemovedNodeSaysSo(t *testing.T) {
	a := newAPI(t)
	a.node.status.IsLeader, a.node.status.LeaderURL, a.node.status.Removed = false, "", true
	a.do("GET", "/v1/cluster", "").is(200, "").has("removed", true)
	got := a.do("GET", "/v1/leases/l", "").is(503, "no_leader")
	if d, _ := got.body["detail"].(string); d == "" {
		t.Errorf("it does not say why: %s", got.raw)
	}
}
