package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/httpapi/wire"
)

// fakeNode answers by method and path, with what the API would say; it keeps the
// requests.
type fakeNode struct {
	*httptest.Server
	mu       sync.Mutex // guards requests
	requests []*http.Request
	bodies   []string
}

func newFakeNode(t *testing.T, routes map[string]http.HandlerFunc) *fakeNode {
	t.Helper()
	n := new(fakeNode)
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		n.mu.Lock()
		n.requests, n.bodies = append(n.requests, r), append(n.bodies, string(b))
		n.mu.Unlock()
		if h := routes[r.Method+" "+r.URL.Path]; h != nil {
			h(w, r)
			return
		}
		problemAnswer(wire.Problem{Code: wire.CodeNotFound, Detail: "no route " + r.URL.Path})(w, r)
	}))
	t.Cleanup(n.Close)
	return n
}

func (n *fakeNode) last(t *testing.T) (*http.Request, string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.requests) == 0 {
		t.Fatal("nothing was asked")
	}
	return n.requests[len(n.requests)-1], n.bodies[len(n.bodies)-1]
}

func jsonAnswer(v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v)
	}
}

func problemAnswer(p wire.Problem) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		p.Status, p.Title = p.Code.HTTP()
		w.Header().Set("Content-Type", wire.ContentTypeProblem)
		w.WriteHeader(p.Status)
		json.NewEncoder(w).Encode(p)
	}
}

