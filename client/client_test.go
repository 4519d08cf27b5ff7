package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fencepost/cluster/bubble"
	"fencepost/httpapi/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a hand-made server: answers in order, the last one again and again. It
// keeps what it was asked.
type node struct {
	*httptest.Server
	mu      sync.Mutex // guards asked
	asked   []*http.Request
	bodies  []string
	answers []http.HandlerFunc
}

func newNode(t *testing.T, answers ...http.HandlerFunc) *node {
	t.Helper()
	n := &node{answers: answers}
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n.mu.Lock()
		answer := n.answers[min(len(n.asked), len(n.answers)-1)]
		n.asked, n.bodies = append(n.asked, r), append(n.bodies, string(body))
		n.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(n.Close)
	return n
}

func (n *node) requests() []*http.Request {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]*http.Request(nil), n.asked...)
}

func ok(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, body)
	}
}

func refuse(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// cut breaks the connection after the request was read.
func cut(w http.ResponseWriter, _ *http.Request) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		c.Close()
	}
}

// silent does not answer until the client has gone.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

const granted = `{"name":"a","holder":"me","token":7,"ttl_ms":10000,"expires_in_ms":10000,"waited_ms":0,"previous_token":0}`

var (
	noLeader = refuse(503, `{"title":"no leader","status":503,"code":"no_leader"}`)
	unknown  = refuse(504, `{"title":"unknown","status":504,"code":"outcome_unknown"}`)
)

func newClient(t *testing.T, endpoints []string, opts ...Option) *Client {
	t.Helper()
	c, err := New(endpoints, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestP11_RepetitionsKeepTheKeyAndRotate(t *testing.T) {
	for name, first := range map[string]http.HandlerFunc{
		"503": noLeader, "504": unknown, "broken": cut, "500": refuse(500, `{"status":500,"code":"internal"}`), "proxy": refuse(502, ``),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newNode(t, first), newNode(t, first, ok(granted))
			c := newClient(t, []string{a.URL, b.URL})
			g, err := c.Grant(within(t, 10*time.Second), "a", Holder("me"), TTL(10*time.Second))
			if err != nil || g.Token != 7 {
				t.Fatalf("got %+v, %v; want token 7", g, err)
			}
			all := append(a.requests(), b.requests()...)
			if len(a.requests()) < 2 || len(b.requests()) != 2 {
				t.Fatalf("%d and %d attempts, want both endpoints in turn", len(a.requests()), len(b.requests()))
			}
			key := all[0].Header.Get("Idempotency-Key")
			if len(key) < 20 {
				t.Fatalf("key %q", key)
			}
			for _, r := range all {
				if r.Header.Get("Idempotency-Key") != key {
					t.Fatalf("key %q, was %q", r.Header.Get("Idempotency-Key"), key)
				}
			}
			if a.bodies[0] != b.bodies[1] || a.bodies[0] == "" {
				t.Fatalf("bodies %q and %q", a.bodies[0], b.bodies[1])
			}
		})
	}
}

func TestEveryCallHasItsOwnKey(t *testing.T) {
	a := newNode(t, ok(granted))
	c := newClient(t, []string{a.URL})
	for range 2 {
		if _, err := c.Grant(t.Context(), "a", Holder("me")); err != nil {
			t.Fatal(err)
		}
	}
	r := a.requests()
	if r[0].Header.Get("Idempotency-Key") == r[1].Header.Get("Idempotency-Key") {
		t.Fatal("two calls with one key")
	}
	if _, err := c.Grant(WithIdempotencyKey(t.Context(), "mine"), "a", Holder("me")); err != nil {
		t.Fatal(err)
	}
	if got := a.requests()[2].Header.Get("Idempotency-Key"); got != "mine" {
		t.Fatalf("key %q, want mine", got)
	}
}

