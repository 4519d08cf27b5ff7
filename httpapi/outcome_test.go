package httpapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"fencepost/cluster"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// Every code that an entry can decide has its answer, and the reverse: a code
// that is added to the log's schema without one fails here.
func TestEveryOutcomeHasItsAnswer(t *testing.T) {
	want := map[fsmpb.Code]struct {
		status int
		code   string
	}{
		fsmpb.Code_CODE_OK:               {200, ""},
		fsmpb.Code_CODE_INVALID_REQUEST:  {400, "invalid_request"},
		fsmpb.Code_CODE_FORBIDDEN:        {403, "forbidden"},
		fsmpb.Code_CODE_LEASE_HELD:       {409, "lease_held"},
		fsmpb.Code_CODE_LEASE_LOST:       {409, "lease_lost"},
		fsmpb.Code_CODE_STALE_TOKEN:      {412, "stale_token"},
		fsmpb.Code_CODE_VERSION_MISMATCH: {412, "version_mismatch"},
		fsmpb.Code_CODE_TOKEN_NOT_ISSUED: {422, "token_not_issued"},
		fsmpb.Code_CODE_KEY_REUSED:       {422, "key_reused"},
		fsmpb.Code_CODE_NOT_FOUND:        {404, "not_found"},
		fsmpb.Code_CODE_QUEUED:           {500, "internal"}, // the node waits, and never answers it
		fsmpb.Code_CODE_CANCELLED:        {409, "cancelled"},
		fsmpb.Code_CODE_SLOTS_DIFFER:     {409, "slots_differ"},
	}
	for n := range fsmpb.Code_name {
		w, ok := want[fsmpb.Code(n)]
		if !ok {
			t.Errorf("%v has no row here", fsmpb.Code(n))
			continue
		}
		code := codeOf(fsmpb.Code(n))
		if string(code) != w.code {
			t.Errorf("%v: got code %q, want %q", fsmpb.Code(n), code, w.code)
		}
		if status, title := code.HTTP(); code != "" && (status != w.status || title == "") {
			t.Errorf("%v: got %d %q, want %d", code, status, title, w.status)
		}
	}
	seen := map[string]bool{}
	for n := range fsmpb.Reason_name {
		name := reasonOf(fsmpb.Reason(n))
		if (name == "") != (fsmpb.Reason(n) == fsmpb.Reason_REASON_NONE) || seen[name] {
			t.Errorf("%v: got reason %q", fsmpb.Reason(n), name)
		}
		seen[name] = true
	}
}

