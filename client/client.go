package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// DefaultAttemptTimeout bounds one attempt of a call, so that a node that has
// stopped costs a call this long and not its whole context.
const DefaultAttemptTimeout = 3 * time.Second

// A Client calls a cluster through any of its nodes. It is safe for concurrent
// use; it keeps idle connections, which Close gives back.
type Client struct {
	endpoints []string // http://host:port, without a slash at the end
	at        atomic.Uint32
	http      *http.Client
	own       *http.Transport
	foreign   bool // the caller's transport is used in place of own
	bearer    string
	attempt   time.Duration
	once      bool
}

// An Option changes how a Client works.
type Option func(*Client) error

// WithAttemptTimeout bounds one attempt; DefaultAttemptTimeout otherwise.
func WithAttemptTimeout(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return fmt.Errorf("attempt timeout must be positive, not %s", d)
		}
		c.attempt = d
		return nil
	}
}

// WithoutRetry makes every call a single attempt.
func WithoutRetry() Option {
	return func(c *Client) error { c.once = true; return nil }
}

// WithBearerToken sends an Authorization header with every request.
func WithBearerToken(token string) Option {
	return func(c *Client) error {
		for _, r := range token {
			if r <= ' ' || r >= 0x7f {
				return errors.New("bearer token must be visible ASCII")
			}
		}
		c.bearer = token
		return nil
	}
}

// WithTransport replaces the transport, for tests and for unusual networks. What
// it fails with counts as perhaps applied, since only our own is known to tell
// whether a request has left.
func WithTransport(rt http.RoundTripper) Option {
	return func(c *Client) error { c.http.Transport, c.foreign = rt, true; return nil }
}

// WithTLS sets what https endpoints are verified with.
func WithTLS(conf *tls.Config) Option {
	return func(c *Client) error { c.own.TLSClientConfig = conf; return nil }
}

// New makes a client for the nodes at these base URLs, such as
// http://10.0.0.1:7001. The first is asked first. It does not connect.
func New(endpoints []string, opts ...Option) (*Client, error) {
	if len(endpoints) == 0 {
		return nil, errors.New("no endpoints")
	}
	c := &Client{attempt: DefaultAttemptTimeout, own: newTransport()}
	c.http = &http.Client{
		Transport: c.own,
		// Nothing that we ask for is moved: a redirect comes from something that
		// is not fencepost, and must not be handed our token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for _, e := range endpoints {
		base, err := baseURL(e)
		if err != nil {
			return nil, err
		}
		c.endpoints = append(c.endpoints, base)
	}
	for _, o := range opts {
		if err := o(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout:   2 * time.Second,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
		DisableCompression:    true,
		ResponseHeaderTimeout: 0, // the attempt's context bounds the whole exchange
	}
}

func baseURL(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", fmt.Errorf("endpoint %q is not a URL like http://host:port", endpoint)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return "", fmt.Errorf("endpoint %q must be a scheme, host and port only", endpoint)
	}
	return u.Scheme + "://" + u.Host, nil
}

// Close gives back idle connections. Calls in flight go on; the client can be
// used afterwards. It never fails and may be called more than once.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

type keyInContext struct{}

// WithIdempotencyKey makes the one mutation that is called with this context use
// the given key (1 to 128 visible ASCII) in place of a random one. A repetition
// with the same arguments within ten minutes is applied once and tells that
// outcome (P11).
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyInContext{}, key)
}
