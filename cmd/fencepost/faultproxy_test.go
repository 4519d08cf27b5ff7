package main

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/client"
)

// fault is what a faultProxy does to a request.
type fault int

const (
	pass       fault = iota
	dropAnswer       // the node is asked and answers; the client hears nothing
	duplicate        // the node is asked twice at once; the client hears one answer
	hold             // the client hears nothing, and the node is asked when the test says so
)

// faultProxy stands between clients and one node. What it does to the next
// requests is told by inject; all others it passes on.
type faultProxy struct {
	*httptest.Server
	t      *testing.T
	target string

	mu     sync.Mutex // guards what follows
	faults []injected
	met    []*exchange // that a fault was done to, in order
}

type injected struct {
	fault  fault
	suffix string // of the path
}

// exchange is a request that a fault was done to, and what the node said to it.
type exchange struct {
	fault   fault
	method  string
	path    string
	header  http.Header
	body    []byte
	answers []answer // none while it is held; two if it was sent twice
}

func newFaultProxy(t *testing.T, target *process) *faultProxy {
	p := &faultProxy{t: t, target: target.url}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

// inject does a fault to the next request whose path ends so.
func (p *faultProxy) inject(f fault, suffix string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, injected{f, suffix})
}

func (p *faultProxy) take(path string) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.faults) == 0 || !strings.HasSuffix(path, p.faults[0].suffix) {
		return pass
	}
	f := p.faults[0].fault
	p.faults = p.faults[1:]
	return f
}

func (p *faultProxy) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	x := &exchange{fault: p.take(r.URL.Path), method: r.Method, path: r.URL.RequestURI(), header: r.Header.Clone(), body: body}
	switch x.fault {
	case pass:
		relay(w, p.send(r, x))
	case dropAnswer:
		x.answers = []answer{p.send(r, x)}
		p.note(x)
		panic(http.ErrAbortHandler) // the connection ends without a word
	case duplicate:
		second := make(chan answer, 1)
		go func() { second <- p.send(r, x) }()
		first := p.send(r, x)
		x.answers = []answer{first, <-second}
		p.note(x)
		relay(w, first)
	case hold:
		p.note(x)
		panic(http.ErrAbortHandler)
	}
}

func (p *faultProxy) note(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.met = append(p.met, x)
}

// send asks the node; r is whose leaving ends that, nil if nobody's does.
func (p *faultProxy) send(r *http.Request, x *exchange) answer {
	req, err := http.NewRequest(x.method, p.target+x.path, bytes.NewReader(x.body))
	if err != nil {
		return answer{err: err}
	}
	if r != nil {
		req = req.WithContext(r.Context())
	}
	req.Header = x.header.Clone()
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	return answerOf(resp)
}

func relay(w http.ResponseWriter, a answer) {
	if a.err != nil {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	w.Write(a.raw) // the client may have gone
}

// landed waits until the fault has been done to another request, and returns
// that. What the node said to it must have this status, unless it is held.
func (p *faultProxy) landed(f fault, status int) *exchange {
	p.t.Helper()
	var x *exchange
	eventually(p.t, "the fault lands", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.met) > 0 {
			x, p.met = p.met[0], p.met[1:]
		}
		return x != nil
	})
	if x.fault != f {
		p.t.Fatalf("fault %d was done to %s %s, want %d", x.fault, x.method, x.path, f)
	}
	for _, a := range x.answers {
		if a.status != status {
			p.t.Fatalf("%s %s: the node said %s, want %d", x.method, x.path, a, status)
		}
	}
	return x
}

// deliver sends a request that was held.
func (p *faultProxy) deliver(x *exchange) answer { return p.send(nil, x) }

// client goes through the proxy first, and to the nodes if that does not answer.
func (p *faultProxy) client(c *processes, opts ...client.Option) *client.Client {
	p.t.Helper()
	endpoints := []string{p.URL}
	for _, n := range c.nodes {
		endpoints = append(endpoints, n.url)
	}
	cl, err := client.New(endpoints, opts...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { cl.Close() })
	return cl
}

// story is what happened to the names with this prefix until now, by the log.
func (c *processes) story(prefix string) (events []*client.Event) {
	c.t.Helper()
	end := c.mustAcquire("end-of-story", time.Minute)
	for e, err := range c.client(c.nodes[0]).Watch(c.t.Context(), client.Watch{From: 1, Patience: 20 * time.Second}) {
		if err != nil {
			c.t.Fatal(err)
		}
		if strings.HasPrefix(e.Name, prefix) || strings.HasPrefix(e.Key, prefix) {
			events = append(events, e)
		}
		if e.Index == end {
			break
		}
	}
	c.release("end-of-story", end)
	return events
}

// once checks that the story of a name has exactly one event of a kind, and
// returns it.
func (c *processes) once(kind, name string) *client.Event {
	c.t.Helper()
	var found []*client.Event
	for _, e := range c.story(name) {
		if string(e.Kind) == kind {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		c.t.Fatalf("%s: %d events of kind %s, want 1", name, len(found), kind)
	}
	return found[0]
}
