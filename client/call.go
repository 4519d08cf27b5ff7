package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"

	"fencepost/httpapi/wire"
)

const (
	firstBackOff = 20 * time.Millisecond
	maxBackOff   = 500 * time.Millisecond
	// keyKept is how long a change that may have happened is repeated: the cluster
	// knows its key for ten minutes from then, and would make the change once more
	// after that.
	keyKept = 9 * time.Minute
	// maxAnswer bounds what is read of one answer: a page of values is the
	// greatest, and what answers more is not fencepost.
	maxAnswer = 1 << 30
)

// call is one request of the API, sent as often as it takes.
type call struct {
	what   string // for errors: "acquire jobs/nightly"
	method string
	path   string // escaped, with the query
	header http.Header
	body   []byte
	read   bool   // changes nothing: every failure is ErrUnavailable
	lease  *Lease // if not nil, nothing is sent once it has ended
	// wait is how long the call stands in a queue, and waiting makes the body for
	// what is left of that.
	wait    time.Duration
	waiting func(left time.Duration) ([]byte, error)
}

// attempt is the body of the next attempt, and how long it may take.
func (q *call) attempt(began time.Time, bound time.Duration) (body []byte, limit time.Duration, err error) {
	if q.waiting == nil {
		return q.body, bound, nil
	}
	left := max(0, q.wait-time.Since(began))
	body, err = q.waiting(left)
	return body, bound + left, err
}

// answer is a 200.
type answer struct {
	header http.Header
	body   []byte
	sent   instant // before the attempt left that was answered
	key    string  // Idempotency-Key that it answers
	base   string  // of the node that was asked
}

// verdict is what one attempt says about the call.
type verdict int

const (
	answered verdict = iota
	refused          // decided: nothing was changed, whatever earlier attempts did
	notNow           // not decided, and surely not applied by this attempt
	maybe            // not decided, and perhaps applied
	hopeless         // speaks of this attempt only, and a repetition would meet the same
)

// do sends the call until it is decided, or the context or its lease ends.
func (c *Client) do(ctx context.Context, q *call) (*answer, error) {
	key := ""
	if !q.read {
		key, _ = ctx.Value(keyInContext{}).(string)
		if key == "" {
			key = rand.Text()
		}
	}
	if q.lease != nil {
		var unbind func()
		ctx, unbind = q.lease.bind(ctx)
		defer unbind()
	}
	o := &OutcomeError{Call: q.what, Key: key}
	pause := backOff{next: firstBackOff, free: c.nodes.spare()}
	began := time.Now()
	for {
		if err := q.ended(ctx, o, began); err != nil {
			return nil, err
		}
		body, limit, err := q.attempt(began, c.attempt)
		if err != nil {
			return nil, fmt.Errorf("%s: encode the request: %w", q.what, err)
		}
		n := c.nodes.pick()
		o.Attempts++
		a, v, sent, err := c.try(ctx, limit, n, q, body, key)
		switch v {
		case answered:
			a.key = key
			return a, nil
		case refused:
			return nil, fmt.Errorf("%s: %w", q.what, err)
		case hopeless:
			if !o.Unknown {
				return nil, fmt.Errorf("%s: %w", q.what, err)
			}
			o.Last = err
			return nil, o // an earlier attempt may have been applied, this answer does not tell
		case maybe:
			o.Unknown = o.Unknown || !q.read
		}
		o.Last = err
		if c.once {
			return nil, o
		}
		if pause.wait(ctx, sent) != nil {
			return nil, q.ended(ctx, o, began)
		}
	}
}

// ended is why the call must not be sent (again), or nil. What was never sent
// because its lease has ended is told as that alone.
func (q *call) ended(ctx context.Context, o *OutcomeError, began time.Time) error {
	if q.lease != nil {
		if err := q.lease.Err(); err != nil {
			if o.Attempts == 0 {
				return fmt.Errorf("%s: not sent: %w", q.what, err)
			}
			o.cause = err
			return o
		}
	}
	if o.cause = ctx.Err(); o.cause != nil {
		return o
	}
	if o.Unknown && time.Since(began) > q.wait+keyKept {
		return o
	}
	return nil
}

// backOff paces the attempts of one call.
type backOff struct {
	next time.Duration
	free int // attempts that may still follow at once
}

