package httpapi

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// invalid checks that the request is refused with 400, names the field, and
// costs no entry (P15).
func (a *api) invalid(field, method, target, body string, headers ...string) {
	a.t.Helper()
	before := a.node.entries
	got := a.do(method, target, body, headers...)
	if got.status != 400 || got.body["code"] != "invalid_request" || got.body["field"] != field {
		a.t.Errorf("%s %s %.80s: got %d %s, want 400 for field %q", method, target, body, got.status, got.raw, field)
	}
	if a.node.entries != before {
		a.t.Errorf("%s %s: P15: a malformed request cost an entry", method, target)
	}
}

// B58: units, defaults and ignored fields.
func TestStrictBodies(t *testing.T) {
	a := newAPI(t)
	for _, c := range []struct{ field, body string }{
		{"ttl_ms", `{"holder":"h","ttl_ms":5}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":0}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":99}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":86400001}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":"5000"}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":"5s"}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":5000.0}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":5e3}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":5E3}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":-5000}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":-0}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":+5000}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":05000}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":null}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":true}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":[5000]}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":18446744073709556616}`},
		{"ttl_ms", `{"holder":"h","ttl_ms":5000,"ttl_ms":5000}`},
		{"TTL_MS", `{"holder":"h","TTL_MS":5000}`},
		{"ttl_s", `{"holder":"h","ttl_s":5}`},
		{"ttl", `{"holder":"h","ttl":5000}`},
		{"Holder", `{"Holder":"h"}`},
		{"holder", `{}`},
		{"holder", `{"holder":""}`},
		{"holder", `{"holder":7}`},
		{"holder", `{"holder":null}`},
		{"holder", `{"holder":"\ud800"}`},
		{"holder", `{"holder":"\x"}`},
		{"holder", "{\"holder\":\"\xff\"}"},
		{"holder", "{\"holder\":\"a\nb\"}"},
		{"holder", `{"holder":"h`},
		{"holder", `{"holder":"h","hol\u0064er":"h"}`},
		{"wait_ms", `{"holder":"h","wait_ms":-1}`},
		{"wait_ms", `{"holder":"h","wait_ms":300001}`},
		{"slots", `{"holder":"h","slots":1001}`},
		{"slots", `{"holder":"h","slots":0}`},
		{"take", `{"holder":"h","take":2}`},
		{"take", `{"holder":"h","take":0}`},
		{"take", `{"holder":"h","slots":3,"take":4}`},
		{"grace_ms", `{"holder":"h","grace_ms":60001}`},
		{"metadata", `{"holder":"h","metadata":[]}`},
		{"metadata", `{"holder":"h","metadata":null}`},
		{"metadata.a", `{"holder":"h","metadata":{"a":1}}`},
		{"metadata.a", `{"holder":"h","metadata":{"a":"1","a":"2"}}`},
		{"body", `{"holder":"h"} x`},
		{"body", `{"holder":"h"}{}`},
		{"body", `[]`}, {"body", `"x"`}, {"body", `null`}, {"body", `5`}, {"body", ``}, {"body", ` `},
		{"body", `{"holder":"h",}`}, {"body", `{"holder":"h"`}, {"body", `{holder:"h"}`}, {"body", `{"":1}`},
	} {
		a.invalid(c.field, "POST", "/v1/leases/l/acquire", c.body)
	}
	for _, c := range []struct{ field, path, body string }{
		{"token", "/v1/leases/l/renew", `{}`},
		{"token", "/v1/leases/l/renew", `{"token":0}`},
		{"token", "/v1/leases/l/renew", `{"token":9007199254740992}`},
		{"token", "/v1/leases/l/renew", `{"token":"7"}`},
		{"holder", "/v1/leases/l/renew", `{"token":7,"holder":"other"}`},
		{"ttl_ms", "/v1/leases/l/renew", `{"token":7,"ttl_ms":0}`},
		{"value", "/v1/leases/l/release", `{"token":7,"value":"x"}`},
		{"token", "/v1/leases/l/release", `{"token":7.0}`},
		{"leases", "/v1/renew", `{"leases":[]}`},
		{"leases", "/v1/renew", `{}`},
		{"leases", "/v1/renew", `{"leases":{}}`},
		{"leases[1].token", "/v1/renew", `{"leases":[{"name":"a","token":1},{"name":"a","token":"1"}]}`},
		{"leases[1].token", "/v1/renew", `{"leases":[{"name":"a","token":1},{"name":"a"}]}`},
		{"leases[0].name", "/v1/renew", `{"leases":[{"name":"a//b","token":1}]}`},
		{"leases[0].name", "/v1/renew", `{"leases":[{"token":1}]}`},
		{"leases[0].ttl", "/v1/renew", `{"leases":[{"name":"a","token":1,"ttl":5}]}`},
		{"leases[0]", "/v1/renew", `{"leases":[7]}`},
		{"ops", "/v1/txn", `{"token":1}`},
		{"ops", "/v1/txn", `{"token":1,"ops":[]}`},
		{"token", "/v1/txn", `{"token":0,"ops":[{"op":"fence","key":"k"}]}`},
		{"guard", "/v1/txn", `{"token":1,"guard":"none","ops":[{"op":"fence","key":"k"}]}`},
		{"lease", "/v1/txn", `{"token":1,"lease":"","ops":[{"op":"fence","key":"k"}]}`},
		{"ops[0].op", "/v1/txn", `{"token":1,"ops":[{"op":"PUT","key":"k"}]}`},
		{"ops[0].op", "/v1/txn", `{"token":1,"ops":[{"key":"k"}]}`},
		{"ops[0].key", "/v1/txn", `{"token":1,"ops":[{"op":"fence"}]}`},
		{"ops[0].key", "/v1/txn", `{"token":1,"ops":[{"op":"fence","key":"../k"}]}`},
		{"ops[1].key", "/v1/txn", `{"token":1,"ops":[{"op":"fence","key":"k"},{"op":"fence","key":"\u006b"}]}`},
		{"ops[0].value_base64", "/v1/txn", `{"token":1,"ops":[{"op":"put","key":"k"}]}`},
		{"ops[0].value_base64", "/v1/txn", `{"token":1,"ops":[{"op":"put","key":"k","value_base64":"AQI"}]}`},
		{"ops[0].value_base64", "/v1/txn", `{"token":1,"ops":[{"op":"put","key":"k","value_base64":"AQ\nI="}]}`},
		{"ops[0].value_base64", "/v1/txn", `{"token":1,"ops":[{"op":"delete","key":"k","value_base64":""}]}`},
		{"ops[0].content_type", "/v1/txn", `{"token":1,"ops":[{"op":"fence","key":"k","content_type":"a/b"}]}`},
		{"ops[0].content_type", "/v1/txn", `{"token":1,"ops":[{"op":"put","key":"k","value_base64":"","content_type":"a\nb"}]}`},
		{"ops[0].if_version", "/v1/txn", `{"token":1,"ops":[{"op":"check","key":"k"}]}`},
		{"ops[0].if_version", "/v1/txn", `{"token":1,"ops":[{"op":"check","key":"k","if_version":-1}]}`},
	} {
		a.invalid(c.field, "POST", c.path, c.body)
	}
}

