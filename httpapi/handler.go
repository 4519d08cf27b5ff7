package httpapi

import (
	"context"
	"io"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gorilla/mux"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"fencepost/cluster"
	"fencepost/cluster/certs"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// Node is what the API stands on: *cluster.Node, or a fake. All methods may be
// called from many goroutines at once. The errors of those that propose are
// cluster's: one that is not known to mean "surely not applied" must be taken
// for cluster.ErrOutcomeUnknown or worse.
type Node interface {
	// Status is called for every request and must be cheap.
	Status() cluster.Status
	// Acquire, Cancel, Release and Write propose a command, which must not be
	// used again. received is when the request came in. An acquire that waits
	// in a queue returns when that ends, or ctx does.
	Acquire(ctx context.Context, received time.Time, c *fsmpb.Acquire) (cluster.Reply[*fsmpb.Outcome], error)
	Cancel(ctx context.Context, received time.Time, c *fsmpb.Cancel) (cluster.Reply[*fsmpb.Outcome], error)
	Release(ctx context.Context, received time.Time, c *fsmpb.Release) (cluster.Reply[*fsmpb.Outcome], error)
	Write(ctx context.Context, received time.Time, c *fsmpb.Write) (cluster.Reply[*fsmpb.Outcome], error)
	// Renew answers each renewal by itself, in the order given.
	Renew(ctx context.Context, renewals []*fsmpb.Renewal) (cluster.Reply[[]*fsmpb.Outcome], error)
	// Read runs see on the applied state, under a lock: see must not block, may
	// keep records, and may run more than once, of which the last one counts.
	Read(ctx context.Context, stale bool, see func(*fsm.State)) (cluster.ReadInfo, error)
	// Members is a local view on a follower.
	Members(ctx context.Context) ([]cluster.Member, error)
	Join(ctx context.Context, n *fsmpb.Node) error
	// Correct is Join for a node that has been a member before.
	Correct(ctx context.Context, n *fsmpb.Node) error
	// Remove and Transfer are the leader's; a leader that removes itself only hands
	// over.
	Remove(ctx context.Context, name string, force bool) error
	Transfer(ctx context.Context, to string) (leader string, err error)
	// Watch opens a watch of this node's own events, from an index on or, at 0,
	// from now on. Its end, too, is told by cluster's errors.
	Watch(from uint64, renewals bool) (*cluster.Watcher, error)
	// Backup takes a backup of what this node has applied. The caller closes it.
	Backup() (*cluster.Backup, error)
	// Spool takes an upload and verifies it whole. The caller closes it. Only an error
	// that wraps cluster.ErrOutcomeUnknown leaves open whether a restore under the
	// request's key and path, whatever its digest, was done.
	Spool(upload io.Reader, id *fsmpb.Request) (*cluster.Spool, error)
	// Restore puts the keys of a verified backup in the place of those that are
	// served. Only an error that wraps cluster.ErrOutcomeUnknown leaves open
	// whether it did.
	Restore(ctx context.Context, s *cluster.Spool, o cluster.RestoreOptions) (cluster.Restored, error)
	// Formation is what nodes tell each other before they are a cluster.
	Formation() cluster.Formation
	// Ready and Live say why not, or nil.
	Ready() error
	Live() error
}

var _ Node = (*cluster.Node)(nil)

// Options are the parts of a Handler that have defaults.
type Options struct {
	Limits   Limits              // zero: DefaultLimits
	Logger   hclog.Logger        // nil: none
	Gatherer prometheus.Gatherer // served with the own metrics; nil: none
	Version  string              // of this program, told in the metrics
	Nodes    http.RoundTripper   // to other nodes; nil: over TCP,
	TLS      *certs.Source       // or TLS with these, if not nil
}

// Handler serves the API. It is an http.Handler for any number of requests at
// once; the caller must Close it.
type Handler struct {
	node    Node
	limits  Limits
	log     hclog.Logger
	router  *mux.Router
	metrics *metrics
	nodes   *http.Client // to other nodes
	scrape  http.Handler

	underway *underway // forwarded requests
}

// New makes the API of a node. The node stays the caller's to close; once it is
// closed, its errors are what requests are answered with.
func New(node Node, opts Options) *Handler {
	if opts.Limits == (Limits{}) {
		opts.Limits = DefaultLimits()
	}
	if opts.Logger == nil {
		opts.Logger = hclog.NewNullLogger()
	}
	if opts.Nodes == nil {
		opts.Nodes = newNodeTransport(opts.TLS)
	}
	h := &Handler{node: node, limits: opts.Limits, log: opts.Logger, metrics: newMetrics(opts.Version), nodes: &http.Client{Transport: opts.Nodes}}
	h.underway = newUnderway(func() string { return node.Status().LeaderURL })
	h.router = newRouter(h.metrics)
	h.scrape = newScrape(h.metrics, node, opts.Gatherer, h.log)
	return h
}

// Close ends forwarded requests that are under way, as unknown if they may have
// changed anything, and drops idle connections to other nodes. It may be called
// again; nothing is forwarded afterwards.
func (h *Handler) Close() {
	h.underway.close()
	h.nodes.CloseIdleConnections()
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{h: h, w: recorder{ResponseWriter: w}, r: r, received: time.Now(), status: h.node.Status(), route: h.metrics.unrouted}
	defer x.end()
	x.begin()
	x.path, _ = rawTarget(r)
	if !h.find(x) {
		return
	}
	if route := r.Header["Fencepost-Route"]; len(route) > 0 && (len(route) > 1 || route[0] != wire.RouteLocal) {
		x.invalid(wire.HeaderRoute, `must be "local" or absent`)
		return
	}
	if x.parseQuery() {
		x.route.run(x)
	}
}

// end measures the request, and answers in place of a handler that panicked.
// What such a handler had proposed may be applied, which 500 does not deny.
func (x *exchange) end() {
	if p := recover(); p != nil {
		if p == http.ErrAbortHandler {
			panic(p)
		}
		x.h.log.Error("panic in a handler", "request_id", x.id, "route", x.route.template, "panic", p, "stack", string(debug.Stack()))
		if x.w.code != 0 {
			panic(http.ErrAbortHandler) // half an answer must not look whole
		}
		x.refuse(wire.CodeInternal, "")
	}
	if x.took == 0 {
		x.took = time.Since(x.received)
	}
	x.route.observe(x.r.Method, x.w.code, x.took)
}
