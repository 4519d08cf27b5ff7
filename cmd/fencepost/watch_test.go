package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"fencepost/httpapi/wire"
)

// events answers a watch with these events, and then as the one after it in the
// list; the last one again and again.
func events(streams ...string) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		now := streams[0]
		if len(streams) > 1 {
			streams = streams[1:]
		}
		mu.Unlock()
		if now == "" {
			problemAnswer(wire.Problem{Code: wire.CodeCompacted, Oldest: 99})(w, nil)
			return
		}
		w.Header().Set("Content-Type", wire.ContentTypeEvents)
		io.WriteString(w, now)
	}
}

const (
	grantedEvent = "event: granted\ndata: {\"index\":41,\"kind\":\"granted\",\"name\":\"jobs/a\",\"holder\":\"w2\",\"token\":41,\"previous_holder\":\"w1\",\"previous_token\":17,\"ttl_ms\":10000,\"queue_length\":2}\nid: 41\n\n"
	refusedEvent = "event: refused\ndata: {\"index\":42,\"kind\":\"refused\",\"key\":\"k\",\"holder\":\"w1\",\"token\":17,\"watermark\":41,\"reason\":\"below_watermark\"}\nid: 42\n\n"
)

func TestWatchPrints(t *testing.T) {
	for _, tt := range []struct{ output, want string }{
		{"text", `41       granted   jobs/a  to "w2", token 41, for 10s, before: "w1", token 17, 2 waiting` + "\n" +
			`42       refused   k  a write with token 17, of "w1", the watermark is 41: below_watermark` + "\n"},
		{"json", `{"index":41,"kind":"granted","name":"jobs/a","holder":"w2","token":41,"previous_holder":"w1","previous_token":17,"ttl_ms":10000,"queue_length":2}` + "\n" +
			`{"index":42,"kind":"refused","key":"k","holder":"w1","token":17,"watermark":41,"reason":"below_watermark"}` + "\n"},
	} {
		n := newFakeNode(t, map[string]http.HandlerFunc{"GET /v1/watch": events("id: 40\n\n"+grantedEvent, refusedEvent, "")})
		code, stdout, stderr := command(t, "", "watch", "--endpoints", n.URL, "-o", tt.output, "--prefix", "j", "--kind", "lease,refusal", "--renewals")
		if stdout != tt.want {
			t.Errorf("%s: got\n%swant\n%s", tt.output, stdout, tt.want)
		}
		if code != exitRefused || !strings.Contains(stderr, "compacted") || !strings.Contains(stderr, "--from 99") {
			t.Errorf("exit %d: %s", code, stderr)
		}
		r, _ := n.last(t)
		if r.URL.RawQuery != "kind=lease&kind=refusal&prefix=j&renewals=true" || r.Header.Get("Last-Event-ID") != "42" {
			t.Errorf("asked for %q after %q", r.URL.RawQuery, r.Header.Get("Last-Event-ID"))
		}
	}
}

// An interrupt is how a watch ends: exit code 0.
func TestWatchIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := newFakeNode(t, map[string]http.HandlerFunc{"GET /v1/watch": func(w http.ResponseWriter, r *http.Request) {
		events("id: 40\n\n"+grantedEvent)(w, r)
		http.NewResponseController(w).Flush()
		cancel()
		<-r.Context().Done()
	}})
	var stderr bytes.Buffer
	if code := run(ctx, []string{"watch", "--endpoints", n.URL}, strings.NewReader(""), io.Discard, &stderr); code != exitDone {
		t.Fatalf("exit %d, want %d: %s", code, exitDone, stderr.String())
	}
}

func TestWatchExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"--kind", "leases"}, exitUsage},
		{[]string{"--from", "9007199254740992"}, exitUsage},
		{[]string{"--from", "-1"}, exitUsage},
		{[]string{"more"}, exitUsage},
		{[]string{"--endpoints", "http://127.0.0.1:1", "--timeout", "100ms"}, exitUnavailable},
	} {
		if code, _, stderr := command(t, "", append([]string{"watch"}, tt.args...)...); code != tt.code {
			t.Errorf("%v: exit %d, want %d: %s", tt.args, code, tt.code, stderr)
		}
	}
}
