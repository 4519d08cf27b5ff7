package httpapi

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

func (a *api) acquireToken(name string) uint64 {
	a.t.Helper()
	return a.do("POST", "/v1/leases/"+name+"/acquire", `{"holder":"h"}`).is(200, "").number("token")
}

func token10(n uint64) string { return strconv.FormatUint(n, 10) }

func TestALeaseFromAcquireToRelease(t *testing.T) {
	a := newAPI(t)
	got := a.do("POST", "/v1/leases/jobs/nightly/acquire", `{"holder":"w\u00f61","ttl_ms":5000,"metadata":{"b":"2","a":"\"1\""}}`).is(200, "").
		has("name", "jobs/nightly", "holder", "wö1", "ttl_ms", 5000, "expires_in_ms", 5000, "waited_ms", 0, "previous_token", 0, "slots", 1, "take", 1)
	token := got.number("token")
	got.has("oldest_token", token)
	if m := got.body["metadata"].(map[string]any); m["a"] != `"1"` || m["b"] != "2" || len(m) != 2 {
		t.Errorf("metadata: got %v", m)
	}
	if index := got.header.Get("Fencepost-Index"); index != token10(token) {
		t.Errorf("Fencepost-Index: got %s, want %d", index, token)
	}

	a.node.pass(1000)
	a.do("POST", "/v1/leases/jobs/nightly/acquire", `{"holder":"w2"}`).is(409, "lease_held").
		has("holder", "wö1", "token", token, "expires_in_ms", 4000, "queue_length", 0, "waited_ms", 0)
	a.do("POST", "/v1/leases/jobs/nightly/renew", `{"token":`+token10(token)+`,"ttl_ms":9000}`).is(200, "").
		has("name", "jobs/nightly", "token", token, "ttl_ms", 9000, "expires_in_ms", 9000)
	a.do("GET", "/v1/leases/jobs%2Fnightly", "").is(200, "").
		has("held", true, "holder", "wö1", "token", token, "renewals", 1, "free", 0, "last_token", token, "queue_length", 0, "grace_ms", 0)

	a.do("POST", "/v1/leases/jobs/nightly/release", `{"token":`+token10(token+1)+`}`).is(200, "").has("released", false)
	a.do("POST", "/v1/leases/jobs/nightly/release", `{"token":`+token10(token)+`}`).is(200, "").has("released", true)
	a.do("POST", "/v1/leases/jobs/nightly/renew", `{"token":`+token10(token)+`}`).is(409, "lease_lost").
		has("reason", "released", "token", token, "last_token", token)
	a.do("GET", "/v1/leases/jobs/nightly", "").is(200, "").has("held", false, "holder", "", "token", 0, "free", 1, "last_token", token)

	next := a.do("POST", "/v1/leases/jobs/nightly/acquire", `{"holder":"w2","ttl_ms":100}`).is(200, "").has("previous_token", token)
	if next.number("token") <= token {
		t.Errorf("P1: token %d after %d", next.number("token"), token)
	}
	a.do("POST", "/v1/leases/jobs/nightly/renew", `{"token":`+token10(token)+`}`).is(409, "lease_lost").has("reason", "superseded")
	a.node.pass(100)
	a.do("POST", "/v1/leases/jobs/nightly/renew", `{"token":`+token10(next.number("token"))+`}`).is(409, "lease_lost").has("reason", "expired")
	a.node.pass(11 * 60 * 1000)
	a.do("GET", "/v1/leases/jobs/nightly", "").is(404, "not_found")
	a.do("POST", "/v1/leases/jobs/nightly/renew", `{"token":`+token10(token)+`}`).is(409, "lease_lost").has("reason", "ended", "last_token", 0)
}

