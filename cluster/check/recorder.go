package check

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/httpapi/wire"
)

// A Recorder collects the exchanges of many clients on one clock. It is safe for
// concurrent use.
type Recorder struct {
	began time.Time

	mu      sync.Mutex // guards what follows
	last    int        // number given
	history History
}

// NewRecorder starts the clock.
func NewRecorder() *Recorder { return &Recorder{began: time.Now()} }

// Now is the recorder's clock, in nanoseconds.
func (r *Recorder) Now() int64 { return int64(time.Since(r.began)) + 1 }

// History is what has been recorded so far. An exchange that is still under way is
// not in it.
func (r *Recorder) History() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &History{Exchanges: append([]*Exchange(nil), r.history.Exchanges...), Streams: append([]*Stream(nil), r.history.Streams...)}
}

// AddStream records a watch that has ended.
func (r *Recorder) AddStream(s *Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Streams = append(r.history.Streams, s)
}

func (r *Recorder) add(x *Exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Exchanges = append(r.history.Exchanges, x)
}

func (r *Recorder) number() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	return r.last
}

// Transport records what goes through another one, under a client's name. Watches
// (/v1/watch) pass unrecorded: whoever reads them calls AddStream.
func (r *Recorder) Transport(client string, next http.RoundTripper) http.RoundTripper {
	return &recording{r, client, next}
}

type recording struct {
	r      *Recorder
	client string
	next   http.RoundTripper
}

func (t *recording) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.URL.Path == "/v1/watch" {
		return t.next.RoundTrip(q)
	}
	x := &Exchange{ID: t.r.number(), Client: t.client, Method: q.Method, Path: q.URL.RequestURI(), Key: q.Header.Get(wire.HeaderIdempotencyKey), Header: picked(q.Header)}
	if q.Body != nil {
		body, err := io.ReadAll(q.Body)
		q.Body.Close()
		if err != nil {
			return nil, err
		}
		x.Body, q.Body = body, io.NopCloser(bytes.NewReader(body))
	}
	var sent atomic.Int64 // written by the transport's goroutines
	q = q.WithContext(httptrace.WithClientTrace(q.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Add(1) },
	}))
	x.Start = t.r.Now()
	resp, err := t.next.RoundTrip(q)
	x.Sent = int(sent.Load())
	if err != nil {
		// A refused dial is the whole story only if it was not a repetition's.
		var dial *net.OpError
		x.Unsent = x.Sent == 0 && errors.As(err, &dial) && dial.Op == "dial"
		t.r.add(x)
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		t.r.add(x)
		return nil, err
	}
	x.End = t.r.Now()
	x.Status, x.Node, x.Told, x.Answer = resp.StatusCode, resp.Header.Get(wire.HeaderNode), picked(resp.Header), body
	x.Index, _ = strconv.ParseUint(resp.Header.Get(wire.HeaderIndex), 10, 64)
	t.r.add(x)
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// picked are the headers that say what is asked or told.
func picked(h http.Header) map[string]string {
	m := make(map[string]string)
	for name := range h {
		if strings.HasPrefix(name, "Fencing-") || strings.HasPrefix(name, "If-") || name == "Etag" || name == "Content-Type" || name == "Accept" || name == wire.HeaderIdempotencyKey {
			m[name] = h.Get(name)
		}
	}
	return m
}

// CloseIdleConnections is passed on.
func (t *recording) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
