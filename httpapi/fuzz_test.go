package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"fencepost/httpapi/wire"
)

// What the strict decoder takes is JSON, means the same to encoding/json, and
// comes back unchanged.
func FuzzStrictDecoder(f *testing.F) {
	for _, s := range []string{
		`{"holder":"h"}`, `{"holder":"h","ttl_ms":5000,"wait_ms":0,"metadata":{"a":"b","":"\u00e9\ud83d\ude00"},"slots":1,"take":1,"grace_ms":0}`,
		`{"holder":"\"\\\/\b\f\n\r\t"}`, `{"holder":"h","ttl_ms":1e3}`, ` { "holder" : "h" } `, `{"holder":"h","holder":"h"}`, `{"holder":"\ud800\u0041"}`,
		`{"leases":[{"name":"a","token":1}]}`, `{"token":1,"ops":[{"op":"put","key":"k","value_base64":"AQ=="}]}`, `{"holder":"h"}}`, `[[[[[[`, "{\"\x00",
	} {
		f.Add([]byte(s))
	}
	limits := DefaultLimits()
	f.Fuzz(func(t *testing.T, data []byte) {
		if rs, e := limits.decodeRenewals(data); e == nil {
			var w wire.RenewManyRequest
			unmarshal(t, data, &w)
			for i, r := range rs {
				if got := (wire.Renewal{Name: r.Name, Token: r.Token, TTLMS: r.TtlMs}); got != w.Leases[i] {
					t.Fatalf("got %+v, want %+v", got, w.Leases[i])
				}
			}
		}
		if c, _, e := limits.decodeTxn(data); e == nil {
			var w wire.TxnRequest
			unmarshal(t, data, &w)
			if c.Token != w.Token || c.Lease != w.Lease || len(c.Ops) != len(w.Ops) {
				t.Fatalf("got %v, want %+v", c, w)
			}
		}
		a, e := limits.decodeAcquisition(data)
		if e != nil {
			if e.field == "" || e.detail == "" {
				t.Fatalf("an error that names nothing: %+v", e)
			}
			return
		}
		var w wire.AcquireRequest
		unmarshal(t, data, &w)
		got := map[string]string{}
		for _, p := range a.metadata {
			got[p.Key] = p.Value
		}
		if a.holder != w.Holder || w.TTLMS != 0 && a.ttlMS != w.TTLMS || len(got) != len(w.Metadata) || len(got) > 0 && !reflect.DeepEqual(got, w.Metadata) {
			t.Fatalf("got %+v %v, want %+v", a, got, w)
		}
		again := appendMetadata(appendText([]byte{'{'}, "holder", a.holder), a.metadata)
		b, e := limits.decodeAcquisition(append(again, '}'))
		if e != nil || b.holder != a.holder || len(b.metadata) != len(a.metadata) {
			t.Fatalf("written as %s it comes back as %+v, %v", again, b, e)
		}
	})
}

func unmarshal(t *testing.T, data []byte, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || !json.Valid(data) {
		t.Fatalf("%q was taken, but: %v", data, err)
	}
}

// Every good name goes to one record, however it is written; and what the path
// of one reaches is its own record only.
func FuzzNames(f *testing.F) {
	for _, s := range [][2]string{{"a/b", "a%2Fb"}, {"renew", "a/renew"}, {"..", "%2e%2e"}, {"a b", "a+b"}, {"ä", "a\u0308"}, {"%", "%25"}, {"a//b", "a/b"}, {"?", "#"}} {
		f.Add(s[0], s[1])
	}
	node := newMemory("n1")
	h := New(node, Options{})
	f.Fuzz(func(t *testing.T, a, b string) {
		find := func(method, target string) (string, bool) {
			if strings.ContainsAny(target, " \r\n") {
				return "", false
			}
			u, err := url.ParseRequestURI(target)
			if err != nil {
				return "", false
			}
			w := httptest.NewRecorder()
			x := &exchange{h: h, w: recorder{ResponseWriter: w}, r: &http.Request{Method: method, URL: u, RequestURI: target, Header: http.Header{}}, route: h.metrics.unrouted}
			x.path, _ = rawTarget(x.r)
			ok := h.find(x)
			if !ok && (w.Code < 400 || w.Code >= 500) {
				t.Fatalf("%s %q: answered %d", method, target, w.Code)
			}
			return x.name, ok
		}
		for _, name := range []string{a, b} {
			good := h.limits.checkName("name", name) == nil
			for _, written := range []string{url.PathEscape(name), escapeAll(name), strings.ReplaceAll(url.PathEscape(name), "%2F", "/")} {
				for _, call := range [][2]string{{"GET", "/v1/leases/" + written}, {"POST", "/v1/leases/" + written + "/renew"}, {"PUT", "/v1/kv/" + written}, {"POST", "/v1/kv/" + written + "/fence"}} {
					if got, ok := find(call[0], call[1]); ok != good || ok && got != name {
						t.Fatalf("%s %s: got %q %v, want %q %v", call[0], call[1], got, ok, name, good)
					}
				}
			}
			// As it is, it may mean another name, but never a bad one.
			if got, ok := find("GET", "/v1/leases/"+name); ok && h.limits.checkName("name", got) != nil {
				t.Fatalf("GET %q reaches %q", name, got)
			}
		}
	})
}