func TestAKeyIsGuardedByItsWatermark(t *testing.T) {
	a := newAPI(t)
	old := a.acquireToken("l")
	a.do("PUT", "/v1/kv/k", "v0").is(428, "token_required")
	put := a.do("PUT", "/v1/kv/k", "v1", "Fencing-Token", token10(old), "Content-Type", "text/x-test").is(200, "").has("key", "k", "watermark", old)
	version := put.number("version")

	got := a.do("GET", "/v1/kv/k", "", "Accept", "text/html, */*")
	if string(got.raw) != "v1" || got.status != 200 {
		t.Fatalf("got %d %q", got.status, got.raw)
	}
	for name, want := range map[string]string{
		"Etag": `"` + token10(version) + `"`, "Fencing-Watermark": token10(old), "Fencing-Token": token10(old),
		"Content-Type": "text/x-test", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox",
	} {
		if got.header.Get(name) != want {
			t.Errorf("%s: got %q, want %q", name, got.header.Get(name), want)
		}
	}
	a.do("GET", "/v1/kv/k", "", "Accept", "application/json").is(200, "").
		has("value_base64", base64.StdEncoding.EncodeToString([]byte("v1")), "version", version, "token", old, "watermark", old, "content_type", "text/x-test")

	a.do("PUT", "/v1/kv/k", "x", "Fencing-Token", token10(old), "If-Match", `"1"`).is(412, "version_mismatch").has("version", version)
	a.do("PUT", "/v1/kv/k", "x", "Fencing-Token", token10(old), "If-None-Match", `*`).is(412, "version_mismatch").has("version", version)
	version = a.do("PUT", "/v1/kv/k", "v2", "Fencing-Token", token10(old), "If-Match", `"`+token10(version)+`"`).is(200, "").number("version")
	a.do("PUT", "/v1/kv/k", "x", "Fencing-Token", token10(version+1000)).is(422, "token_not_issued").has("token", version+1000)
	a.do("PUT", "/v1/kv/k", "x", "Fencing-Token", token10(old), "Fencing-Lease", "other").is(412, "stale_token").has("reason", "wrong_lease")

	a.node.pass(10_000)
	a.do("PUT", "/v1/kv/k", "x", "Fencing-Token", token10(old), "Fencing-Guard", "held").is(412, "stale_token").has("reason", "not_held")
	other := a.acquireToken("m")
	a.do("POST", "/v1/kv/k/fence", "", "Fencing-Token", token10(other)).is(200, "").has("key", "k", "watermark", other)
	a.do("PUT", "/v1/kv/k", "x", "Fencing-Token", token10(old)).is(412, "stale_token").
		has("reason", "below_watermark", "watermark", other, "token", old)
	newer := a.acquireToken("l")
	a.do("PUT", "/v1/kv/k", "x", "Fencing-Token", token10(old), "Fencing-Lease", "l").is(412, "stale_token").has("reason", "newer_issued")
	a.do("PUT", "/v1/kv/k", "x", "Fencing-Token", token10(old)).is(412, "stale_token").has("reason", "not_on_record")

	a.do("DELETE", "/v1/kv/k", "", "Fencing-Token", token10(newer)).is(200, "").has("deleted", true, "watermark", newer)
	a.do("DELETE", "/v1/kv/k", "", "Fencing-Token", token10(newer)).is(200, "").has("deleted", false)
	gone := a.do("GET", "/v1/kv/k", "").is(404, "not_found").has("watermark", newer)
	if gone.header.Get("Fencing-Watermark") != token10(newer) {
		t.Errorf("P5: the watermark of a deleted key: got %q", gone.header.Get("Fencing-Watermark"))
	}
	if w := a.do("GET", "/v1/kv/never", "").is(404, "not_found").header.Get("Fencing-Watermark"); w != "" {
		t.Errorf("the watermark of a key that never was: got %q", w)
	}
	empty := a.do("PUT", "/v1/kv/empty", "", "Fencing-Token", token10(newer)).is(200, "")
	if got := a.do("GET", "/v1/kv/empty", ""); got.status != 200 || len(got.raw) != 0 || got.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("an empty value put by %s: got %d %q", empty.raw, got.status, got.raw)
	}
}

func TestATransactionIsAllOrNothing(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("l")
	body := func(ops string) string {
		return `{"token":` + token10(token) + `,"lease":"l","guard":"held","ops":[` + ops + `]}`
	}
	got := a.do("POST", "/v1/txn", body(`{"op":"put","key":"a","value_base64":"AQI=","content_type":"x/y"},{"op":"fence","key":"b"},{"op":"delete","key":"c"},{"op":"check","key":"d","if_version":0}`)).is(200, "")
	version := got.number("version")
	results := got.body["results"].([]any)
	if len(results) != 4 || results[0].(map[string]any)["version"] != float64(version) || results[3].(map[string]any)["op"] != "check" {
		t.Errorf("results: got %s", got.raw)
	}
	a.do("POST", "/v1/txn", body(`{"op":"put","key":"z","value_base64":""},{"op":"check","key":"a","if_version":1}`)).is(412, "version_mismatch").
		has("op_index", 1, "version", version)
	a.do("GET", "/v1/kv/z", "").is(404, "not_found")
	other := a.acquireToken("m")
	a.do("POST", "/v1/kv/b/fence", "", "Fencing-Token", token10(other)).is(200, "")
	a.do("POST", "/v1/txn", body(`{"op":"fence","key":"y"},{"op":"put","key":"b","value_base64":""}`)).is(412, "stale_token").
		has("op_index", 1, "reason", "below_watermark", "watermark", other)
	a.do("POST", "/v1/txn", `{"ops":[{"op":"fence","key":"y"}]}`).is(428, "token_required")
}

