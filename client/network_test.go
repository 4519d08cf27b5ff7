package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/client/internal/onenode"
)

// network is one client's way to the nodes n1, n2 and n3, in memory and so in fake
// time, with a fault for each.
type network struct {
	t     *testing.T
	nodes map[string]http.Handler

	mu     sync.Mutex // guards what follows
	faults map[string]fault
	sent   []sending
}

// sending is a request as it left.
type sending struct {
	at     time.Time
	node   string
	method string
	path   string
	body   string
	key    string // Idempotency-Key
}

// fault is what happens to a request in place of being answered.
type fault func(w http.ResponseWriter, r *http.Request, node http.Handler)

// newCluster is a cluster of three nodes.
func newCluster(t *testing.T) (*onenode.Cluster, map[string]http.Handler) {
	t.Helper()
	c := onenode.New()
	t.Cleanup(c.Close)
	nodes := make(map[string]http.Handler)
	for _, name := range []string{"n1", "n2", "n3"} {
		nodes[name] = c.Node(name)
	}
	return c, nodes
}

// connect is a client with a network of its own.
func connect(t *testing.T, nodes map[string]http.Handler, opts ...Option) (*Client, *network) {
	t.Helper()
	n := &network{t: t, nodes: nodes, faults: make(map[string]fault)}
	return newClient(t, []string{"http://n1", "http://n2", "http://n3"}, append([]Option{WithTransport(n)}, opts...)...), n
}

// set puts a fault between the client and these nodes, all if none is named; nil
// heals.
func (n *network) set(f fault, nodes ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(nodes) == 0 {
		nodes = []string{"n1", "n2", "n3"}
	}
	for _, name := range nodes {
		n.faults[name] = f
	}
}

// requests are those so far whose path ends in this, and that went to the node, if
// one is given.
func (n *network) requests(suffix string, nodes ...string) (out []sending) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sent {
		if strings.HasSuffix(s.path, suffix) && (len(nodes) == 0 || slices.Contains(nodes, s.node)) {
			out = append(out, s)
		}
	}
	return out
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body.Close()
	}
	n.mu.Lock()
	n.sent = append(n.sent, sending{time.Now(), r.URL.Host, r.Method, r.URL.Path, string(body), r.Header.Get("Idempotency-Key")})
	f, node := n.faults[r.URL.Host], n.nodes[r.URL.Host]
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	served := r.Clone(ctx)
	served.RequestURI, served.Body, served.Host = r.URL.RequestURI(), io.NopCloser(bytes.NewReader(body)), r.URL.Host
	x := newExchange(cancel)
	stop := context.AfterFunc(ctx, func() { x.fail(context.Cause(ctx)) })
	go func() {
		defer stop()
		defer func() {
			if p := recover(); p != nil {
				x.fail(errors.New("connection reset"))
			}
		}()
		if f != nil {
			f(x, served, node)
		} else {
			node.ServeHTTP(x, served)
		}
		x.finish()
	}()
	select {
	case <-x.begun:
		if x.err != nil {
			return nil, x.err
		}
		return &http.Response{StatusCode: x.code, Header: x.sent, Body: x, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
	case <-ctx.Done():
		cancel()
		return nil, ctx.Err()
	}
}

// exchange is an answer on its way, as a stream.
type exchange struct {
	header http.Header
	sent   http.Header
	begin  sync.Once
	begun  chan struct{}
	code   int
	err    error // valid once begun
	*io.PipeReader
	w      *io.PipeWriter
	cancel context.CancelFunc
}

func newExchange(cancel context.CancelFunc) *exchange {
	r, w := io.Pipe()
	return &exchange{header: make(http.Header), begun: make(chan struct{}), PipeReader: r, w: w, cancel: cancel}
}

func (x *exchange) Header() http.Header { return x.header }
func (x *exchange) Flush()              { x.WriteHeader(http.StatusOK) }

func (x *exchange) WriteHeader(code int) {
	x.begin.Do(func() {
		x.code, x.sent = code, x.header.Clone()
		close(x.begun)
	})
}

func (x *exchange) Write(p []byte) (int, error) {
	x.WriteHeader(http.StatusOK)
	return x.w.Write(p)
}

func (x *exchange) finish() {
	x.WriteHeader(http.StatusOK)
	x.w.Close()
}

func (x *exchange) fail(err error) {
	x.begin.Do(func() {
		x.err = err
		close(x.begun)
	})
	x.w.CloseWithError(err)
}

// Close is the client's, of the body.
func (x *exchange) Close() error {
	x.cancel()
	return x.PipeReader.Close()
}

// Faults.

// blackHole takes a request and does nothing.
func blackHole(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }

// reset breaks the connection before the node has seen the request.
func reset(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// answerLost has the node serve the request, and then breaks the connection.
func answerLost(_ http.ResponseWriter, r *http.Request, node http.Handler) {
	node.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// says answers in place of the node.
func says(h http.HandlerFunc) fault {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) { h(w, r) }
}

// slow delays the answer.
func slow(d time.Duration) fault {
	return func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		kept := httptest.NewRecorder()
		node.ServeHTTP(kept, r.WithContext(context.WithoutCancel(r.Context())))
		select {
		case <-time.After(d):
		case <-r.Context().Done():
			return
		}
		for name, values := range kept.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(kept.Code)
		w.Write(kept.Body.Bytes())
	}
}

// only is a fault of the requests whose path ends so.
func only(suffix string, f fault) fault {
	return func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		if strings.HasSuffix(r.URL.Path, suffix) {
			f(w, r, node)
			return
		}
		node.ServeHTTP(w, r)
	}
}

// stopped is a process that was stopped: what comes in is served once it is
// continued.
func stopped(continued <-chan struct{}) fault {
	return func(w http.ResponseWriter, r *http.Request, node http.Handler) {
		<-continued
		node.ServeHTTP(w, r)
	}
}