func TestDeadEndpointIsPassedAtOnce(t *testing.T) {
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	live := newNode(t, ok(granted))
	c := newClient(t, []string{dead.URL, live.URL})
	if _, err := c.Grant(within(t, 10*time.Second), "a", Holder("me")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Grant(within(t, 10*time.Second), "a", Holder("me")); err != nil {
		t.Fatal(err)
	}
	if got := c.nodes.pick().base; got != live.URL {
		t.Fatalf("the next to be asked is %s, want the node that answered", got)
	}
}

func TestP10_WhatTheContextEnds(t *testing.T) {
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	full := refuse(429, `{"status":429,"code":"quota_reached"}`)
	for _, tt := range []struct {
		name    string
		answers []http.HandlerFunc
		want    error
	}{
		{"unknown stays unknown", []http.HandlerFunc{unknown, noLeader}, ErrUnknown},
		{"cut stays unknown", []http.HandlerFunc{cut, noLeader}, ErrUnknown},
		{"unknown, then a refusal of the attempt", []http.HandlerFunc{unknown, full}, ErrUnknown},
		{"unknown, then not allowed", []http.HandlerFunc{unknown, refuse(403, `{"status":403,"code":"forbidden"}`)}, ErrUnknown},
		{"503 of something else", []http.HandlerFunc{refuse(503, `busy`)}, ErrUnknown},
		{"silence", []http.HandlerFunc{silent}, ErrUnknown},
		{"no JSON", []http.HandlerFunc{ok(`<html>`)}, ErrUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, tt.answers...)
			c := newClient(t, []string{n.URL})
			_, err := c.Grant(within(t, 300*time.Millisecond), "a", Holder("me"))
			checkOutcome(t, err, tt.want)
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		_, err := newClient(t, []string{dead.URL}).Put(within(t, 200*time.Millisecond), "k", nil, Write{Token: 1})
		checkOutcome(t, err, ErrUnavailable)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is not DeadlineExceeded", err)
		}
	})
	t.Run("a read changes nothing", func(t *testing.T) {
		n := newNode(t, unknown, silent)
		_, err := newClient(t, []string{n.URL}).GetLease(within(t, 200*time.Millisecond), "a")
		checkOutcome(t, err, ErrUnavailable)
		if n.requests()[0].Header.Get("Idempotency-Key") != "" {
			t.Error("a read with a key")
		}
	})
}

// transport answers without a network, so that a test can run in fake time.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A call that is only ever told "not now" ends as unavailable, after attempts that
// come ever more seldom: at most 0.5 s apart.
func TestP10_NotNowUntilTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var at []time.Time
		c := newClient(t, []string{"http://a", "http://b"}, WithTransport(transport(func(r *http.Request) (*http.Response, error) {
			at = append(at, time.Now())
			w := httptest.NewRecorder()
			noLeader(w, r)
			return w.Result(), nil
		})))
		start := time.Now()
		_, err := c.Grant(within(t, time.Minute), "a", Holder("me"))
		checkOutcome(t, err, ErrUnavailable)
		if got := time.Since(start); got != time.Minute {
			t.Errorf("ended after %s, want the context's minute", got)
		}
		if first := at[1].Sub(at[0]); first < firstBackOff/2 || first > firstBackOff {
			t.Errorf("first pause %s", first)
		}
		for i := range at[1:] {
			if d := at[i+1].Sub(at[i]); d > maxBackOff {
				t.Errorf("pause %d is %s", i, d)
			}
		}
		if len(at) < 120 || len(at) > 250 {
			t.Errorf("%d attempts in a minute", len(at))
		}
	})
}

// What a foreign transport fails with may have left.
func TestForeignTransportFailsUnknown(t *testing.T) {
	c := newClient(t, []string{"http://a"}, WithoutRetry(), WithTransport(transport(func(*http.Request) (*http.Response, error) {
		return nil, errors.New("broken")
	})))
	_, err := c.Release(t.Context(), "a", 7)
	checkOutcome(t, err, ErrUnknown)
}

func checkOutcome(t *testing.T, err, want error) {
	t.Helper()
	other := ErrUnknown
	if want == ErrUnknown {
		other = ErrUnavailable
	}
	var o *OutcomeError
	if !errors.Is(err, want) || errors.Is(err, other) || !errors.As(err, &o) || o.Unknown != (want == ErrUnknown) {
		t.Fatalf("got %v; want %v", err, want)
	}
	var e *Error
	if errors.As(err, &e) {
		t.Fatalf("%v passes for a refusal", err)
	}
}