func TestManyRenewalsAreAnsweredEachByItself(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("a/b")
	got := a.do("POST", "/v1/renew", `{"leases":[{"name":"a/b","token":`+token10(token)+`,"ttl_ms":20000},{"name":"never","token":7}]}`).is(200, "")
	r := got.body["results"].([]any)
	first, second := r[0].(map[string]any), r[1].(map[string]any)
	if first["name"] != "a/b" || first["expires_in_ms"] != float64(20000) || first["code"] != nil {
		t.Errorf("first: got %v", first)
	}
	if second["name"] != "never" || second["token"] != float64(7) || second["code"] != "lease_lost" || second["reason"] != "ended" {
		t.Errorf("second: got %v", second)
	}
}

// P11: a request repeated with the same key is applied once.
func TestARepetitionTellsTheOutcomeOfTheFirst(t *testing.T) {
	a := newAPI(t)
	key := []string{"Idempotency-Key", "k1"}
	acquire := func(body string) *answer { return a.do("POST", "/v1/leases/l/acquire", body, key...) }
	token := acquire(`{"holder":"h","ttl_ms":5000,"metadata":{"x":"1"}}`).is(200, "").number("token")
	a.node.pass(2000)
	acquire(` { "metadata":{"x":"1"}, "wait_ms":0, "slots":1, "take":1, "grace_ms":0, "ttl_ms":5000, "holder":"h" } `).is(200, "").
		has("token", token, "expires_in_ms", 3000)
	acquire(`{"holder":"other","ttl_ms":5000,"metadata":{"x":"1"}}`).is(422, "key_reused")
	acquire(`{"holder":"h","ttl_ms":5000}`).is(422, "key_reused")
	a.node.pass(3000)
	acquire(`{"holder":"h","ttl_ms":5000,"metadata":{"x":"1"}}`).is(409, "lease_lost").has("token", token, "reason", "expired")

	put := func(value string, headers ...string) *answer {
		return a.do("PUT", "/v1/kv/k", value, append([]string{"Idempotency-Key", "k2", "Fencing-Token", token10(token)}, headers...)...)
	}
	version := put("v", "Content-Type", "a/b").is(200, "").number("version")
	put("v", "Content-Type", "a/b").is(200, "").has("version", version)
	put("w", "Content-Type", "a/b").is(422, "key_reused")
	put("v", "Content-Type", "a/c").is(422, "key_reused")
	put("v", "Content-Type", "a/b", "If-Match", `"1"`).is(422, "key_reused")
	put("v", "Content-Type", "a/b", "Fencing-Guard", "latest").is(422, "key_reused")
	// The same key is another request at another path or method.
	a.do("PUT", "/v1/kv/k2", "v", "Idempotency-Key", "k2", "Fencing-Token", token10(token)).is(200, "")
	a.do("DELETE", "/v1/kv/k2", "", "Idempotency-Key", "k2", "Fencing-Token", token10(token)).is(200, "").has("deleted", true)
	a.do("DELETE", "/v1/kv/k2", "", "Idempotency-Key", "k2", "Fencing-Token", token10(token)).is(200, "").has("deleted", true)
	// An encoded slash is the same path.
	a.do("PUT", "/v1/kv/d/k", "v", "Idempotency-Key", "k3", "Fencing-Token", token10(token)).is(200, "")
	a.do("PUT", "/v1/kv/d%2fk", "v", "Idempotency-Key", "k3", "Fencing-Token", token10(token)).is(200, "").has("key", "d/k")
	a.do("PUT", "/v1/kv/d%2fk", "w", "Idempotency-Key", "k3", "Fencing-Token", token10(token)).is(422, "key_reused")
}

