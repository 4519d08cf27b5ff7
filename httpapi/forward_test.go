package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/cluster"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// pair is a leader and a follower, each with a real listener; calls go to the
// follower.
type pair struct {
	t                *testing.T
	leader, follower *memory
	leaderURL        string
	followerURL      string
	spec             *spec
	stopLeader       func()

	mu   sync.Mutex // guards seen
	seen []*http.Request
}

func newPair(t *testing.T) *pair {
	t.Helper()
	return newPairOf(t, loadSpec(t))
}

func newPairOf(t *testing.T, s *spec) *pair {
	t.Helper()
	p := &pair{t: t, leader: newMemory("n1"), follower: newMemory("n2"), spec: s}
	handler := New(p.leader, Options{})
	p.leaderURL, p.stopLeader = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.seen = append(p.seen, r)
		p.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	p.follower.status.IsLeader = false
	p.leadTo(p.leaderURL)
	h := New(p.follower, Options{})
	p.followerURL, _ = serve(t, h)
	t.Cleanup(h.Close)
	return p
}

// leadTo makes the follower take that URL for the leader's.
func (p *pair) leadTo(url string) { p.follower.status.LeaderURL = url }

func serve(t *testing.T, h http.Handler) (url string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(h)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	var once sync.Once
	stop = func() { once.Do(func() { s.Close(); <-served }) }
	t.Cleanup(stop)
	return "http://" + l.Addr().String(), stop
}

// do sends a request to the follower, with the path and query as they are, and
// follows no redirect.
func (p *pair) do(method, target, body string, headers ...string) *answer {
	p.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.followerURL, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n", method, target, len(body))
	for i := 0; i < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	if _, err := io.WriteString(conn, b.String()+"\r\n"+body); err != nil {
		p.t.Fatal(err)
	}
	req := httptest.NewRequest(method, target, nil)
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.spec.check(p.t, req, resp.StatusCode, resp.Header, raw)
}

func (p *pair) last() *http.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[len(p.seen)-1]
}

const acquireBody = `{"holder":"h"}`

func TestAFollowerForwards(t *testing.T) {
	p := newPair(t)
	got := p.do("POST", "/v1/leases/a%2fb/c|d/acquire", acquireBody, "X-Request-Id", "rid", "X-Other", "1").is(200, "").has("name", "a/b/c|d")
	if node := got.header.Get("Fencepost-Node"); node != "n1" {
		t.Errorf("Fencepost-Node: got %s, want who answered in the end", node)
	}
	if n := len(got.header.Values("Fencepost-Index")); n != 1 || got.header.Get("Fencepost-Index") != token10(got.number("token")) {
		t.Errorf("Fencepost-Index: got %v", got.header.Values("Fencepost-Index"))
	}
	if id := got.header.Get("X-Request-Id"); id != "rid" {
		t.Errorf("X-Request-Id: got %q", id)
	}
	r := p.last()
	if r.RequestURI != "/v1/leases/a%2fb/c|d/acquire" {
		t.Errorf("path: got %s, want byte for byte", r.RequestURI)
	}
	if r.Header.Get("Fencepost-Forwarded") != "n2" || r.Header.Get("X-Other") != "1" || r.Header.Get("Idempotency-Key") == "" {
		t.Errorf("headers: got %v", r.Header)
	}
	token := token10(got.number("token"))
	p.do("PUT", "/v1/kv/k%2F%61", "v\x00w", "Fencing-Token", token, "Content-Type", "a/b").is(200, "").has("key", "k/a")
	if key, _ := p.leader.state.Key("k/a"); string(key.Value) != "v\x00w" || key.ContentType != "a/b" {
		t.Errorf("value: got %q %q", key.Value, key.ContentType)
	}
	if got := p.do("GET", "/v1/kv/k/a", ""); string(got.raw) != "v\x00w" || got.header.Get("Etag") == "" || got.header.Get("Content-Type") != "a/b" {
		t.Errorf("read: got %d %q %v", got.status, got.raw, got.header)
	}
	if got := p.do("HEAD", "/v1/kv/k/a", ""); got.status != 200 || got.header.Get("Content-Length") != "3" {
		t.Errorf("HEAD: got %d, length %q", got.status, got.header.Get("Content-Length"))
	}
	p.do("GET", "/v1/leases?prefix=a%2f&limit=1", "").is(200, "")
	if uri := p.last().RequestURI; uri != "/v1/leases?prefix=a%2f&limit=1" {
		t.Errorf("query: got %s", uri)
	}
	p.do("POST", "/v1/renew", `{"leases":[{"name":"a/b/c|d","token":`+token+`}]}`).is(200, "")
	p.do("POST", "/v1/txn", `{"token":`+token+`,"ops":[{"op":"fence","key":"z"}]}`).is(200, "")
	p.do("POST", "/v1/kv/z/fence", "", "Fencing-Token", token).is(200, "")
	p.do("DELETE", "/v1/kv/z", "", "Fencing-Token", token).is(200, "")
	p.do("GET", "/v1/cluster", "").is(200, "").has("leader", "n1")
	p.do("POST", "/v1/cluster/members", `{"name":"n3","id":"b","raft_addr":"h:1","http_addr":"h:1"}`).is(200, "")
	p.do("POST", "/v1/leases/a%2fb/c|d/acquire", acquireBody).is(409, "lease_held")
	p.do("POST", "/v1/leases/a%2fb/c|d/release", `{"token":`+token+`}`).is(200, "").has("released", true)
	p.do("GET", "/v1/leases/never", "").is(404, "not_found")
	// Not forwarded: what only this node can say, and what is wrong anyhow.
	before := len(p.seen)
	p.do("GET", "/v1/leases/a?consistency=stale", "").is(404, "not_found")
	p.do("POST", "/v1/leases/l/acquire", `{}`).is(400, "invalid_request")
	p.do("GET", "/livez", "").is(200, "")
	if len(p.seen) != before || p.follower.entries != 0 {
		t.Errorf("%d requests were forwarded, %d entries proposed at the follower", len(p.seen)-before, p.follower.entries)
	}
}