func TestUnknownThenDone(t *testing.T) {
	n := newNode(t, unknown, ok(granted))
	g, err := newClient(t, []string{n.URL}).Grant(within(t, 10*time.Second), "a", Holder("me"))
	if err != nil || g.Token != 7 || len(n.requests()) != 2 {
		t.Fatalf("got %+v, %v after %d attempts", g, err, len(n.requests()))
	}
}

// A silent node costs one attempt's time and no more.
func TestAttemptsAreBounded(t *testing.T) {
	a, b := newNode(t, silent), newNode(t, ok(granted))
	c := newClient(t, []string{a.URL, b.URL}, WithAttemptTimeout(50*time.Millisecond))
	if _, err := c.Grant(within(t, 10*time.Second), "a", Holder("me")); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutRetry(t *testing.T) {
	n := newNode(t, noLeader)
	_, err := newClient(t, []string{n.URL}, WithoutRetry()).Release(t.Context(), "a", 7)
	checkOutcome(t, err, ErrUnavailable)
	if got := len(n.requests()); got != 1 {
		t.Fatalf("%d attempts, want 1", got)
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   string
		want   error
	}{
		{409, `{"status":409,"code":"lease_held","holder":"other","token":5,"expires_in_ms":1500}`, ErrHeld},
		{409, `{"status":409,"code":"lease_lost","reason":"superseded","token":5,"last_token":9}`, ErrLost},
		{412, `{"status":412,"code":"stale_token","reason":"below_watermark","token":5,"watermark":9}`, ErrStale},
		{412, `{"status":412,"code":"version_mismatch","version":4}`, ErrMismatch},
		{422, `{"status":422,"code":"token_not_issued","token":5}`, ErrNotIssued},
		{404, `{"status":404,"code":"not_found"}`, ErrNotFound},
	} {
		n := newNode(t, refuse(tt.status, tt.body))
		_, err := newClient(t, []string{n.URL}).Put(t.Context(), "k", []byte("v"), Write{Token: 5})
		var e *Error
		if !errors.Is(err, tt.want) || !errors.As(err, &e) || e.Status != tt.status {
			t.Errorf("%s: got %v, want %v", tt.body, err, tt.want)
		}
		for _, other := range []error{ErrHeld, ErrLost, ErrStale, ErrMismatch, ErrNotIssued, ErrNotFound, ErrUnknown, ErrUnavailable} {
			if other != tt.want && errors.Is(err, other) {
				t.Errorf("%v is %v, too", err, other)
			}
		}
		if len(n.requests()) != 1 {
			t.Errorf("%s: a refusal was repeated", tt.body)
		}
	}
	n := newNode(t, refuse(409, `{"status":409,"code":"lease_held","holder":"other","token":5,"expires_in_ms":1500}`))
	_, err := newClient(t, []string{n.URL}).Grant(t.Context(), "a", Holder("me"))
	var e *Error
	if !errors.As(err, &e) || e.Holder != "other" || e.Token != 5 || e.ExpiresIn != 1500*time.Millisecond || e.Code != wire.CodeLeaseHeld {
		t.Fatalf("got %#v", e)
	}
}

// What goes out: method, escaped path, headers.
func TestRequests(t *testing.T) {
	version := uint64(12)
	absent := uint64(0)
	for _, tt := range []struct {
		do   func(context.Context, *Client) error
		want string
	}{
		{func(ctx context.Context, c *Client) error {
			_, err := c.Put(ctx, "a b/ü%?", []byte("v"), Write{Token: 5, Guard: GuardHeld, Lease: "l/1", IfVersion: &version, ContentType: "text/plain"})
			return err
		}, `PUT /v1/kv/a%20b/%C3%BC%25%3F token=5 guard=held lease=l/1 match="12" none= body=v`},
		{func(ctx context.Context, c *Client) error {
			_, err := c.Delete(ctx, "k", Write{Token: 5, IfVersion: &absent})
			return err
		}, `DELETE /v1/kv/k token=5 guard= lease= match= none=* body=`},
		{func(ctx context.Context, c *Client) error {
			_, err := c.Fence(ctx, "k", Write{Token: 5})
			return err
		}, `POST /v1/kv/k/fence token=5 guard= lease= match= none= body=`},
		{func(ctx context.Context, c *Client) error {
			_, err := c.ListLeases(ctx, Page{Prefix: "a&b", After: "x", Limit: 3})
			return err
		}, `GET /v1/leases?after=x&limit=3&prefix=a%26b token= guard= lease= match= none= body=`},
		{func(ctx context.Context, c *Client) error {
			_, err := c.Renew(ctx, "a", 7, 1500*time.Microsecond)
			return err
		}, `POST /v1/leases/a/renew token= guard= lease= match= none= body={"token":7,"ttl_ms":2}`},
	} {
		n := newNode(t, ok(`{}`))
		if err := tt.do(t.Context(), newClient(t, []string{n.URL}, WithBearerToken("s3cret"))); err != nil {
			t.Errorf("%s: %v", tt.want, err)
			continue
		}
		r := n.requests()[0]
		h := r.Header.Get
		got := fmt.Sprintf("%s %s token=%s guard=%s lease=%s match=%s none=%s body=%s", r.Method, r.RequestURI,
			h("Fencing-Token"), h("Fencing-Guard"), h("Fencing-Lease"), h("If-Match"), h("If-None-Match"), n.bodies[0])
		if got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
		if h("Authorization") != "Bearer s3cret" {
			t.Errorf("authorization %q", h("Authorization"))
		}
	}
}

// The holder counts from before the request left, plus what the leader kept it (P7).
func TestP7_B19_UntilCountsFromTheSending(t *testing.T) {
	const took = 60 * time.Millisecond
	n := newNode(t, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(took) // a slow network
		ok(`{"name":"a","token":7,"expires_in_ms":1000,"waited_ms":20}`)(w, r)
	})
	before := time.Now()
	g, err := newClient(t, []string{n.URL}).Grant(t.Context(), "a", Holder("me"))
	after := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	if g.Until.Before(before.Add(1020*time.Millisecond)) || g.Until.After(after.Add(1020*time.Millisecond-took)) {
		t.Fatalf("until is %s after the start, want 1.02 s", g.Until.Sub(before))
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	target := newNode(t, ok(granted))
	n := newNode(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, target.URL, http.StatusTemporaryRedirect)
	})
	_, err := newClient(t, []string{n.URL}, WithBearerToken("s3cret")).Grant(t.Context(), "a", Holder("me"))
	var e *Error
	if !errors.As(err, &e) || e.Status != http.StatusTemporaryRedirect || len(target.requests()) != 0 {
		t.Fatalf("got %v, and %d requests at the target", err, len(target.requests()))
	}
}