func TestListsArePagedInOrder(t *testing.T) {
	a := newAPI(t)
	var token uint64
	for _, name := range []string{"p/a", "p/b", "p/c", "q"} {
		token = a.acquireToken(name)
		a.do("PUT", "/v1/kv/"+name, name, "Fencing-Token", token10(token)).is(200, "")
	}
	a.do("DELETE", "/v1/kv/p/b", "", "Fencing-Token", token10(token)).is(200, "")
	for _, list := range []struct{ path, array, field, want string }{
		{"/v1/leases?prefix=p%2F&limit=2", "leases", "name", "p/a p/b p/c"},
		{"/v1/leases?limit=1", "leases", "name", "p/a p/b p/c q"},
		{"/v1/kv?prefix=p/&limit=1&values=true", "keys", "key", "p/a p/c"},
		{"/v1/kv?consistency=stale", "keys", "key", "p/a p/c q"},
	} {
		var names []string
		after, pages := "", 0
		for {
			got := a.do("GET", list.path+after, "").is(200, "")
			for _, item := range got.body[list.array].([]any) {
				names = append(names, item.(map[string]any)[list.field].(string))
			}
			next := got.body["next"].(string)
			if pages++; next == "" || pages > 9 {
				break
			}
			after = "&after=" + strings.ReplaceAll(next, "/", "%2F")
		}
		if got := strings.Join(names, " "); got != list.want {
			t.Errorf("%s: got %q, want %q", list.path, got, list.want)
		}
	}
	got := a.do("GET", "/v1/kv?values=true&prefix=q", "").is(200, "")
	if v := got.body["keys"].([]any)[0].(map[string]any)["value_base64"]; v != base64.StdEncoding.EncodeToString([]byte("q")) {
		t.Errorf("value: got %v", v)
	}
	if lag := a.do("GET", "/v1/leases/q?consistency=stale", "").is(200, "").header.Get("Fencepost-Lag-Ms"); lag != "12" {
		t.Errorf("Fencepost-Lag-Ms: got %q", lag)
	}
}

func TestAPageOfLargeValuesEndsEarly(t *testing.T) {
	a := newAPI(t)
	a.handler.limits.PageBytes = 10
	token := a.acquireToken("l")
	for _, key := range []string{"a", "b", "c"} {
		a.do("PUT", "/v1/kv/"+key, "123456", "Fencing-Token", token10(token)).is(200, "")
	}
	got := a.do("GET", "/v1/kv?values=true", "").is(200, "").has("next", "a")
	if len(got.body["keys"].([]any)) != 1 {
		t.Errorf("got %s", got.raw)
	}
	a.do("GET", "/v1/kv", "").is(200, "").has("next", "")
}

func TestClusterAndJoin(t *testing.T) {
	a := newAPI(t)
	a.do("POST", "/v1/cluster/members", `{"name":"n2","id":"x","raft_addr":"h:1","http_addr":"h:2","voter":false,"version":"v","understands":1}`).is(200, "").has("joined", true)
	if n, ok := a.node.state.Node("n2"); !ok || n.Voter || n.Understands != 1 || n.HttpAddr != "h:2" {
		t.Errorf("record: got %v", n)
	}
	a.do("GET", "/v1/cluster", "").is(200, "").has("cluster_id", "c1", "leader", "n1", "term", 3)
	a.do("GET", "/v1/cluster/formation", "").is(200, "").has("name", "n1", "cluster_id", "c1")
	a.do("POST", "/v1/cluster/members", `{"name":"n2","id":"x","raft_addr":"h","http_addr":"h:2"}`).is(400, "invalid_request").has("field", "raft_addr")
	a.do("POST", "/v1/cluster/members", `{"name":"n2","id":"x","http_addr":"h:2"}`).is(400, "invalid_request").has("field", "raft_addr")
	// One of this cluster corrects its record; one of another, such as the one that
	// this was recovered from, gets no record.
	a.do("POST", "/v1/cluster/members", `{"name":"n2","id":"x","raft_addr":"h:1","http_addr":"h:2","cluster_id":"c1"}`).is(200, "")
	a.do("POST", "/v1/cluster/members", `{"name":"n3","id":"y","raft_addr":"h:3","http_addr":"h:4","cluster_id":"c0"}`).is(409, "wrong_cluster")
	if n, ok := a.node.state.Node("n3"); ok {
		t.Errorf("a node of another cluster has a record: %v", n)
	}
	if got := a.do("HEAD", "/v1/cluster", ""); got.status != http.StatusOK || len(got.raw) != 0 || got.header.Get("Content-Length") == "0" {
		t.Errorf("HEAD: got %d %q", got.status, got.raw)
	}
}
