package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	benchValueBytes = 256
	benchTTLMS      = 600_000 // no lease ends while it is measured
	warmUpShare     = 5       // one part of so many is warm-up
	benchCallBound  = 10 * time.Second
	benchBackOff    = 20 * time.Millisecond
)

func benchWorkNames() []string {
	return []string{"acquire-release", "renew", "write", "read", workWatch, workHandOff, workExpiry}
}

// benchClient has one keep-alive connection. It is made to be lean, since it
// shares the machine with the servers: requests are built once and sent again and
// again, answers are only looked at for a token. It neither sends
// Idempotency-Keys nor repeats anything: what fails is an error of the result.
type benchClient struct {
	setup    benchSetup
	http     *http.Client
	name     string
	token    []byte
	held     bool
	acquire  *benchRequest
	release  *benchRequest
	again    *benchRequest // the request of all works but acquire-release
	partner  *benchClient  // of a hand-off: who gets the lease
	measured time.Duration // by the last expiry or hand-off
	index    string        // Fencepost-Index of the last answer
	events   *bufio.Reader // of a watch
	endWatch func()
	scratch  bytes.Buffer
	releases []byte
}

// benchRequest is a request that is sent many times, one at a time.
type benchRequest struct {
	http *http.Request
	body []byte
	read bytes.Reader
}

func newBenchClient(s benchSetup, i int) *benchClient {
	return &benchClient{
		setup: s, name: s.names + "/" + strconv.Itoa(i),
		http: &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 1, MaxConnsPerHost: 1, DisableCompression: true, TLSClientConfig: s.tls},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func (c *benchClient) close() {
	c.http.CloseIdleConnections()
	if c.partner != nil {
		c.partner.close()
	}
	if c.endWatch != nil {
		c.endWatch()
	}
}

func (c *benchClient) request(ctx context.Context, method, path string, body []byte) (*benchRequest, error) {
	r := &benchRequest{body: body}
	r.read.Reset(body)
	req, err := http.NewRequestWithContext(ctx, method, c.setup.base+path, &r.read)
	if err != nil {
		return nil, err
	}
	if c.setup.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.setup.bearer)
	}
	r.http = req
	return r, nil
}

// prepare builds the requests, and makes what the work works on.
func (c *benchClient) prepare(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, benchCallBound)
	defer cancel()
	lease, key := "/v1/leases/"+c.name, "/v1/kv/"+c.name
	var err error
	if c.acquire, err = c.request(ctx, "POST", lease+"/acquire", fmt.Appendf(nil, `{"holder":"bench","ttl_ms":%d}`, benchTTLMS)); err != nil {
		return err
	}
	if c.release, err = c.request(ctx, "POST", lease+"/release", nil); err != nil {
		return err
	}
	switch c.setup.work {
	case "acquire-release":
		return nil
	case workExpiry:
		return c.prepareExpiry(ctx, lease)
	case workHandOff:
		return c.prepareHandOff(ctx, lease)
	}
	c.acquire.http = c.acquire.http.WithContext(bounded)
	if err := c.take(); err != nil {
		return err
	}
	write, err := c.request(ctx, "PUT", key, bytes.Repeat([]byte("v"), benchValueBytes))
	if err != nil {
		return err
	}
	write.http.Header.Set("Fencing-Token", string(c.token))
	switch c.setup.work {
	case "renew":
		c.again, err = c.request(ctx, "POST", lease+"/renew", fmt.Appendf(nil, `{"token":%s}`, c.token))
	case "write":
		c.again = write
	case workWatch:
		c.again = write
		err = c.prepareWatch(ctx)
	case "read":
		write.http = write.http.WithContext(bounded)
		if err := c.send(write); err != nil {
			return err
		}
		c.again, err = c.request(ctx, "GET", key, nil)
	}
	return err
}

// loop works until the duration is over; the first part is not counted.
func (c *benchClient) loop(ctx context.Context, begin time.Time, duration time.Duration, t *benchTally) {
	ctx, cancel := context.WithDeadline(ctx, begin.Add(duration+benchCallBound))
	defer cancel()
	requests := []*benchRequest{c.acquire, c.release, c.again}
	if c.partner != nil {
		requests = append(requests, c.partner.acquire)
	}
	for _, r := range requests {
		if r != nil {
			r.http = r.http.WithContext(ctx)
		}
	}
	count, end := begin.Add(duration/warmUpShare), begin.Add(duration)
	t.micros = make([]uint32, 0, 1024)
	for start := time.Now(); start.Before(end); {
		err := c.operation()
		now := time.Now()
		took := now.Sub(start)
		if c.setup.work == workExpiry || c.setup.work == workHandOff {
			took = c.measured
		}
		switch {
		case now.After(end) || ctx.Err() != nil:
			return // it was not answered within the time that is counted
		case err != nil:
			t.fail(err)
			pauseAfterFailure(ctx)
			now = time.Now()
		case start.After(count):
			t.micros = append(t.micros, uint32(min(took.Microseconds(), 1<<32-1)))
		}
		start = now
	}
}

// pauseAfterFailure keeps a client whose calls fail at once from eating the CPU
// that it is there to measure.
func pauseAfterFailure(ctx context.Context) {
	pause := time.NewTimer(benchBackOff)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

func (c *benchClient) operation() error {
	switch c.setup.work {
	case workExpiry:
		return c.expire()
	case workHandOff:
		return c.handOff()
	case workWatch:
		return c.writeAndSee()
	}
	if c.again != nil {
		return c.send(c.again)
	}
	if !c.held { // else the last release failed, and comes first
		if err := c.take(); err != nil {
			return err
		}
	}
	c.held = true
	if err := c.giveBack(); err != nil {
		return err
	}
	c.held = false
	return nil
}

func (c *benchClient) giveBack() error {
	c.release.body = append(append(append(c.releases[:0], `{"token":`...), c.token...), '}')
	c.releases = c.release.body
	return c.send(c.release)
}

// take acquires the client's lease and keeps its token.
func (c *benchClient) take() error {
	if err := c.send(c.acquire); err != nil {
		return err
	}
	const field = `"token":`
	b := c.scratch.Bytes()
	at := bytes.Index(b, []byte(field))
	if at < 0 {
		return errors.New("acquire: no token in the answer")
	}
	b = bytes.TrimLeft(b[at+len(field):], " ")
	end := slices.IndexFunc(b, func(d byte) bool { return d < '0' || d > '9' })
	if end <= 0 {
		return errors.New("acquire: the token in the answer is no number")
	}
	c.token = append(c.token[:0], b[:end]...)
	return nil
}

// send sends a request and reads the answer into scratch.
func (c *benchClient) send(r *benchRequest) error {
	r.read.Reset(r.body)
	r.http.Body, r.http.ContentLength, r.http.GetBody = io.NopCloser(&r.read), int64(len(r.body)), nil
	if len(r.body) == 0 {
		r.http.Body = http.NoBody
	}
	resp, err := c.http.Do(r.http)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	c.index = resp.Header.Get("Fencepost-Index")
	c.scratch.Reset()
	if _, err := c.scratch.ReadFrom(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %d %.200s", r.http.Method, r.http.URL.Path, resp.StatusCode, c.scratch.Bytes())
	}
	return nil
}