// The leader believes that a key was made by a server only if a node says so.
func TestWhoMadeTheKeyIsPassedOn(t *testing.T) {
	p := newPair(t)
	var got *fsmpb.Request
	p.leader.onAcquire = func(c *fsmpb.Acquire) (cluster.Reply[*fsmpb.Outcome], error) {
		got = c.Request
		return cluster.Reply[*fsmpb.Outcome]{}, cluster.ErrOutcomeUnknown
	}
	a := p.do("POST", "/v1/leases/l/acquire", acquireBody).is(504, "outcome_unknown")
	if !got.ServerMade || got.Key == "" || a.header.Get("Idempotency-Key") != got.Key {
		t.Errorf("made here: got %v, told %q", got, a.header.Get("Idempotency-Key"))
	}
	p.do("POST", "/v1/leases/l/acquire", acquireBody, "Idempotency-Key", "mine", "Fencepost-Key-Made", "true").is(504, "outcome_unknown")
	if got.ServerMade || got.Key != "mine" {
		t.Errorf("the client's: got %v", got)
	}
	if got.Path != "POST /v1/leases/l/acquire" || len(got.Digest) != 16 {
		t.Errorf("request: got %v", got)
	}
}

func TestARequestIsForwardedOnce(t *testing.T) {
	p := newPair(t)
	p.leader.status.IsLeader = false
	p.leader.status.LeaderURL = p.followerURL // each takes the other for the leader
	for _, call := range []struct{ method, path, body string }{
		{"POST", "/v1/leases/l/acquire", acquireBody}, {"GET", "/v1/leases/l", ""}, {"GET", "/v1/cluster", ""},
	} {
		p.do(call.method, call.path, call.body).is(503, "no_leader")
	}
	if len(p.seen) != 3 {
		t.Errorf("the other node saw %d requests, want one of each", len(p.seen))
	}
}

