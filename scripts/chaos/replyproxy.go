package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"fencepost/cluster/check"
)

// proxyClient begins the name under which a proxy's own exchanges are recorded: the
// repetitions, and what was held and came late. They are requests that no client
// sent, with the Idempotency-Key of one that a client did send.
const proxyClient = "proxy/"

// A badReply is what a replyProxy does to a request.
type badReply int

const (
	answerLost  badReply = iota
	askedTwice           // at once; the client hears one answer
	heldBack             // the client hears nothing, and the node is asked later
	badReplies_          // how many there are
)

func (b badReply) String() string {
	return [...]string{"answer lost", "asked twice", "held and sent late"}[b]
}

// A replyProxy stands between clients and one node's API, and passes on all but
// what it is told to spoil. Watches do not come this way.
type replyProxy struct {
	node   *node
	server http.Server
	addr   string
	pass   http.RoundTripper
	own    http.RoundTripper // recorded

	mu   sync.Mutex // guards next
	next *order
}

// An order is for the next mutation. met is closed when that has come; send, until
// then nil, sends what was held and waits for all that is under way.
type order struct {
	what badReply
	met  chan struct{}
	path string
	send func(context.Context)
}

func newReplyProxy(n *node, addr string, recorder *check.Recorder) (*replyProxy, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	fresh := func() *http.Transport { return &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64} }
	p := &replyProxy{node: n, addr: l.Addr().String(), pass: fresh(), own: recorder.Transport(proxyClient+n.name, fresh())}
	p.server.Handler = p
	go p.server.Serve(l)
	return p, nil
}

func (p *replyProxy) url() string { return "http://" + p.addr }

func (p *replyProxy) close() { p.server.Close() }

// order spoils the next mutation.
func (p *replyProxy) order(what badReply) *order {
	o := &order{what: what, met: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != nil {
		return nil // in its place this one would let the other wait for ever
	}
	p.next = o
	return o
}

// cancel takes an order back that nothing has met; false: it was met.
func (p *replyProxy) cancel(o *order) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != o {
		return false
	}
	p.next = nil
	return true
}

func (p *replyProxy) take(q *http.Request) *order {
	if q.Method == http.MethodGet {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.next
	p.next = nil
	return o
}

func (p *replyProxy) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	o := p.take(q)
	if o == nil {
		p.relay(w, q, body)
		return
	}
	o.path = q.Method + " " + q.URL.Path
	header := q.Header.Clone()
	again := func(ctx context.Context) {
		if resp, err := p.own.RoundTrip(p.request(ctx, q.Method, q.URL.RequestURI(), header, body)); err == nil {
			resp.Body.Close()
		}
	}
	switch o.what {
	case answerLost:
		o.send = func(context.Context) {}
		// The client is still there, and will hear nothing: neither the exchange
		// here nor its answer is anything that it saw, so neither is recorded.
		if resp, err := p.pass.RoundTrip(p.request(q.Context(), q.Method, q.URL.RequestURI(), header, body)); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		close(o.met)
	case askedTwice:
		done := make(chan struct{})
		o.send = func(ctx context.Context) {
			select {
			case <-done:
			case <-ctx.Done():
			}
		}
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(context.Background(), lateBound)
			defer cancel()
			again(ctx)
		}()
		close(o.met)
		p.relay(w, q, body)
		return
	case heldBack:
		o.send = again
		close(o.met)
	}
	panic(http.ErrAbortHandler) // the connection ends without a word
}

func (p *replyProxy) request(ctx context.Context, method, uri string, header http.Header, body []byte) *http.Request {
	q, err := http.NewRequestWithContext(ctx, method, p.node.url()+uri, bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	q.Header = header.Clone()
	return q
}

// relay asks the node, and ends as it does.
func (p *replyProxy) relay(w http.ResponseWriter, q *http.Request, body []byte) {
	resp, err := p.pass.RoundTrip(p.request(q.Context(), q.Method, q.URL.RequestURI(), q.Header, body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	w.Write(got) // the client may have gone
}

// Bounds of an order: how long until a request meets it, and how long what is sent
// late may take.
const (
	metBound  = 10 * time.Second
	lateBound = 10 * time.Second
)

// badReplies is N9.
type badReplies struct {
	r *rand.Rand
	// repeated are the exchanges of the proxies' own that must be in the history.
	mu       sync.Mutex // guards repeated
	repeated int
}

func (a *badReplies) land(ctx context.Context, c *cluster) (*landing, error) {
	what := badReply(a.r.IntN(int(badReplies_)))
	p := pick(a.r, c.proxies)
	late := between(a.r, 20*time.Millisecond, 3*time.Second)
	// Half of them come at once, so that they meet the client's own repetition.
	if a.r.IntN(2) == 0 {
		late /= 20
	}
	o := p.order(what)
	if o == nil {
		return nil, errBusy
	}
	select {
	case <-o.met:
	case <-time.After(metBound):
		if p.cancel(o) {
			return nil, errBusy // this node gets no mutations at present
		}
	case <-ctx.Done():
		p.cancel(o)
		return nil, ctx.Err()
	}
	<-o.met
	l := &landing{at: c.recorder.Now(), what: fmt.Sprintf("%s: %s to %s", what, o.path, p.node.name)}
	if what == heldBack {
		l.hold, l.what = late, fmt.Sprintf("%s, %s late", l.what, late.Round(time.Millisecond))
	}
	l.heal = func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, lateBound)
		defer cancel()
		o.send(ctx)
		if what != answerLost {
			a.mu.Lock()
			a.repeated++
			a.mu.Unlock()
		}
		return "met", nil
	}
	return l, nil
}

func (a *badReplies) verdicts(e *evidence) []*check.Verdict {
	v := &check.Verdict{Name: "what was repeated is in the history"}
	found, answered := 0, 0
	for _, x := range e.history.Exchanges {
		if strings.HasPrefix(x.Client, proxyClient) {
			found++
			if x.End != 0 {
				answered++
			}
		}
	}
	if found != a.repeated {
		find(v, "the proxies sent %d requests of their own, and %d are recorded", a.repeated, found)
	}
	if answered == 0 && a.repeated > 0 {
		find(v, "none of %d was answered", a.repeated)
	}
	v.Note = fmt.Sprintf("%d requests repeated or sent late, %d answered", found, answered)
	return []*check.Verdict{v}
}

// addProxies puts a proxy before each node.
func (c *cluster) addProxies(inside bool) error {
	for i, n := range c.nodes {
		addr := proxyAddr(i) + ":0"
		if inside {
			addr = fmt.Sprintf("%s:%d", proxyAddr(i), httpPort)
		}
		p, err := newReplyProxy(n, addr, c.recorder)
		if err != nil {
			return errors.Join(fmt.Errorf("proxy before %s: %w", n.name, err), c.closeProxies())
		}
		c.proxies = append(c.proxies, p)
	}
	return nil
}

func (c *cluster) closeProxies() error {
	for _, p := range c.proxies {
		p.close()
	}
	return nil
}
