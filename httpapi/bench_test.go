package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// What a request costs beside net/http; the state machine's share is in it.
func BenchmarkRequests(b *testing.B) {
	for _, c := range []struct{ name, method, path, body string }{
		{"acquire", "POST", "/v1/leases/jobs/nightly/acquire", `{"holder":"worker-1","ttl_ms":10000,"metadata":{"host":"10.0.0.7"}}`},
		{"renew", "POST", "/v1/leases/jobs/nightly/renew", `{"token":2}`},
		{"put", "PUT", "/v1/kv/jobs/state", strings.Repeat("x", 256)},
		{"get", "GET", "/v1/leases/jobs/nightly", ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			h := New(newMemory("n1"), Options{})
			defer h.Close()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/leases/jobs/nightly/acquire", strings.NewReader(`{"holder":"h"}`)))
			req := httptest.NewRequest(c.method, c.path, nil)
			req.Header.Set("Fencing-Token", "2")
			w := &discard{h: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				req.Body = http.NoBody
				if req.ContentLength = int64(len(c.body)); c.body != "" {
					req.Body = nopBody{strings.NewReader(c.body)}
				}
				clear(w.h)
				h.ServeHTTP(w, req)
			}
		})
	}
}

type nopBody struct{ *strings.Reader }

func (nopBody) Close() error { return nil }
