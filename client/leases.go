package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"fencepost/httpapi/wire"
)

// A Grant is a lease that was acquired.
type Grant struct {
	wire.Acquired
	// Until is when the holder must have stopped or renewed: counted from before
	// the answered attempt was sent, by this process's monotonic clock (P7). Give
	// up a margin earlier; a paused process wakes up after it.
	Until time.Time
}

// Renewed is a lease that goes on.
type Renewed struct {
	wire.Renewed
	Until time.Time // as Grant.Until
}

// Grant asks for the lease and does not keep it: whoever calls it renews in time,
// or not. [Client.Acquire] is for programs that hold a lease while they work. Held
// by somebody else, also after [Wait], it is ErrHeld. A caller whose ctx ends
// while it waits leaves the queue within seconds; Cancel with the key of the call
// (WithIdempotencyKey, or the OutcomeError's) does so at once.
func (c *Client) Grant(ctx context.Context, name string, opts ...AcquireOption) (*Grant, error) {
	asked, err := c.asked(name, opts)
	if err != nil {
		return nil, err
	}
	g, _, err := c.grant(ctx, name, asked)
	return g, err
}

// grant stands in the queue until the wait is over: a place that was lost is one at
// the end. Under a key of the caller's own it is not, since the caller may have
// cancelled it.
func (c *Client) grant(ctx context.Context, name string, asked acquisition) (*Grant, *answer, error) {
	key, _ := ctx.Value(keyInContext{}).(string)
	began, wait, pause := time.Now(), asked.wait, backOff{next: firstBackOff}
	for {
		g, a, err := c.grantOnce(ctx, name, asked)
		if key != "" || !errors.Is(err, ErrCancelled) {
			return g, a, err
		}
		left := wait - time.Since(began)
		if left <= 0 || pause.wait(ctx, true) != nil {
			return nil, nil, err
		}
		asked.wait, asked.WaitMS = left, milliseconds(left)
	}
}

func (c *Client) grantOnce(ctx context.Context, name string, asked acquisition) (*Grant, *answer, error) {
	q, err := asked.call(name)
	if err != nil {
		return nil, nil, err
	}
	g := new(Grant)
	a, err := c.into(ctx, q, &g.Acquired)
	if err != nil {
		return nil, nil, err
	}
	g.Until = until(a, g.ExpiresInMS+g.WaitedMS)
	return g, a, nil
}

// Renew extends a lease by its TTL, or a new one; it never shortens. ErrLost:
// the token no longer holds it.
func (c *Client) Renew(ctx context.Context, name string, token uint64, ttl time.Duration) (*Renewed, error) {
	q, err := jsonCall("renew "+name, leasePath(name)+"/renew", wire.RenewRequest{Token: token, TTLMS: milliseconds(ttl)})
	if err != nil {
		return nil, err
	}
	r := new(Renewed)
	a, err := c.into(ctx, q, &r.Renewed)
	if err != nil {
		return nil, err
	}
	r.Until = until(a, r.ExpiresInMS)
	return r, nil
}

// RenewMany renews up to 1000 leases in one request. A result with a Code is a
// refusal of that lease alone. Expiry counts from the returned instant.
func (c *Client) RenewMany(ctx context.Context, leases []wire.Renewal) (results []wire.RenewResult, sent time.Time, err error) {
	q, err := jsonCall(fmt.Sprintf("renew %d leases", len(leases)), "/v1/renew", wire.RenewManyRequest{Leases: leases})
	if err != nil {
		return nil, time.Time{}, err
	}
	var r wire.RenewedMany
	a, err := c.into(ctx, q, &r)
	if err != nil {
		return nil, time.Time{}, err
	}
	return r.Results, a.sent.mono, nil
}

// Cancel ends what the acquire with this Idempotency-Key has: its place in the
// queue, or its lease. One that has not arrived yet will end with ErrCancelled.
// False: it had nothing any more. The key must not be used for another acquire,
// nor its lease believed in.
func (c *Client) Cancel(ctx context.Context, name, key string) (cancelled bool, err error) {
	q, err := jsonCall("cancel "+name, leasePath(name)+"/cancel", struct{}{})
	if err != nil {
		return false, err
	}
	var r wire.Cancelled
	_, err = c.into(WithIdempotencyKey(ctx, key), q, &r)
	return r.Cancelled, err
}

// Release gives a lease back. False: the token held nothing any more, which is
// no error.
func (c *Client) Release(ctx context.Context, name string, token uint64) (released bool, err error) {
	q, err := jsonCall("release "+name, leasePath(name)+"/release", wire.ReleaseRequest{Token: token})
	if err != nil {
		return false, err
	}
	var r wire.Released
	_, err = c.into(ctx, q, &r)
	return r.Released, err
}

// GetLease tells about a lease on record, by a linearizable read; ErrNotFound.
func (c *Client) GetLease(ctx context.Context, name string) (*wire.Lease, error) {
	l := new(wire.Lease)
	if _, err := c.into(ctx, readCall("get lease "+name, leasePath(name)), l); err != nil {
		return nil, err
	}
	return l, nil
}

// Page selects a part of a list.
type Page struct {
	Prefix string
	After  string // the Next of the page before; "": from the start
	Limit  int    // at most so many; 0: the cluster's default, 100
}

func (p Page) query() url.Values {
	v := make(url.Values)
	if p.Prefix != "" {
		v.Set("prefix", p.Prefix)
	}
	if p.After != "" {
		v.Set("after", p.After)
	}
	if p.Limit != 0 {
		v.Set("limit", strconv.Itoa(p.Limit))
	}
	return v
}

// ListLeases returns one page of the leases on record, in name order. Next is ""
// on the last page.
func (c *Client) ListLeases(ctx context.Context, p Page) (*wire.Leases, error) {
	l := new(wire.Leases)
	if _, err := c.into(ctx, readCall("list leases", withQuery("/v1/leases", p.query())), l); err != nil {
		return nil, err
	}
	return l, nil
}

func leasePath(name string) string { return "/v1/leases/" + escape(name) }

// escape encodes a name for a path; "/" separates its segments and stays.
func escape(name string) string { return (&url.URL{Path: "/" + name}).EscapedPath()[1:] }

func withQuery(path string, v url.Values) string {
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}

// milliseconds rounds up: a TTL below one millisecond is a mistake that the
// cluster shall see, not a request for its default.
func milliseconds(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}

func until(a *answer, ms uint64) time.Time {
	return a.sent.mono.Add(time.Duration(ms) * time.Millisecond)
}

func readCall(what, path string) *call {
	return &call{what: what, method: http.MethodGet, path: path, read: true, header: http.Header{"Accept": {"application/json"}}}
}

func jsonCall(what, path string, body any) (*call, error) {
	b, err := encode(body)
	if err != nil {
		return nil, fmt.Errorf("%s: encode the request: %w", what, err)
	}
	return &call{what: what, method: http.MethodPost, path: path, body: b, header: http.Header{"Content-Type": {"application/json"}}}, nil
}

// encode leaves <, > and & as they are, so that a name takes the bytes it has.
func encode(body any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(body)
	return bytes.TrimSpace(b.Bytes()), err
}

// into does the call and decodes its answer.
func (c *Client) into(ctx context.Context, q *call, v any) (*answer, error) {
	a, err := c.do(ctx, q)
	if err != nil {
		return nil, err
	}
	return a, decode(q, a, v)
}