func TestWithoutALeader(t *testing.T) {
	p := newPair(t)
	p.leadTo("")
	for _, call := range []struct{ method, path, body string }{
		{"POST", "/v1/leases/l/acquire", acquireBody}, {"GET", "/v1/leases/l", ""}, {"GET", "/v1/kv", ""},
		{"POST", "/v1/renew", `{"leases":[{"name":"a","token":1}]}`},
	} {
		got := p.do(call.method, call.path, call.body).is(503, "no_leader")
		if got.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		p.do(call.method, call.path, call.body, "Fencepost-Route", "local").is(503, "no_leader")
	}
	p.do("GET", "/v1/cluster", "").is(200, "").has("leader", "", "cluster_id", "c1")
}

func TestRedirectsKeepPathAndQuery(t *testing.T) {
	p := newPair(t)
	p.leadTo("http://leader.test:7001")
	for _, target := range []string{"/v1/leases/a%2fb/c|d+%41?consistency=linearizable", "/v1/leases?prefix=%2F%2f&after=+", "/v1/kv/k?"} {
		got := p.do("GET", target, "", "Fencepost-Route", "local")
		if got.status != 307 || got.header.Get("Location") != "http://leader.test:7001"+target {
			t.Errorf("%s: got %d to %s", target, got.status, got.header.Get("Location"))
		}
	}
	if got := p.do("PUT", "/v1/kv/k", "v", "Fencepost-Route", "local", "Fencing-Token", "1"); got.status != 307 {
		t.Errorf("PUT: got %d", got.status)
	}
	p.do("GET", "/v1/leases/a?consistency=stale", "", "Fencepost-Route", "local").is(404, "not_found")
}

func TestALeaderThatCannotBeReachedIs503(t *testing.T) {
	p := newPair(t)
	p.do("GET", "/v1/leases/l", "").is(404, "not_found") // leaves an idle connection
	p.stopLeader()
	// The transport has to notice that the idle connection is closed; until then
	// it may have been used.
	deadline := time.Now().Add(5 * time.Second)
	for {
		got := p.do("POST", "/v1/leases/l/acquire", acquireBody)
		if got.status == 503 {
			got.is(503, "no_leader")
			break
		}
		if got.is(504, "outcome_unknown"); time.Now().After(deadline) {
			t.Fatal("still 504 though nobody listens")
		}
	}
	p.do("GET", "/v1/leases/l", "").is(503, "no_leader")
	p.leadTo("http://127.0.0.1:1")
	p.do("DELETE", "/v1/kv/k", "", "Fencing-Token", "1").is(503, "no_leader")
}