// wait pauses before the next attempt; an error is the context's. A node that
// could not be reached at all has cost nobody anything, so the others are tried
// at once. Retry-After is not waited for: it counts in whole seconds, and a
// failover is over in less.
func (b *backOff) wait(ctx context.Context, sent bool) error {
	if !sent && b.free > 0 {
		b.free--
		return nil
	}
	d := b.next/2 + mathrand.N(b.next/2+1)
	b.next = min(2*b.next, maxBackOff)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// try is one attempt at a node, of at most limit. sent says whether a connection
// was made, so that the request may have left.
func (c *Client) try(ctx context.Context, limit time.Duration, n *endpoint, q *call, body []byte, key string) (a *answer, v verdict, sent bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sent = c.foreign
	// The transport may send a request anew by itself, if its connection turns out
	// to be broken and it carries a key.
	connections := 0
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true; connections++ }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(bounded, trace), q.method, n.base+q.path, bytes.NewReader(body))
	if err != nil {
		return nil, hopeless, false, err
	}
	for name, values := range q.header {
		req.Header[name] = values
	}
	if key != "" {
		req.Header.Set(wire.HeaderIdempotencyKey, key)
	}
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	if q.waiting != nil {
		defer c.probe(bounded, cancel, n)()
	}
	start := c.clocks()
	resp, got, err := c.exchange(req)
	if err != nil {
		if ctx.Err() == nil {
			c.left(n, !sent || bounded.Err() != nil)
		}
		if !sent {
			return nil, notNow, false, err
		}
		if connections == 1 && refusedOurs(err) {
			return nil, notNow, true, err
		}
		return nil, maybe, true, err
	}
	leader := resp.Header.Get(wire.HeaderLeader)
	if resp.StatusCode == http.StatusOK {
		c.nodes.answered(n, leader)
		return &answer{header: resp.Header, body: got, sent: start, base: n.base}, answered, true, nil
	}
	e := problem(resp, got)
	if v = judge(e); v == refused {
		c.nodes.answered(n, leader)
	} else {
		c.nodes.failed(n, false, leader)
		if connections > 1 && (v == notNow || e.Status == http.StatusTooManyRequests) {
			v = maybe // the answer does not speak of what was sent before
		}
	}
	return nil, v, true, e
}

// exchange sends a request and reads its whole answer.
func (c *Client) exchange(req *http.Request) (*http.Response, []byte, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, nil, fmt.Errorf("read answer of %s: %w", req.URL.Host, err)
	}
	return resp, got, nil
}

// left turns away from a node that gave no answer. One that was silent may be
// hung, or a path to it dead: other connections to it, or over that path, would
// hang in the same way, so the next attempt makes a new one.
func (c *Client) left(n *endpoint, silent bool) {
	c.nodes.failed(n, silent, "")
	if silent {
		c.http.CloseIdleConnections()
	}
}

// judge says what an answer other than 200 means for the call (P10).
func judge(e *Error) verdict {
	switch e.Status {
	case http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		if e.Code != "" {
			return refused
		}
	case http.StatusServiceUnavailable:
		switch e.Code {
		case wire.CodeNoLeader, wire.CodeShuttingDown, wire.CodeOverloaded:
			return notNow
		}
		return maybe // some proxy's: who knows how far it had got
	case http.StatusInternalServerError:
		// Not one of the answers that ask for a repetition, and nothing that says
		// how far it got.
		return maybe
	}
	if e.Status > 500 {
		return maybe
	}
	return hopeless
}

// problem reads an error document; what is none becomes an Error without a code.
func problem(resp *http.Response, body []byte) *Error {
	e := &Error{
		Status: resp.StatusCode,
		Leader: resp.Header.Get(wire.HeaderLeader), Node: resp.Header.Get(wire.HeaderNode),
	}
	e.index, _ = strconv.ParseUint(resp.Header.Get(wire.HeaderIndex), 10, 64)
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), wire.ContentTypeProblem) {
		return e
	}
	var p wire.Problem
	if json.Unmarshal(body, &p) != nil {
		return e
	}
	e.Code, e.Reason, e.Title, e.Detail, e.Field = p.Code, p.Reason, p.Title, p.Detail, p.Field
	e.Holder, e.Token, e.LastToken = value(p.Holder), p.Token, value(p.LastToken)
	e.Watermark, e.Version, e.OpIndex = value(p.Watermark), value(p.Version), p.OpIndex
	e.Oldest = p.Oldest
	e.ExpiresIn = time.Duration(value(p.ExpiresInMS)) * time.Millisecond
	e.QueueLength, e.Grace = value(p.QueueLength), time.Duration(value(p.GraceMS))*time.Millisecond
	return e
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// decode reads the document of a 200.
func decode(q *call, a *answer, into any) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return unreadable(q, a, err)
	}
	return nil
}

// unreadable is for a 200 that is not the API's: the outcome of a mutation is
// unknown, since who knows what has answered.
func unreadable(q *call, a *answer, err error) error {
	return &OutcomeError{Call: q.what, Unknown: !q.read, Attempts: 1, Key: a.key, Last: fmt.Errorf("answer is not the API's: %w", err)}
}