func TestBodiesOfCurlAreTaken(t *testing.T) {
	a := newAPI(t)
	for i, contentType := range []string{"", "application/json", "application/json; charset=utf-8", "application/x-www-form-urlencoded"} {
		var headers []string
		if contentType != "" {
			headers = []string{"Content-Type", contentType, "Content-Encoding", "identity"}
		}
		a.do("POST", "/v1/leases/l"+strconv.Itoa(i)+"/acquire", `{"holder":"h"}`, headers...).is(200, "")
	}
	a.invalid("Content-Type", "POST", "/v1/leases/l/acquire", `{"holder":"h"}`, "Content-Type", "text/plain")
	a.invalid("Content-Encoding", "POST", "/v1/leases/l/acquire", "\x1f\x8b", "Content-Encoding", "gzip")
	a.invalid("Content-Encoding", "PUT", "/v1/kv/k", "\x1f\x8b", "Content-Encoding", "gzip", "Fencing-Token", "1")
}

func TestStrictHeadersAndParameters(t *testing.T) {
	a := newAPI(t)
	for _, token := range []string{"0", "-1", "+1", "01", "1.0", "1e3", " ", "x", "9007199254740992", "18446744073709551617", "0x1", "1 2", "１"} {
		a.invalid("Fencing-Token", "PUT", "/v1/kv/k", "v", "Fencing-Token", token)
	}
	for _, c := range [][]string{
		{"Fencing-Token", "Fencing-Token", "2"},
		{"Fencing-Guard", "Fencing-Guard", "Held"},
		{"Fencing-Guard", "Fencing-Guard", ""},
		{"Fencing-Lease", "Fencing-Lease", "a//b"},
		{"Fencing-Lease", "Fencing-Lease", ""},
		{"If-Match", "If-Match", "1"},
		{"If-Match", "If-Match", `W/"1"`},
		{"If-Match", "If-Match", `"1", "2"`},
		{"If-Match", "If-Match", `*`},
		{"If-Match", "If-Match", `""`},
		{"If-Match", "If-Match", `"01"`},
		{"If-Match", "If-Match", `"1"`, "If-None-Match", "*"},
		{"If-Match", "If-Match", `"1"`, "If-Match", `"1"`},
		{"If-None-Match", "If-None-Match", `"1"`},
		{"Idempotency-Key", "Idempotency-Key", ""},
		{"Idempotency-Key", "Idempotency-Key", "a b"},
		{"Idempotency-Key", "Idempotency-Key", "é"},
		{"Idempotency-Key", "Idempotency-Key", "a", "Idempotency-Key", "a"},
		{"Content-Type", "Content-Type", "a/b\xff"},
		{"Fencepost-Route", "Fencepost-Route", "remote"},
	} {
		for _, call := range []string{"PUT /v1/kv/k", "DELETE /v1/kv/k", "POST /v1/kv/k/fence"} {
			method, path, _ := strings.Cut(call, " ")
			if c[0] == "Content-Type" && method != "PUT" {
				continue
			}
			a.invalid(c[0], method, path, "", append([]string{"Fencing-Token", "1"}, c[1:]...)...)
		}
	}
	a.invalid("body", "DELETE", "/v1/kv/k", "x", "Fencing-Token", "1")
	a.invalid("body", "POST", "/v1/kv/k/fence", "{}", "Fencing-Token", "1")
	for _, c := range [][2]string{
		{"limit", "/v1/leases?limit=0"}, {"limit", "/v1/leases?limit=1001"}, {"limit", "/v1/leases?limit=-1"}, {"limit", "/v1/leases?limit="},
		{"limit", "/v1/leases?limit=1&limit=1"}, {"Limit", "/v1/leases?Limit=1"}, {"values", "/v1/leases?values=true"}, {"values", "/v1/kv?values=yes"},
		{"prefix", "/v1/kv?prefix=%ff"}, {"prefix", "/v1/kv?prefix=%2"}, {"consistency", "/v1/leases/l?consistency=weak"}, {"x", "/v1/leases/l?x"},
		{"force", "/v1/cluster?force=true"}, {"query", "/v1/kv?%zz=1"},
	} {
		a.invalid(c[0], "GET", c[1], "")
	}
	a.invalid("x", "POST", "/v1/leases/l/acquire?x=1", `{"holder":"h"}`)
	a.invalid("consistency", "PUT", "/v1/kv/k?consistency=stale", "v", "Fencing-Token", "1")
}