// cutter takes connections, reads requests, and answers the first so many; the
// next one is read whole and then cut, and the listener closed first, so that a
// second try would be refused.
func cutter(t *testing.T, answered int, partial string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		defer l.Close()
		r := bufio.NewReader(conn)
		for i := 0; ; i++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			if i == answered {
				l.Close()
				io.WriteString(conn, partial)
				return
			}
			body := `{"type":"about:blank","title":"t","status":404,"code":"not_found"}`
			fmt.Fprintf(conn, "HTTP/1.1 404 Not Found\r\nContent-Type: application/problem+json\r\nFencepost-Node: n1\r\nFencepost-Index: 1\r\nX-Request-Id: x\r\nCache-Control: no-store\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "http://" + l.Addr().String()
}

// P10: from the moment that a request may have been sent, its outcome is
// unknown; also when an idle connection breaks and the second try is refused.
func TestACutAfterTheRequestWasSentIs504(t *testing.T) {
	s := loadSpec(t)
	head := "HTTP/1.1 200 OK\r\nFencepost-Node: n1\r\nContent-Type: application/json\r\n"
	for _, partial := range []string{"", "HTTP/1.1 200", head + "Content-Length: 100\r\n\r\n{\"name\":", head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"nam", "garbage\r\n\r\n"} {
		for _, answered := range []int{0, 1} {
			for _, call := range []struct{ method, path, body string }{
				{"POST", "/v1/leases/l/acquire", acquireBody},
				{"POST", "/v1/leases/l/renew", `{"token":1}`},
				{"POST", "/v1/renew", `{"leases":[{"name":"a","token":1}]}`},
				{"PUT", "/v1/kv/k", "v"},
				{"DELETE", "/v1/kv/k", ""}, // no body and a key: the transport may try again
				{"POST", "/v1/cluster/members", `{"name":"n3","id":"b","raft_addr":"h:1","http_addr":"h:1"}`},
			} {
				p := newPairOf(t, s)
				p.leadTo(cutter(t, answered, partial))
				if answered > 0 {
					p.raw404("/v1/leases/l")
				}
				got := p.do(call.method, call.path, call.body, "Fencing-Token", "1").is(504, "outcome_unknown")
				keyless := strings.HasSuffix(call.path, "renew") || strings.HasSuffix(call.path, "members")
				if key := got.header.Get("Idempotency-Key"); (key == "") != keyless {
					t.Errorf("%s %s: Idempotency-Key %q", call.method, call.path, key)
				}
			}
		}
	}
	p := newPair(t)
	p.leadTo(cutter(t, 0, ""))
	p.do("GET", "/v1/leases/l", "").is(503, "no_leader") // a read changes nothing
}

// raw404 makes one read through the follower, to leave an idle connection.
func (p *pair) raw404(path string) {
	p.t.Helper()
	resp, err := http.Get(p.followerURL + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		p.t.Fatalf("got %d", resp.StatusCode)
	}
	io.Copy(io.Discard, resp.Body)
}

// B56: somebody else listens at the leader's address.
func TestAStrangerAtTheLeadersAddress(t *testing.T) {
	p := newPair(t)
	url, _ := serve(t, http.NotFoundHandler())
	p.leadTo(url)
	p.do("POST", "/v1/leases/l/acquire", acquireBody).is(504, "outcome_unknown")
	p.do("GET", "/v1/leases/l", "").is(503, "no_leader")
}

// A client that leaves ends the work at the leader too.
func TestAClientThatLeavesIsNotWaitedFor(t *testing.T) {
	p := newPair(t)
	entered, left := make(chan struct{}), make(chan struct{})
	url, _ := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		close(entered)
		<-r.Context().Done()
		close(left)
	}))
	p.leadTo(url)
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, "POST", p.followerURL+"/v1/leases/l/acquire", strings.NewReader(acquireBody))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-entered
		cancel()
	}()
	if _, err := http.DefaultClient.Do(req); err == nil {
		t.Fatal("answered")
	}
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Fatal("the leader was not told that the client has left")
	}
}

// The transport repeats what it sent on a connection that broke; that the leader
// did not accept the repetition does not speak of what it got before (P10).
func TestP10_ARepeatedForwardIsUnknown(t *testing.T) {
	p := newPair(t)
	handler := New(p.leader, Options{})
	t.Cleanup(handler.Close)
	var deletes atomic.Int32
	url, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodDelete:
			handler.ServeHTTP(w, r)
		case deletes.Add(1) == 1:
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set(wire.HeaderNode, "n1")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	p.leadTo(url)
	token := p.do("POST", "/v1/leases/a/acquire", `{"holder":"h"}`).is(200, "").number("token") // which leaves a connection
	p.do("DELETE", "/v1/kv/k", "", "Fencing-Token", fmt.Sprint(token)).is(504, "outcome_unknown")
	if deletes.Load() != 2 { // without a body, which the transport could not repeat
		t.Errorf("the leader got the request %d times, want twice", deletes.Load())
	}
}

// P10: a leader that refuses an upload in its middle and hangs up has restored nothing:
// the follower says so, and not that the outcome is unknown.
func TestP10_HalfAnUploadForwarded(t *testing.T) {
	const size = 1 << 20
	for _, c := range []struct {
		sent   int // by the client
		status int
	}{{1000, 503}, {size, 504}} {
		p := newPair(t)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			leader, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.CopyN(io.Discard, leader, int64(c.sent)) // the head counts as well
			leader.Close()
		}()
		p.leadTo("http://" + l.Addr().String())
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.followerURL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /v1/snapshot/restore HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", c.sent))
		answered := make(chan struct{})
		if c.sent < size {
			go func() { // on it goes, though never to the end
				for range size/c.sent - 1 {
					select {
					case <-answered:
						return
					case <-time.After(time.Millisecond):
					}
					if _, err := conn.Write(make([]byte, c.sent)); err != nil {
						return
					}
				}
			}()
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		close(answered)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%d of %d bytes: %d, want %d", c.sent, size, resp.StatusCode, c.status)
		}
	}
}
