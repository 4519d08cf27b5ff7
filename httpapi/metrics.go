package httpapi

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are what this layer measures itself, in a registry of its own.
type metrics struct {
	registry *prometheus.Registry
	seconds  *prometheus.HistogramVec
	unknown  prometheus.Counter
	unrouted *route
}

func newMetrics(version string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fencepost_http_request_seconds", Help: "Time from the arrival of a request to its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .1, .5, 2.5},
		}, []string{"route", "method", "code"}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencepost_outcomes_unknown_total", Help: "Mutations that this node had to answer with 504.",
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "fencepost_build_info", Help: "Always 1; the version is the label.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.seconds, m.unknown, build)
	m.unrouted = m.route("none", noQuery, nil)
	return m
}

// route is a call of the API: a template, and what answers it.
type route struct {
	template  string
	query     string // parameters that it knows, with spaces around each
	run       func(*exchange)
	seconds   *prometheus.HistogramVec
	observers [methodSlots][statusSlots]atomic.Pointer[prometheus.Observer]
}

func (m *metrics) route(template, query string, run func(*exchange)) *route {
	return &route{template: template, query: query, run: run, seconds: m.seconds}
}

// methodSlot and statusSlot number those whose observers are kept at hand; the
// last number stands for all others.
const (
	methodSlots = 6
	statusSlots = 8
)

func methodSlot(method string) (slot int, label string) {
	switch method {
	case http.MethodGet:
		return 0, method
	case http.MethodPost:
		return 1, method
	case http.MethodPut:
		return 2, method
	case http.MethodDelete:
		return 3, method
	case http.MethodHead:
		return 4, method
	}
	return methodSlots - 1, "other" // a client's word is never a label
}

func statusSlot(code int) int {
	switch code {
	case http.StatusOK:
		return 0
	case http.StatusConflict:
		return 1
	case http.StatusPreconditionFailed:
		return 2
	case http.StatusServiceUnavailable:
		return 3
	case http.StatusGatewayTimeout:
		return 4
	case http.StatusNotFound:
		return 5
	case http.StatusBadRequest:
		return 6
	}
	return statusSlots - 1
}

// observe notes how long a request took. Looking up an observer by its labels
// costs more than the rest of a small request, so each is looked up once.
func (r *route) observe(method string, code int, took time.Duration) {
	m, label := methodSlot(method)
	s := statusSlot(code)
	if s == statusSlots-1 {
		r.seconds.WithLabelValues(r.template, label, strconv.Itoa(code)).Observe(took.Seconds())
		return
	}
	at := &r.observers[m][s]
	o := at.Load()
	if o == nil {
		made := r.seconds.WithLabelValues(r.template, label, strconv.Itoa(code))
		o = &made
		at.Store(o)
	}
	(*o).Observe(took.Seconds())
}

// newScrape serves the own metrics, those of the state, and others'.
func newScrape(m *metrics, node Node, others prometheus.Gatherer, log hclog.Logger) http.Handler {
	m.registry.MustRegister(newCollector(node))
	all := prometheus.Gatherers{m.registry}
	if others != nil {
		all = append(all, others)
	}
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{ErrorLog: errorLog(log), ErrorHandling: promhttp.ContinueOnError})
}