// Two different names never reach one record, and nothing is cleaned.
func TestHostileNames(t *testing.T) {
	a := newAPI(t)
	for _, path := range []string{
		"", "/", "a/", "/a", "a//b", ".", "..", "a/.", "./a", "a/../b", "%2e", "%2E%2e", "a/%2e%2E/b", "a%2F..%2fb", "a%2F", "%2Fa", "a%2f%2Fb",
		"%00", "a%0Ab", "%7f", "%C2%85", "%ff", "%c3", "a%1fb",
	} {
		a.invalid("name", "GET", "/v1/leases/"+path, "")
		a.invalid("name", "POST", "/v1/leases/"+path+"/acquire", `{"holder":"h"}`)
		a.invalid("key", "GET", "/v1/kv/"+path, "")
		a.invalid("key", "PUT", "/v1/kv/"+path, "v", "Fencing-Token", "1")
		a.invalid("key", "POST", "/v1/kv/"+path+"/fence", "", "Fencing-Token", "1")
	}
	names := []string{
		"a", "A", "a/b", "renew", "acquire", "a/acquire", "a/release/renew", "...", "a/.b", "a b", "a+b", "%", "a%2Fb", "a?b", "a#b", "a&b=c;d",
		"ä", "a\u0308", "日本", "\u202e", "{name}", `a\b`, `"`, "'", "a:b", "*", "~", "a|b", "^", "[x]", "--", "v1/leases/x", "acquire/acquire",
	}
	tokens := map[uint64]string{}
	for _, name := range names {
		token := a.do("POST", "/v1/leases/"+escapeAll(name)+"/acquire", `{"holder":"h"}`).is(200, "").has("name", name).number("token")
		if other, ok := tokens[token]; ok {
			t.Errorf("P2: %q and %q have one token", name, other)
		}
		tokens[token] = name
		a.do("PUT", "/v1/kv/"+escapeAll(name), name, "Fencing-Token", token10(token)).is(200, "").has("key", name)
	}
	for _, name := range names {
		a.do("GET", "/v1/leases/"+escapeAll(name), "").is(200, "").has("name", name, "held", true)
		if got := a.do("GET", "/v1/kv/"+escapeAll(name), ""); string(got.raw) != name {
			t.Errorf("key %q: got %q", name, got.raw)
		}
	}
	// As written by hand, with only what must be encoded.
	for raw, name := range map[string]string{"a/b": "a/b", "a%2Fb": "a/b", "a+b": "a+b", "a/acquire": "a/acquire", "ä": "ä", "a|b": "a|b", "%61": "a", "renew": "renew"} {
		a.do("GET", "/v1/leases/"+raw, "").is(200, "").has("name", name)
	}
	a.do("POST", "/v1/leases/x%2Facquire", `{"holder":"h"}`).is(404, "not_found") // an encoded slash does not part the verb
	a.do("GET", "/v1%2fleases/a", "").is(404, "not_found")
	a.do("GET", "/v1%2fleases/a|b", "").is(404, "not_found")
	a.do("GET", "//v1/leases/a", "").is(404, "not_found")
	a.do("GET", "/v1/../v1/leases/a", "").is(404, "not_found")
}

