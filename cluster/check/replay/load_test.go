package replay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/cluster/bubble"
	"fencepost/cluster/check"
	"fencepost/httpapi"
	"fencepost/httpapi/wire"
)

// soundRun is a history of so many clients that make so many calls each, of the real
// state machine behind the real API, in fake time and on a bad network; and its log.
func soundRun(t *testing.T, seed uint64, clients, calls int) (h *check.History, log []check.Entry) {
	t.Helper()
	return soundRunWith(t, seed, clients, calls, func(context.Context, *node) {})
}

// soundRunWith has something else done beside the clients' calls.
func soundRunWith(t *testing.T, seed uint64, clients, calls int, beside func(context.Context, *node)) (h *check.History, log []check.Entry) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		n, rec := newNode(), check.NewRecorder()
		api := httpapi.New(n, httpapi.Options{})
		var work, rest sync.WaitGroup
		rest.Go(func() { n.keepTime(ctx) })
		rest.Go(func() { beside(ctx, n) })
		for i := range 3 {
			rest.Go(func() { watch(ctx, api, rec, i) })
		}
		for i := range clients {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			name := fmt.Sprint("c", i)
			next := &badNetwork{api: api, random: random, rest: &rest, rec: rec}
			c := &loader{t: t, random: random, to: rec.Transport(name, next), name: name, acquired: "none", acquiredName: "a"}
			work.Go(func() {
				for range calls {
					c.call(ctx)
				}
			})
		}
		work.Wait()
		time.Sleep(30 * time.Second) // late repetitions and leases end
		end()
		rest.Wait()
		api.Close()
		h, log = rec.History(), n.entries()
	})
	return h, log
}

// badNetwork loses requests and answers, refuses connections, and repeats late.
type badNetwork struct {
	api    http.Handler
	random *rand.Rand // of one client
	rest   *sync.WaitGroup
	rec    *check.Recorder
}

func (b *badNetwork) RoundTrip(q *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(q.Body)
	time.Sleep(time.Duration(b.random.IntN(5)) * time.Millisecond)
	lost := fmt.Errorf("lost on the way")
	switch b.random.IntN(40) {
	case 0:
		return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
	case 1:
		return nil, lost
	case 2:
		again, after := q.Clone(context.Background()), time.Duration(b.random.IntN(50)*b.random.IntN(60))*time.Millisecond
		again.Body = io.NopCloser(bytes.NewReader(body))
		b.rest.Go(func() {
			time.Sleep(after)
			_, _ = b.rec.Transport("repeater", direct{b.api}).RoundTrip(again)
		})
	case 3:
		w := httptest.NewRecorder()
		w.WriteHeader(http.StatusServiceUnavailable)
		return w.Result(), nil
	}
	q.Body = io.NopCloser(bytes.NewReader(body))
	resp, err := direct{b.api}.RoundTrip(q)
	time.Sleep(time.Duration(b.random.IntN(5)) * time.Millisecond)
	if b.random.IntN(12) == 0 {
		return nil, lost
	}
	return resp, err
}

// direct is the API itself.
type direct struct{ api http.Handler }

func (d direct) RoundTrip(q *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	q = q.Clone(q.Context())
	q.RequestURI = q.URL.RequestURI()
	d.api.ServeHTTP(w, q)
	return w.Result(), nil
}

// watch follows all events with streams that break.
func watch(ctx context.Context, api http.Handler, rec *check.Recorder, i int) {
	s := &check.Stream{Renewals: true}
	for reached := uint64(0); ctx.Err() == nil; reached = max(reached, s.Reached) {
		s = &check.Stream{Watcher: fmt.Sprint("w", i), Start: rec.Now(), From: reached + 1, Renewals: i != 0, Kind: []string{"", "lease", "kv,refusal"}[i]}
		part, cut := context.WithTimeout(ctx, 3*time.Second)
		url := fmt.Sprintf("http://n/v1/watch?from=%d&renewals=%v", s.From, s.Renewals)
		if s.Kind != "" {
			url += "&kind=" + s.Kind
		}
		q, _ := http.NewRequestWithContext(part, http.MethodGet, url, nil)
		q.RequestURI = q.URL.RequestURI()
		in, out := io.Pipe()
		w := &streamWriter{header: http.Header{}, to: out}
		go func() {
			api.ServeHTTP(w, q)
			out.Close()
		}()
		readStream(s, in, rec)
		cut()
		if s.Status = w.status; s.Status != 0 {
			rec.AddStream(s)
		}
	}
}

type streamWriter struct {
	header http.Header
	status int
	to     *io.PipeWriter
}

func (w *streamWriter) Header() http.Header         { return w.header }
func (w *streamWriter) WriteHeader(code int)        { w.status = code }
func (w *streamWriter) Write(b []byte) (int, error) { return w.to.Write(b) }
func (w *streamWriter) Flush()                      {}

// read takes what comes until the stream ends.
func readStream(s *check.Stream, in io.Reader, rec *check.Recorder) {
	lines := bufio.NewScanner(in)
	var event check.StreamedEvent
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			event.Event = value
		case "data":
			event.Data = json.RawMessage(value)
		case "id":
			s.Reached, _ = strconv.ParseUint(value, 10, 64)
			event.Last = true
		case "":
			if event.Event != "" {
				event.At = rec.Now()
				s.Events = append(s.Events, event)
			}
			event = check.StreamedEvent{}
		}
	}
}

