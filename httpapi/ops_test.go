package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/cluster"
	"fencepost/cluster/bubble"
)

func TestPathsAndMethodsThatAreNot(t *testing.T) {
	a := newAPI(t)
	for _, call := range []string{
		"GET /", "GET /v1", "GET /v1/", "GET /v2/leases", "GET /v1/watch/", "GET /ui/", "GET /v1/snapshot/", "POST /v1/snapshot/restore/",
		"POST /v1/cluster/members/n1", "POST /v1/leases/l", "POST /v1/kv/k", "GET /v1/leases-x",
		"POST /v1/renew/", "GET /livez/", "GET /v1/cluster/",
	} {
		method, path, _ := strings.Cut(call, " ")
		a.do(method, path, "").is(404, "not_found")
	}
	for call, allow := range map[string]string{
		"DELETE /v1/leases/l":        "GET, HEAD, POST",
		"PATCH /v1/kv/k":             "GET, HEAD, POST, PUT, DELETE",
		"GET /v1/renew":              "POST",
		"PUT /v1/txn":                "POST",
		"POST /v1/kv":                "GET, HEAD",
		"OPTIONS /v1/cluster":        "GET, HEAD",
		"GET /v1/cluster/members":    "POST",
		"GET /v1/cluster/members/n1": "DELETE",
		"GET /v1/cluster/transfer":   "POST",
		"POST /livez":                "GET, HEAD",
		"DELETE /v1/openapi.json":    "GET, HEAD",
		"HEAD /v1/txn":               "POST",
		"BREW /metrics":              "GET, HEAD",
		"TRACE /v1/leases/a/acquire": "GET, HEAD, POST",
	} {
		method, path, _ := strings.Cut(call, " ")
		got := a.do(method, path, "")
		if got.status != 405 || got.header.Get("Allow") != allow {
			t.Errorf("%s: got %d, Allow %q, want %q", call, got.status, got.header.Get("Allow"), allow)
		}
	}
}

func TestHeadWorksWhereGetDoes(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("l")
	a.do("PUT", "/v1/kv/k", "value", "Fencing-Token", token10(token)).is(200, "")
	for path, status := range map[string]int{
		"/v1/leases/l": 200, "/v1/leases": 200, "/v1/kv/k": 200, "/v1/kv": 200, "/v1/cluster": 200, "/livez": 200, "/readyz": 200, "/metrics": 200,
		"/v1/openapi.json": 200, "/v1/leases/never": 404, "/v1/kv/never": 404,
	} {
		get, head := a.do("GET", path, ""), a.do("HEAD", path, "")
		if head.status != status || get.status != status {
			t.Errorf("%s: GET %d, HEAD %d, want %d", path, get.status, head.status, status)
		}
		if length := get.header.Get("Content-Length"); path != "/metrics" && (head.header.Get("Content-Length") != length || len(head.raw) != 0) {
			t.Errorf("HEAD %s: length %s and %d bytes, GET has %s", path, head.header.Get("Content-Length"), len(head.raw), length)
		}
	}
	if etag := a.do("HEAD", "/v1/kv/k", "").header.Get("Etag"); etag == "" {
		t.Error("HEAD of a key has no ETag")
	}
}

func TestHealthSaysWhyNot(t *testing.T) {
	a := newAPI(t)
	a.do("GET", "/readyz", "").is(200, "")
	a.do("GET", "/livez", "").is(200, "")
	a.node.ready, a.node.live = errors.New("no leader is known"), errors.New("an entry could not be applied")
	a.do("GET", "/readyz", "").is(503, "not_ready").has("detail", "no leader is known")
	a.do("GET", "/livez", "").is(503, "not_live").has("detail", "an entry could not be applied")
	a.node.ready = fmt.Errorf("closing: %w", cluster.ErrShuttingDown)
	a.do("GET", "/readyz", "").is(503, "shutting_down")
}

func TestEveryAnswerNamesTheClusterAndTheRequest(t *testing.T) {
	a := newAPI(t)
	for given, kept := range map[string]bool{"abc-1_2.Z": true, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false, "a b": false, "a\"b": false, "": false} {
		got := a.do("GET", "/v1/nothing", "", "X-Request-Id", given)
		if id := got.header.Get("X-Request-Id"); (id == given) != kept || id == "" {
			t.Errorf("X-Request-Id %q: got %q", given, id)
		}
		if got.header.Get("Fencepost-Leader") != "http://n1.test" || got.header.Get("Fencepost-Cluster") != "c1" {
			t.Errorf("got leader %q, cluster %q", got.header.Get("Fencepost-Leader"), got.header.Get("Fencepost-Cluster"))
		}
	}
	a.node.status.LeaderURL, a.node.status.ClusterID, a.node.status.IsLeader = "", "", false
	got := a.do("GET", "/readyz", "")
	if _, ok := got.header["Fencepost-Leader"]; ok {
		t.Error("Fencepost-Leader without a leader")
	}
}