// escapeAll percent-encodes every byte that is no letter or digit.
func escapeAll(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// B59: each limit at n-1, n and n+1.
func TestLimits(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("t")
	fenced := []string{"Fencing-Token", token10(token)}
	long := func(n int) string { return strings.Repeat("x", n) }
	batch := func(n int, one string) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	ops := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,{"op":"fence","key":"k%d"}`, i)
		}
		return `{"token":` + token10(token) + `,"ops":[` + strings.TrimPrefix(b.String(), ",") + `]}`
	}
	pad := func(n int, body string) string { return body + strings.Repeat(" ", n-len(body)) }
	for _, c := range []struct {
		what  string
		limit int
		over  int    // status above the limit
		field string // or limit_bytes, if it is 413
		send  func(n int) *answer
	}{
		{"name", 512, 400, "name", func(n int) *answer { return a.do("POST", "/v1/leases/"+long(n)+"/acquire", `{"holder":"h"}`) }},
		{"key", 512, 400, "key", func(n int) *answer { return a.do("PUT", "/v1/kv/"+long(n), "v", fenced...) }},
		{"name of 2-byte characters", 256, 400, "name", func(n int) *answer {
			return a.do("POST", "/v1/leases/"+strings.Repeat("%C3%A4", n)+"/acquire", `{"holder":"h"}`)
		}},
		{"holder", 256, 400, "holder", func(n int) *answer {
			return a.do("POST", "/v1/leases/h"+strconv.Itoa(n)+"/acquire", `{"holder":"`+long(n)+`"}`)
		}},
		{"ttl", 86400000, 400, "ttl_ms", func(n int) *answer {
			return a.do("POST", "/v1/leases/t"+strconv.Itoa(n)+"/acquire", `{"holder":"h","ttl_ms":`+strconv.Itoa(n)+`}`)
		}},
		{"metadata", 4096, 413, "4096", func(n int) *answer {
			return a.do("POST", "/v1/leases/m"+strconv.Itoa(n)+"/acquire", `{"holder":"h","metadata":{"a":"`+long(2000)+`","b":"`+long(n-2002)+`"}}`)
		}},
		{"value", 512 << 10, 413, "524288", func(n int) *answer { return a.do("PUT", "/v1/kv/v", long(n), fenced...) }},
		{"value in chunks", 512 << 10, 413, "524288", func(n int) *answer { return a.chunked("PUT", "/v1/kv/v", long(n), fenced...) }},
		{"request", 1 << 20, 413, "1048576", func(n int) *answer {
			return a.do("POST", "/v1/leases/r"+strconv.Itoa(n)+"/acquire", pad(n, `{"holder":"h"}`))
		}},
		{"request in chunks", 1 << 20, 413, "1048576", func(n int) *answer {
			return a.chunked("POST", "/v1/leases/rc"+strconv.Itoa(n)+"/acquire", pad(n, `{"holder":"h"}`))
		}},
		{"operations", 128, 400, "ops", func(n int) *answer { return a.do("POST", "/v1/txn", ops(n)) }},
		{"renewals", 1000, 400, "leases", func(n int) *answer {
			return a.do("POST", "/v1/renew", `{"leases":[`+batch(n, `{"name":"t","token":`+token10(token)+`}`)+`]}`)
		}},
		{"page", 1000, 400, "limit", func(n int) *answer { return a.do("GET", "/v1/leases?limit="+strconv.Itoa(n), "") }},
		{"idempotency key", 128, 400, "Idempotency-Key", func(n int) *answer {
			return a.do("POST", "/v1/leases/i"+strconv.Itoa(n)+"/acquire", `{"holder":"h"}`, "Idempotency-Key", long(n))
		}},
		{"content type", 256, 400, "Content-Type", func(n int) *answer {
			return a.do("PUT", "/v1/kv/c", "v", append([]string{"Content-Type", long(n)}, fenced...)...)
		}},
	} {
		for _, n := range []int{c.limit - 1, c.limit} {
			if got := c.send(n); got.status != 200 {
				t.Errorf("%s of %d: got %d %s", c.what, n, got.status, got.raw)
			}
		}
		before := a.node.entries
		got := c.send(c.limit + 1)
		if got.status != c.over {
			t.Errorf("%s of %d: got %d %s, want %d", c.what, c.limit+1, got.status, got.raw, c.over)
		} else if c.over == 413 && got.has("code", "too_large").number("limit_bytes") != mustNumber(c.field) {
			t.Errorf("%s: got %s", c.what, got.raw)
		} else if c.over == 400 {
			got.has("field", c.field)
		}
		if a.node.entries != before {
			t.Errorf("%s of %d: P15: it cost an entry", c.what, c.limit+1)
		}
	}
	// A transaction's value counts decoded.
	value := func(n int) string {
		return `{"token":` + token10(token) + `,"ops":[{"op":"put","key":"v","value_base64":"` + base64Of(n) + `"}]}`
	}
	a.do("POST", "/v1/txn", value(512<<10)).is(200, "")
	a.do("POST", "/v1/txn", value(512<<10+1)).is(413, "too_large").has("limit_bytes", 512<<10, "field", "ops[0].value_base64")
}

func mustNumber(s string) uint64 {
	n, _ := wholeNumber(s)
	return n
}

// chunked sends a body whose length is not told.
func (a *api) chunked(method, target, body string, headers ...string) *answer {
	a.t.Helper()
	req := httptest.NewRequest(method, target, io.MultiReader(strings.NewReader(body)))
	req.ContentLength = -1
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, req)
	return a.spec.check(a.t, req, w.Code, w.Header(), w.Body.Bytes())
}

func base64Of(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