// loader is one client, with what it knows of its leases.
type loader struct {
	t      *testing.T
	random *rand.Rand
	to     http.RoundTripper
	name   string
	keys   int // made
	held   []held

	acquired, acquiredName string // key and name of the last acquire
}

type held struct {
	name  string
	token uint64
}

// call makes one random call, repeated under its key while its outcome is unknown.
func (c *loader) call(ctx context.Context) {
	time.Sleep(time.Duration(c.random.IntN(200)) * time.Millisecond)
	name := []string{"a", "b", "job/1", "pool"}[c.random.IntN(4)]
	old := held{name, 1 + c.random.Uint64N(50)}
	if n := len(c.held); n > 0 {
		old = c.held[max(0, n-1-c.random.IntN(3))]
	}
	key := fmt.Sprint("k/", c.random.IntN(5))
	fence := http.Header{wire.HeaderFencingToken: {fmt.Sprint(old.token)}}
	if c.random.IntN(2) == 0 || old.name == "pool" {
		fence.Set(wire.HeaderFencingGuard, wire.GuardHeld)
	}
	if c.random.IntN(4) == 0 {
		fence.Set("If-None-Match", "*")
	}
	switch c.random.IntN(17) {
	case 0, 1, 2, 3:
		c.acquire(ctx, name)
	case 16: // of the last acquire, be it over
		cancel := http.Header{wire.HeaderIdempotencyKey: {c.acquired}}
		c.send(ctx, "POST", "/v1/leases/"+c.acquiredName+"/cancel", cancel, "")
	case 4, 5:
		c.send(ctx, "POST", "/v1/leases/"+old.name+"/renew", nil, fmt.Sprintf(`{"token":%d,"ttl_ms":%d}`, old.token, 500+c.random.IntN(3000)))
	case 6:
		c.send(ctx, "POST", "/v1/renew", nil, fmt.Sprintf(`{"leases":[{"name":%q,"token":%d},{"name":"none","token":7}]}`, old.name, old.token))
	case 7:
		c.send(ctx, "POST", "/v1/leases/"+old.name+"/release", nil, fmt.Sprintf(`{"token":%d}`, old.token))
	case 8, 9:
		fence.Set("Content-Type", "text/plain")
		c.send(ctx, "PUT", "/v1/kv/"+key, fence, fmt.Sprint("value ", c.random.IntN(1000)))
	case 10:
		c.send(ctx, "DELETE", "/v1/kv/"+key, fence, "")
	case 11:
		c.send(ctx, "POST", "/v1/kv/"+key+"/fence", fence, "")
	case 12:
		c.send(ctx, "POST", "/v1/txn", nil, fmt.Sprintf(`{"token":%d,"guard":"held","ops":[{"op":"put","key":%q,"value_base64":"eA=="},{"op":"check","key":"k/9","if_version":0},{"op":"fence","key":"k/8"}]}`, old.token, key))
	case 13:
		accept := http.Header{"Accept": {[]string{"*/*", "application/json"}[c.random.IntN(2)]}}
		c.send(ctx, "GET", "/v1/kv/"+key+[]string{"", "?consistency=stale"}[c.random.IntN(2)], accept, "")
	case 14:
		c.send(ctx, "GET", "/v1/leases/"+name, nil, "")
	case 15:
		c.send(ctx, "GET", []string{"/v1/leases?limit=2", "/v1/kv?prefix=k/&values=true"}[c.random.IntN(2)], nil, "")
	}
}

func (c *loader) acquire(ctx context.Context, name string) {
	body := fmt.Sprintf(`{"holder":%q,"ttl_ms":%d,"wait_ms":%d,"metadata":{"m":"1"}`, c.name, 300+c.random.IntN(3000), max(0, c.random.IntN(3000)-1000))
	if name == "pool" {
		body += `,"slots":3`
	} else if c.random.IntN(5) == 0 {
		body += `,"grace_ms":100`
	}
	status, answer := c.send(ctx, "POST", "/v1/leases/"+name+"/acquire", nil, body+"}")
	c.acquired, c.acquiredName = fmt.Sprint(c.name, "-", c.keys), name
	var got wire.Acquired
	if status == http.StatusOK && json.Unmarshal(answer, &got) == nil {
		c.held = append(c.held, held{name, got.Token})
	}
}

// send makes a call of up to three attempts.
func (c *loader) send(ctx context.Context, method, path string, header http.Header, body string) (status int, answer []byte) {
	c.keys++
	withKey := method != "GET" && c.random.IntN(6) > 0
	for range 3 {
		attempt, stop := context.WithTimeout(ctx, time.Duration(1+c.random.IntN(5))*time.Second)
		q, err := http.NewRequestWithContext(attempt, method, "http://n"+path, io.NopCloser(strings.NewReader(body)))
		if err != nil {
			c.t.Error(err)
		}
		for name, values := range header {
			q.Header[name] = values
		}
		if withKey && header.Get(wire.HeaderIdempotencyKey) == "" {
			q.Header.Set(wire.HeaderIdempotencyKey, fmt.Sprint(c.name, "-", c.keys))
		}
		resp, err := c.to.RoundTrip(q)
		if stop(); err == nil {
			answer, _ = io.ReadAll(resp.Body)
			if status = resp.StatusCode; status < 500 {
				return status, answer
			}
		}
		if !withKey {
			return 0, nil
		}
	}
	return 0, nil
}
