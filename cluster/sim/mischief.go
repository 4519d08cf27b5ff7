package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

var errAnswerLost = errors.New("connection reset by peer")

// mischief is what networks do to single requests: an answer is lost after the
// request was carried out, a request arrives twice, or late.
type mischief struct {
	again http.RoundTripper // of what arrives once more, or late

	mu      sync.Mutex // guards what follows
	rng     *rand.Rand
	stopped bool
	counts  map[string]int
	wg      sync.WaitGroup
}

// through is a transport with mischief.
func (m *mischief) through(next http.RoundTripper) http.RoundTripper { return &prone{m, next} }

// stop ends mischief and waits for what is late.
func (m *mischief) stop() {
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.wg.Wait()
}

type prone struct {
	m    *mischief
	next http.RoundTripper
}

// draw decides what happens to a request; "": nothing.
func (m *mischief) draw() (what string, later time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return "", 0
	}
	switch n := m.rng.IntN(100); {
	case n < 2:
		what = "answer lost"
	case n < 4:
		what = "request repeated"
	case n < 5:
		what = "request late"
	default:
		return "", 0
	}
	m.counts[what]++
	if what != "answer lost" {
		m.wg.Add(1)
	}
	return what, time.Duration(m.rng.Int64N(int64(4 * time.Second)))
}

func (p *prone) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodGet {
		return p.next.RoundTrip(q)
	}
	what, later := p.m.draw()
	if what == "" {
		return p.next.RoundTrip(q)
	}
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = io.ReadAll(q.Body); err != nil {
			return nil, err
		}
		q.Body.Close()
		q.Body = io.NopCloser(bytes.NewReader(body))
	}
	if what != "answer lost" {
		go p.m.deliver(q, body, later)
	}
	if what == "request late" {
		return nil, errAnswerLost
	}
	resp, err := p.next.RoundTrip(q)
	if what == "answer lost" && err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return nil, errAnswerLost
	}
	return resp, err
}

// deliver sends a request once more, when its sender has gone on.
func (m *mischief) deliver(q *http.Request, body []byte, later time.Duration) {
	defer m.wg.Done()
	time.Sleep(later)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	again := q.Clone(ctx)
	again.Body = io.NopCloser(bytes.NewReader(body))
	resp, err := m.again.RoundTrip(again)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}