// P10: an error of the node is 503 only if it says that surely nothing was
// applied.
func TestErrorsOfTheNodeAreAnsweredHonestly(t *testing.T) {
	s := loadSpec(t)
	for _, c := range []struct {
		err    error
		status int // of a mutation
		code   string
		read   int
	}{
		{cluster.ErrNoLeader, 503, "no_leader", 503},
		{cluster.ErrShuttingDown, 503, "shutting_down", 503},
		{cluster.ErrOverloaded, 503, "overloaded", 503},
		{fmt.Errorf("wrapped: %w", cluster.ErrNoLeader), 503, "no_leader", 503},
		{&cluster.NotUnderstoodError{Member: "n2", Understands: 1, Need: 2}, 503, "not_ready", 503},
		{&cluster.QuotaError{What: "leases", Limit: 7}, 429, "quota_reached", 0},
		{&cluster.QueueFullError{Limit: 7}, 429, "queue_full", 0},
		{cluster.ErrOutcomeUnknown, 504, "outcome_unknown", 503},
		{fmt.Errorf("%w: %w", cluster.ErrOutcomeUnknown, cluster.ErrShuttingDown), 504, "outcome_unknown", 503},
		{fmt.Errorf("%w: %w", cluster.ErrOutcomeUnknown, cluster.ErrNoLeader), 504, "outcome_unknown", 503},
		{context.Canceled, 504, "outcome_unknown", 503},
		{context.DeadlineExceeded, 504, "outcome_unknown", 503},
		{errors.New("disk on fire at /secret"), 500, "internal", 500},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			a := newAPIOf(t, s)
			a.node.onAcquire = func(*fsmpb.Acquire) (r cluster.Reply[*fsmpb.Outcome], err error) { return r, c.err }
			a.node.onWrite = func(*fsmpb.Write) (r cluster.Reply[*fsmpb.Outcome], err error) { return r, c.err }
			a.node.onRenew = func() error { return c.err }
			a.node.onRead = func() error { return c.err }
			a.node.onJoin = func(*fsmpb.Node) error { return c.err }
			got := a.do("POST", "/v1/leases/l/acquire", `{"holder":"h"}`).is(c.status, c.code)
			if retry := got.header.Get("Retry-After"); (retry != "") != (c.status == 503 || c.status == 429) {
				t.Errorf("Retry-After: got %q", retry)
			}
			if key := got.header.Get("Idempotency-Key"); (key != "") != (c.status == 504) {
				t.Errorf("Idempotency-Key: got %q", key)
			}
			if s := string(got.raw); c.status == 500 && len(s) > 0 && (strings.Contains(s, "secret") || !strings.Contains(s, got.header.Get("X-Request-Id"))) {
				t.Errorf("500 must tell the request id and nothing of the inside: %s", s)
			}
			put := a.do("PUT", "/v1/kv/k", "v", "Fencing-Token", "1", "Idempotency-Key", "mine").is(c.status, c.code)
			if c.status == 504 && put.header.Get("Idempotency-Key") != "mine" {
				t.Errorf("Idempotency-Key: got %q", put.header.Get("Idempotency-Key"))
			}
			if c.status != 429 { // renewals and joins need no room
				a.do("POST", "/v1/renew", `{"leases":[{"name":"a","token":1}]}`).is(c.status, c.code)
				a.do("POST", "/v1/cluster/members", `{"name":"a","id":"b","raft_addr":"h:1","http_addr":"h:1"}`).is(c.status, c.code)
			}
			for _, path := range []string{"/v1/leases/l", "/v1/leases", "/v1/kv/k", "/v1/kv"} {
				if c.read != 0 {
					if got := a.do("GET", path, ""); got.status != c.read {
						t.Errorf("GET %s: got %d, want %d", path, got.status, c.read)
					}
				}
				if got := a.do("GET", path+"?consistency=stale", ""); got.status != 200 && got.status != 404 {
					t.Errorf("GET %s: a stale read needs no leader, got %d", path, got.status)
				}
			}
		})
	}
}

func TestOutcomesThatTheStateMachineCannotMakeHereYet(t *testing.T) {
	a := newAPI(t)
	var o *fsmpb.Outcome
	a.node.onWrite = func(*fsmpb.Write) (cluster.Reply[*fsmpb.Outcome], error) {
		return cluster.Reply[*fsmpb.Outcome]{Outcome: o, Index: 77}, nil
	}
	put := func() *answer { return a.do("PUT", "/v1/kv/k", "v", "Fencing-Token", "1") }
	o = &fsmpb.Outcome{Code: fsmpb.Code_CODE_FORBIDDEN}
	if index := put().is(403, "forbidden").header.Get("Fencepost-Index"); index != "77" {
		t.Errorf("Fencepost-Index: got %s, want 77", index)
	}
	o = &fsmpb.Outcome{Code: fsmpb.Code_CODE_INVALID_REQUEST, Field: "key"}
	put().is(400, "invalid_request").has("field", "key")
	o = &fsmpb.Outcome{} // done, but nothing of the operation: a bug must not pass for success
	put().is(500, "internal")
	o = nil
	a.node.onWrite = func(*fsmpb.Write) (cluster.Reply[*fsmpb.Outcome], error) { panic("bug") }
	put().is(500, "internal")
	a.node.onJoin = func(*fsmpb.Node) error { return cluster.ErrNameInUse }
	a.do("POST", "/v1/cluster/members", `{"name":"a","id":"b","raft_addr":"h:1","http_addr":"h:1"}`).is(409, string(wire.CodeNameInUse))
}
