package client

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// DefaultAttemptTimeout bounds one attempt of a call, so that a node that has
// stopped costs a call this long and not its whole context.
const DefaultAttemptTimeout = 2 * time.Second

// A Client calls a cluster through any of its nodes, and keeps the leases that it
// has acquired. It is safe for concurrent use; the caller must Close it.
type Client struct {
	nodes   endpoints
	keep    keeper
	http    *http.Client
	own     *http.Transport
	foreign bool // the caller's transport is used in place of own
	bearer  string
	attempt time.Duration
	margin  time.Duration // 0: by the TTL
	once    bool
	holder  string       // for those who give none
	log     *slog.Logger // nil: none
	hooks   Hooks
	clocks  func() instant

	life   context.Context // ends with Close: of everything that runs in the background
	end    context.CancelFunc
	errand sync.WaitGroup // what Close waits for
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

// WithTLS sets what https endpoints are verified with, and the certificate that is shown
// to those that ask for one (GetClientCertificate can renew it).
func WithTLS(conf *tls.Config) Option {
	return func(c *Client) error { c.own.TLSClientConfig = conf; return nil }
}

// WithLogger logs lost leases, failed renewals and panics of hooks; nothing is
// logged otherwise.
func WithLogger(l *slog.Logger) Option {
	return func(c *Client) error {
		if l == nil {
			return errors.New("logger must not be nil")
		}
		c.log = l
		return nil
	}
}

// WithHooks has these functions called.
func WithHooks(h Hooks) Option {
	return func(c *Client) error { c.hooks = h; return nil }
}

// WithMargin sets how long before the end of a lease, as this process counts it,
// the lease is given up. It has to cover how much slower than the cluster's clock
// the own one may run, in a whole TTL, and what the program needs to stop after
// it was told. Otherwise it is a tenth of the TTL, at least 10 ms: enough for a
// clock that is slow by a tenth, where real ones differ by less than a
// thousandth.
func WithMargin(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return fmt.Errorf("margin must be positive, not %s", d)
		}
		c.margin = d
		return nil
	}
}

// New makes a client for the nodes at these base URLs, such as
// http://10.0.0.1:7001. The first is asked first. It does not connect.
func New(endpoints []string, opts ...Option) (*Client, error) {
	if len(endpoints) == 0 {
		return nil, errors.New("no endpoints")
	}
	c := &Client{
		attempt: DefaultAttemptTimeout, own: newTransport(), holder: defaultHolder(),
		clocks: readClocks,
	}
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
		c.nodes.configure(base)
	}
	for _, o := range opts {
		if err := o(c); err != nil {
			return nil, err
		}
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.keep.init(c)
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

// closing is how long Close lets run what is still given back in the background.
const closing = time.Second

// Close stops the keeping of leases: all that are held are signalled as lost, with
// ErrClosed as the cause, and [Client.Acquire] is refused from then on. It releases
// none of them, since it cannot know whether the work under them has stopped: each
// ends by its TTL, or at once by a Release before (or after) the Close. Other calls
// go on, and can still be made. It returns once nothing of the client runs any
// more, but hooks; that takes at most a second, never fails, and can be repeated.
func (c *Client) Close() error {
	c.keep.close()
	late := time.AfterFunc(closing, c.end)
	defer late.Stop()
	c.errand.Wait()
	c.end()
	c.http.CloseIdleConnections()
	return nil
}

func (c *Client) logger() *slog.Logger {
	if c.log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.log
}

// defaultHolder is a label that tells processes apart, also those in containers
// that all are process 1 of a host of the same name.
func defaultHolder() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return fmt.Sprintf("%.100s/%d-%s", strings.ToValidUTF8(host, "?"), os.Getpid(), strings.ToLower(rand.Text()[:6]))
}

type keyInContext struct{}

// WithIdempotencyKey makes the one mutation that is called with this context use
// the given key (1 to 128 visible ASCII) in place of a random one. A repetition
// with the same arguments within ten minutes is applied once and tells that
// outcome (P11).
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, keyInContext{}, key)
}