// command runs one command line.
func command(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	code = run(ctx, args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

func pointer[T any](v T) *T { return &v }

func workingNode(t *testing.T) *fakeNode {
	lease := wire.Lease{
		Name: "jobs/a", Held: true, Holder: "me", Token: 42, TTLMS: 10000, ExpiresInMS: 9500, LastToken: 42, Slots: 4, Free: 3, QueueLength: 2,
		Holders: []wire.Holder{{Holder: "me", Token: 42, Take: 1, TTLMS: 10000, ExpiresInMS: 9500}},
	}
	ended := wire.Lease{Name: "jobs/b", LastToken: 40, Slots: 1, GraceMS: 3000}
	value := "aGVsbG8A" // "hello" and a zero byte
	return newFakeNode(t, map[string]http.HandlerFunc{
		"POST /v1/leases/jobs/a/acquire": jsonAnswer(wire.Acquired{Name: "jobs/a", Holder: "me", Token: 42, TTLMS: 10000, ExpiresInMS: 10000, PreviousToken: 40}),
		"POST /v1/leases/jobs/a/renew":   jsonAnswer(wire.Renewed{Name: "jobs/a", Token: 42, TTLMS: 10000, ExpiresInMS: 10000}),
		"POST /v1/leases/jobs/a/release": jsonAnswer(wire.Released{Released: true}),
		"GET /v1/leases":                 jsonAnswer(wire.Leases{Leases: []wire.Lease{lease, ended}}),
		"PUT /v1/kv/k":                   jsonAnswer(wire.Put{Key: "k", Version: 43, Watermark: 42}),
		"DELETE /v1/kv/k":                jsonAnswer(wire.Deleted{Key: "k", Deleted: true, Watermark: 42}),
		"POST /v1/kv/k/fence":            jsonAnswer(wire.Fenced{Key: "k", Watermark: 42}),
		"GET /v1/kv/k":                   jsonAnswer(wire.Key{Key: "k", ValueBase64: &value, Version: 43, Token: 42, Watermark: 42}),
		"GET /v1/kv":                     jsonAnswer(wire.Keys{Keys: []wire.Key{{Key: "k", Version: 43, Token: 42, Watermark: 42}}}),
		"GET /v1/cluster": jsonAnswer(wire.Cluster{
			ClusterID: "c1", Leader: "n1", Term: 3, Index: 50,
			Nodes: []wire.Node{
				{Name: "n1", Role: wire.RoleVoter, Leader: true, Healthy: true, AppliedIndex: 50, HTTPAddr: "h:1"},
				{Name: "n2", Role: wire.RoleVoter, Healthy: true, AppliedIndex: 48, HTTPAddr: "h:2"},
				{Name: "n3", Role: wire.RoleVoter, HTTPAddr: "h:3", LastContactMS: 5000},
			},
		}),
	})
}

func TestCommandsPrint(t *testing.T) {
	n := workingNode(t)
	file := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(file, []byte("from file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		stdin string
		args  []string
		want  []string // in stdout
		exact string   // all of stdout
		sent  string   // body of the request
	}{
		{name: "acquire", args: []string{"acquire", "jobs/a", "--holder", "me", "--metadata", "k=v"}, want: []string{"jobs/a", "42", "10s", "40"}, sent: `{"holder":"me","ttl_ms":10000,"metadata":{"k":"v"},"slots":1,"take":1}`},
		{name: "acquire token", args: []string{"acquire", "jobs/a", "--holder", "me", "--ttl", "30s", "-o", "token"}, exact: "42\n", sent: `{"holder":"me","ttl_ms":30000,"slots":1,"take":1}`},
		{name: "acquire json", args: []string{"acquire", "jobs/a", "-o", "json"}, want: []string{`"token": 42`, `"expires_in_ms": 10000`}},
		{name: "renew", args: []string{"renew", "jobs/a", "--token", "42"}, want: []string{"10s"}, sent: `{"token":42}`},
		{name: "release", args: []string{"release", "jobs/a", "--token", "42"}, exact: "released\n", sent: `{"token":42}`},
		{name: "leases", args: []string{"leases", "jobs"}, want: []string{"NAME", "jobs/a  yes    me", "9.5s", "1/4    2", "jobs/b  grace  -"}},
		{name: "leases json", args: []string{"leases", "-o", "json"}, want: []string{`"leases": [`, `"holder": "me"`}},
		{name: "put", args: []string{"kv", "put", "k", "v", "--token", "42"}, want: []string{"43"}, sent: "v"},
		{name: "put stdin", stdin: "in\x00put", args: []string{"kv", "put", "k", "-", "--token", "42"}, want: []string{"43"}, sent: "in\x00put"},
		{name: "put file", args: []string{"kv", "put", "k", "--file", file, "--token", "42"}, want: []string{"43"}, sent: "from file"},
		{name: "get", args: []string{"kv", "get", "k"}, exact: "hello\x00"},
		{name: "get json", args: []string{"kv", "get", "k", "-o", "json"}, want: []string{`"value_base64": "aGVsbG8A"`, `"version": 43`}},
		{name: "list", args: []string{"kv", "list"}, want: []string{"KEY", "k    43       42"}},
		{name: "delete", args: []string{"kv", "delete", "k", "--token", "42"}, want: []string{"yes"}},
		{name: "fence", args: []string{"kv", "fence", "k", "--token", "42"}, want: []string{"42"}},
		{name: "status", args: []string{"cluster", "status"}, want: []string{"DEGRADED: 2 of 3 voters are up, look at n3", "one more failure loses the quorum", "leader n1, term 3", "2 entries", "DOWN", "5s ago"}},
		{name: "status json", args: []string{"cluster", "status", "-o", "json"}, want: []string{`"cluster_id": "c1"`}},
		{name: "version", args: []string{"version"}, want: []string{"fencepost ", "go1."}},
		{name: "version json", args: []string{"version", "-o", "json"}, want: []string{`"version": "`, `"go": "go1.`}},
		{name: "--version", args: []string{"--version"}, want: []string{"fencepost version "}},
		{name: "completion", args: []string{"completion", "bash"}, want: []string{"__start_fencepost"}},
		{name: "help", args: []string{"help"}, want: []string{"FENCEPOST_<FLAG>", "acquire", "server"}},
		{name: "exit codes", args: []string{"help", "exit-codes"}, want: []string{"4  unknown"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := command(t, tt.stdin, append(tt.args, "--endpoints", n.URL)...)
			if code != 0 || stderr != "" {
				t.Fatalf("exit %d, stderr %q", code, stderr)
			}
			if tt.exact != "" && stdout != tt.exact {
				t.Errorf("got %q, want %q", stdout, tt.exact)
			}
			for _, w := range tt.want {
				if !strings.Contains(stdout, w) {
					t.Errorf("no %q in:\n%s", w, stdout)
				}
			}
			if tt.sent != "" {
				if _, body := n.last(t); body != tt.sent {
					t.Errorf("sent %q, want %q", body, tt.sent)
				}
			}
		})
	}
}

func TestWriteFlagsReachTheRequest(t *testing.T) {
	n := workingNode(t)
	for _, tt := range []struct {
		args []string
		want map[string]string
	}{
		{[]string{"--token", "42"}, map[string]string{"Fencing-Token": "42", "Fencing-Guard": "latest", "If-Match": "", "If-None-Match": "", "Fencing-Lease": ""}},
		{[]string{"--token", "42", "--guard", "held", "--lease", "l", "--if-version", "7"}, map[string]string{"Fencing-Guard": "held", "Fencing-Lease": "l", "If-Match": `"7"`}},
		{[]string{"--token", "42", "--if-absent"}, map[string]string{"If-None-Match": "*", "If-Match": ""}},
		{[]string{"--token", "42", "--if-version", "0"}, map[string]string{"If-None-Match": "*"}},
		{[]string{"--token", "42", "--idempotency-key", "again", "--auth-token", "s3cret"}, map[string]string{"Idempotency-Key": "again", "Authorization": "Bearer s3cret"}},
	} {
		code, _, stderr := command(t, "", append([]string{"kv", "put", "k", "v", "--endpoints", n.URL}, tt.args...)...)
		if code != 0 {
			t.Fatalf("%v: exit %d: %s", tt.args, code, stderr)
		}
		r, _ := n.last(t)
		for name, want := range tt.want {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%v: %s is %q, want %q", tt.args, name, got, want)
			}
		}
	}
}

func TestExitCodes(t *testing.T) {
	held := problemAnswer(wire.Problem{Code: wire.CodeLeaseHeld, Holder: pointer("other"), Token: 41, ExpiresInMS: pointer(uint64(2000))})
	refusing := newFakeNode(t, map[string]http.HandlerFunc{
		"POST /v1/leases/held/acquire": held,
		"POST /v1/leases/lost/renew":   problemAnswer(wire.Problem{Code: wire.CodeLeaseLost, Reason: wire.ReasonSuperseded, Token: 5}),
		"PUT /v1/kv/stale":             problemAnswer(wire.Problem{Code: wire.CodeStaleToken, Reason: wire.ReasonBelowWatermark, Token: 5, Watermark: pointer(uint64(9))}),
		"PUT /v1/kv/early":             problemAnswer(wire.Problem{Code: wire.CodeTokenNotIssued, Token: 5}),
		"PUT /v1/kv/moved":             problemAnswer(wire.Problem{Code: wire.CodeVersionMismatch, Version: pointer(uint64(8))}),
		"PUT /v1/kv/bad":               problemAnswer(wire.Problem{Code: wire.CodeInvalidRequest, Field: "key", Detail: "key: no"}),
		"PUT /v1/kv/full":              problemAnswer(wire.Problem{Code: wire.CodeQuotaReached}),
		"PUT /v1/kv/perhaps":           problemAnswer(wire.Problem{Code: wire.CodeOutcomeUnknown}),
	})
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	put := func(key string, more ...string) []string {
		return append([]string{"kv", "put", key, "v", "--token", "5"}, more...)
	}
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string // in stderr
	}{
		{"held", []string{"acquire", "held"}, exitRefused, `"other" holds it with token 41, for another 2s`},
		{"lost", []string{"renew", "lost", "--token", "5"}, exitRefused, "acquire the lease again"},
		{"stale", put("stale"), exitRefused, "watermark is 9"},
		{"not issued", put("early"), exitRefused, "right cluster"},
		{"mismatch", put("moved"), exitRefused, "version is 8"},
		{"invalid", put("bad"), exitRefused, "Correct key"},
		{"quota", put("full"), exitRefused, "Nothing was changed"},
		{"no such key", []string{"kv", "get", "nope"}, exitRefused, "not_found"},
		{"no such file", []string{"kv", "put", "k", "--file", "/does/not/exist", "--token", "5"}, exitRefused, "read the value"},
		{"unavailable", put("later", "--endpoints", gone.URL, "--timeout", "200ms"), exitUnavailable, "fencepost cluster status"},
		{"nobody there", []string{"leases", "--endpoints", gone.URL, "--timeout", "200ms"}, exitUnavailable, "--endpoints"},
		{"unknown", put("perhaps", "--timeout", "200ms", "--idempotency-key", "mine"), exitUnknown, "--idempotency-key mine"},
		{"no command", []string{"frobnicate"}, exitUsage, "unknown command"},
		{"no subcommand", []string{"kv"}, exitUsage, "get, list, put"},
		{"wrong subcommand", []string{"kv", "frobnicate"}, exitUsage, "unknown command"},
		{"no flag", []string{"leases", "--frobnicate"}, exitUsage, "unknown flag"},
		{"name that looks like a flag", []string{"release", "-nightly"}, exitUsage, "goes after --"},
		{"no name", []string{"acquire"}, exitUsage, "acquire --help"},
		{"no token", []string{"release", "a"}, exitUsage, "--token is needed"},
		{"token no number", []string{"release", "a", "--token", "x"}, exitUsage, "invalid argument"},
		{"output", []string{"leases", "-o", "token"}, exitUsage, "text, json"},
		{"endpoint", []string{"leases", "--endpoints", "localhost:7001"}, exitUsage, "--endpoints"},
		{"two values", []string{"kv", "put", "k", "v", "--file", "f", "--token", "5"}, exitUsage, "give the value once"},
		{"no value", []string{"kv", "put", "k", "--token", "5"}, exitUsage, "give the value once"},
		{"guard", put("k", "--guard", "none"), exitUsage, "neither latest nor held"},
		{"two conditions", put("k", "--if-version", "3", "--if-absent"), exitUsage, "if-absent"},
		{"timeout", []string{"leases", "--timeout", "0s"}, exitUsage, "--timeout"},
		{"bench works", []string{"bench", "--works", "sleep"}, exitUsage, "--works"},
		{"bench clients", []string{"bench", "--clients", "0"}, exitUsage, "--clients"},
		{"config missing", []string{"leases", "--config", "/does/not/exist"}, exitUsage, "read --config"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := tt.args
			if !strings.Contains(strings.Join(args, " "), "--endpoints") {
				args = append(args, "--endpoints", refusing.URL)
			}
			code, stdout, stderr := command(t, "", args...)
			if code != tt.code || !strings.Contains(stderr, tt.want) {
				t.Errorf("exit %d, want %d with %q in stderr:\n%s", code, tt.code, tt.want, stderr)
			}
			if stdout != "" {
				t.Errorf("talk on stdout: %q", stdout)
			}
		})
	}
}

// An interrupt ends a command that waits, and it says what is known.
func TestInterrupt(t *testing.T) {
	asked := make(chan struct{})
	var once sync.Once
	n := newFakeNode(t, map[string]http.HandlerFunc{
		"PUT /v1/kv/k": func(_ http.ResponseWriter, r *http.Request) {
			once.Do(func() { close(asked) })
			<-r.Context().Done()
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	var stderr bytes.Buffer
	code := run(ctx, []string{"kv", "put", "k", "v", "--token", "5", "--endpoints", n.URL}, strings.NewReader(""), io.Discard, &stderr)
	if code != exitUnknown {
		t.Fatalf("exit %d, want %d: %s", code, exitUnknown, stderr.String())
	}
}
