package httpapi

import (
	"crypto/rand"
	"net/http"
	"strconv"
	"time"

	"fencepost/cluster"
	"fencepost/httpapi/wire"
)

const contentTypeJSON = "application/json"

// exchange is one request on its way to one answer. The methods that can refuse
// the request answer it themselves and return false; the caller then returns.
type exchange struct {
	h        *Handler
	w        recorder
	r        *http.Request
	received time.Time
	status   cluster.Status // when it came in
	route    *route
	took     time.Duration // until the answer began, if that is what counts; else 0
	id       string        // of the request, for logs
	path     string        // raw
	name     string        // decoded name or key of the path
	query    query
	body     []byte
	streamed bool // the body has not been read: it is passed on as it comes
	// patience is how long the request asks to be kept waiting: a node that
	// forwards it gives the leader so much longer to answer.
	patience time.Duration
	moves    bool // it changes the leader itself: another one is no sign of trouble

	key       string // Idempotency-Key; "": this kind of request has none
	keyIsOurs bool   // a server made it
}

// recorder remembers the status of the answer.
type recorder struct {
	http.ResponseWriter
	code int // 0: nothing answered yet
}

func (w *recorder) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// begin sets the headers that every answer has.
func (x *exchange) begin() {
	x.id = requestID(x.r)
	h := x.w.Header()
	h["Fencepost-Node"] = []string{x.status.Name}
	if x.status.LeaderURL != "" {
		h["Fencepost-Leader"] = []string{x.status.LeaderURL}
	}
	if x.status.ClusterID != "" {
		h["Fencepost-Cluster"] = []string{x.status.ClusterID}
	}
	x.setIndex(x.status.Index)
	h["Cache-Control"] = []string{"no-store"}
	h["X-Request-Id"] = []string{x.id}
}

// setIndex says which index the answer reflects.
func (x *exchange) setIndex(index uint64) {
	x.w.Header()["Fencepost-Index"] = []string{strconv.FormatUint(index, 10)}
}

// requestID takes the client's, if it is safe to log and repeat.
func requestID(r *http.Request) string {
	given := r.Header["X-Request-Id"]
	if len(given) != 1 || given[0] == "" || len(given[0]) > 64 {
		return rand.Text()
	}
	for _, c := range []byte(given[0]) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return rand.Text()
		}
	}
	return given[0]
}

// answer writes the whole answer.
func (x *exchange) answer(status int, contentType string, body []byte) {
	h := x.w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	x.w.WriteHeader(status)
	if x.r.Method != http.MethodHead {
		// A client that is gone cannot be told so.
		_, _ = x.w.Write(body)
	}
}

// ok writes a JSON document.
func (x *exchange) ok(body []byte) { x.answer(http.StatusOK, contentTypeJSON, body) }

// milliseconds of a duration, rounded down: what a client counts on must never
// be more than there is (P7).
func milliseconds(d time.Duration) uint64 { return uint64(max(0, d).Milliseconds()) }

// readName decodes the name that is left of the path.
func (x *exchange) readName(field, raw string) bool {
	name, ok := decodeName(raw)
	if !ok {
		return x.invalid(field, "must be percent-encoded UTF-8")
	}
	if e := x.h.limits.checkName(field, name); e != nil {
		return x.invalid(e.field, e.detail)
	}
	x.name = name
	return true
}

// noteRead puts what a read saw into the headers.
func (x *exchange) noteRead(info cluster.ReadInfo) {
	x.setIndex(info.Index)
	if x.query.stale {
		x.w.Header()[wire.HeaderLag] = []string{strconv.FormatUint(milliseconds(info.Lag), 10)}
	}
}