func TestNewRefuses(t *testing.T) {
	for _, e := range [][]string{nil, {"localhost:7001"}, {"ftp://x"}, {"http://"}, {"http://x/path"}, {"http://u:p@x"}, {"http://x?y"}} {
		if c, err := New(e); err == nil {
			c.Close()
			t.Errorf("%q was taken", e)
		}
	}
	for _, o := range []Option{WithAttemptTimeout(0), WithBearerToken("a b")} {
		if _, err := New([]string{"http://x"}, o); err == nil {
			t.Error("a wrong option was taken")
		}
	}
}

// A transport sends a request with a key anew when its connection breaks before the
// answer. What the repetition is told, that nothing was accepted, does not speak of
// the first sending (P10).
func TestP10_TheTransportRepeatedIt(t *testing.T) {
	for _, answer := range []http.HandlerFunc{noLeader, refuse(429, `{"status":429,"code":"quota_reached"}`)} {
		n := newNode(t, ok(granted), cut, answer)
		c := newClient(t, []string{n.URL}, WithoutRetry())
		if _, err := c.Grant(t.Context(), "a", Holder("me")); err != nil {
			t.Fatal(err)
		}
		_, err := c.Release(t.Context(), "a", 7) // on the connection of the first
		if got := len(n.requests()); got != 3 {
			t.Fatalf("%d requests came, want the second one twice", got)
		}
		checkOutcome(t, err, ErrUnknown)
	}
}