func TestMetrics(t *testing.T) {
	a := newAPI(t)
	extra := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "fencepost_raft_extra", Help: "x"})
	extra.MustRegister(c)
	a.handler = New(a.node, Options{Gatherer: extra})
	secret := "secret-name"
	token := a.acquireToken(secret)
	a.do("PUT", "/v1/kv/"+secret, "v", "Fencing-Token", token10(token)).is(200, "")
	other := a.acquireToken("m")
	a.do("POST", "/v1/kv/"+secret+"/fence", "", "Fencing-Token", token10(other)).is(200, "")
	a.do("PUT", "/v1/kv/"+secret, "v", "Fencing-Token", token10(token)).is(412, "stale_token")
	a.do("GET", "/nowhere", "")
	a.do("BREW", "/nowhere", "")
	text := string(a.do("GET", "/metrics", "").raw)
	for _, want := range []string{
		"fencepost_has_leader 1", "fencepost_is_leader 1", "fencepost_leases_held 2", "fencepost_waiters 0", "fencepost_keys 1", "fencepost_watchers 0",
		"fencepost_grants_total 2", "fencepost_renewals_total 0", "fencepost_expirations_total 0", "fencepost_outcomes_unknown_total 0",
		`fencepost_stale_writes_refused_total{reason="below_watermark"} 1`, "fencepost_index ", "fencepost_floor ", "fencepost_raft_extra 0",
		`fencepost_http_request_seconds_count{code="200",method="POST",route="/v1/leases/{name}/acquire"} 2`,
		`fencepost_http_request_seconds_count{code="412",method="PUT",route="/v1/kv/{key}"} 1`,
		`fencepost_http_request_seconds_count{code="404",method="GET",route="none"} 1`,
		`fencepost_http_request_seconds_count{code="404",method="other",route="none"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if strings.Contains(text, secret) {
		t.Error("the name of a lease or key is in the metrics")
	}
}

func TestTheDocumentIsServed(t *testing.T) {
	a := newAPI(t)
	got := a.do("GET", "/v1/openapi.json", "").is(200, "").has("openapi", "3.1.0")
	if !json.Valid(got.raw) {
		t.Error("it is not JSON")
	}
	// All that is routed is documented, and nothing else.
	routed := map[string]bool{}
	for _, call := range []string{"GET /v1/leases/l", "POST /v1/leases/l/acquire", "POST /v1/leases/l/renew", "POST /v1/leases/l/release", "POST /v1/leases/l/cancel", "GET /v1/leases",
		"POST /v1/renew", "GET /v1/kv/k", "PUT /v1/kv/k", "DELETE /v1/kv/k", "POST /v1/kv/k/fence", "GET /v1/kv", "POST /v1/txn", "GET /v1/watch", "GET /v1/cluster",
		"POST /v1/cluster/members", "DELETE /v1/cluster/members/n1", "POST /v1/cluster/transfer", "GET /v1/snapshot", "POST /v1/snapshot/restore", "GET /v1/cluster/formation", "GET /livez", "GET /readyz", "GET /metrics", "GET /v1/openapi.json"} {
		method, path, _ := strings.Cut(call, " ")
		x := &exchange{h: a.handler, w: recorder{ResponseWriter: httptest.NewRecorder()}, r: httptest.NewRequest(method, path, nil), path: path}
		if !a.handler.find(x) {
			t.Errorf("%s is not routed", call)
			continue
		}
		routed[method+" "+x.route.template] = true
	}
	documented := 0
	for _, template := range a.spec.doc.Paths.InMatchingOrder() {
		for method := range a.spec.doc.Paths.Value(template).Operations() {
			documented++
			if !routed[method+" "+template] {
				t.Errorf("%s %s is documented but not routed", method, template)
			}
		}
	}
	if documented != len(routed) {
		t.Errorf("%d operations documented, %d routed", documented, len(routed))
	}
}

// A body that trickles in is cut off, and one that keeps the rate is not.
func TestSlowBodies(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newPipeListener()
		h := New(newMemory("n1"), Options{})
		s := NewServer(h)
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		for _, c := range []struct {
			every  time.Duration
			bytes  int
			status int
		}{
			{2 * time.Second, 1, 400},     // half a byte per second
			{time.Second, 2 << 10, 200},   // 2 KiB per second
			{9 * time.Second, 16000, 200}, // in bursts
		} {
			conn := l.dial()
			total := 64000
			fmt.Fprintf(conn, "POST /v1/leases/l%d/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", c.bytes, total)
			go func() {
				body := `{"holder":"h"}` + strings.Repeat(" ", total-len(`{"holder":"h"}`))
				for len(body) > 0 {
					n := min(c.bytes, len(body))
					if _, err := io.WriteString(conn, body[:n]); err != nil {
						return
					}
					body = body[n:]
					time.Sleep(c.every)
				}
			}()
			got := make([]byte, 12)
			if _, err := io.ReadFull(conn, got); err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("HTTP/1.1 %d", c.status); string(got) != want {
				t.Errorf("%d bytes every %s: got %q, want %q", c.bytes, c.every, got, want)
			}
			conn.Close()
		}
		// A header that does not come.
		conn := l.dial()
		io.WriteString(conn, "GET /livez HTTP/1.1\r\n")
		start := time.Now()
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 11*time.Second {
			t.Errorf("half a header was waited for %s", took)
		}
		s.Close()
		h.Close()
		<-served
	})
}

// pipeListener is a listener whose connections are in memory.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { close(l.done); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// A real server neither cleans paths nor redirects.
func TestPathsPassTheServerUntouched(t *testing.T) {
	node := newMemory("n1")
	h := New(node, Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(h)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() { s.Close(); h.Close(); <-served }()
	for path, status := range map[string]int{
		"/v1/leases/a//b": 400, "/v1/leases/../leases/a": 400, "/v1//leases/a": 404, "/v1/leases/./a": 400, "/v1/kv/a/..": 400, "/v1/leases/a%2Fb": 404, "/v1/leases/": 400,
	} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path)
		got, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("HTTP/1.1 %d ", status); !bytes.HasPrefix(got, []byte(want)) {
			t.Errorf("%s: got %.40q, want %s", path, got, want)
		}
		conn.Close()
	}
	req, _ := http.NewRequestWithContext(context.Background(), "GET", "http://"+l.Addr().String()+"/livez", nil)
	req.Header.Set("X-Large", strings.Repeat("x", 80<<10))
	if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("80 KiB of headers: got %d", resp.StatusCode)
		}
		resp.Body.Close()
	}
}
