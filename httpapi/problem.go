package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"fencepost/cluster"
	"fencepost/httpapi/wire"
)

// retryAfterSeconds is what 503 and 429 suggest: about an election.
const retryAfterSeconds = "1"

// problem answers with a problem; title and status are those of its code.
func (x *exchange) problem(p *wire.Problem) {
	p.Status, p.Title = p.Code.HTTP()
	if p.Code == wire.CodeNoLeader && x.status.Removed {
		p.Detail = "this node was removed from its cluster; the others may have a leader"
	}
	h := x.w.Header()
	switch p.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		h["Retry-After"] = []string{retryAfterSeconds}
	case http.StatusGatewayTimeout:
		x.h.metrics.unknown.Inc()
		if x.key != "" {
			h[wire.HeaderIdempotencyKey] = []string{x.key}
		}
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers only
	}
	x.answer(p.Status, wire.ContentTypeProblem, append(body, '\n'))
}

// refuse answers with a code and a word about it.
func (x *exchange) refuse(code wire.Code, detail string) bool {
	x.problem(&wire.Problem{Code: code, Detail: detail})
	return false
}

// invalid answers 400 and names the field.
func (x *exchange) invalid(field, detail string) bool {
	x.problem(&wire.Problem{Code: wire.CodeInvalidRequest, Field: field, Detail: field + " " + detail})
	return false
}

// maxDrain is how much of a body that is too large is still read, so that a
// client which writes it all before it listens hears the answer.
const maxDrain = 2 << 20

// tooLarge answers 413.
func (x *exchange) tooLarge(field string, limit int) bool {
	if x.r.Body != nil && x.r.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, x.r.Body, maxDrain) // the rest is net/http's affair
	}
	x.problem(&wire.Problem{Code: wire.CodeTooLarge, Field: field, LimitBytes: uint64(limit), Detail: field + " is larger than allowed"})
	return false
}

// wrong answers what was found wrong with a body, if anything.
func (x *exchange) wrong(e *invalidField) bool {
	if e == nil {
		return true
	}
	return x.invalid(e.field, e.detail)
}

// failed answers an error of the node. For a mutation every error that does not
// say that surely nothing was applied is 504 or 500, never 503 (P10).
func (x *exchange) failed(err error, mutation bool) {
	var quota *cluster.QuotaError
	var queue *cluster.QueueFullError
	var compacted *cluster.CompactedError
	var older *cluster.NotUnderstoodError
	unknown := errors.Is(err, cluster.ErrOutcomeUnknown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case unknown && mutation:
		x.refuse(wire.CodeOutcomeUnknown, "repeat it with the same Idempotency-Key to learn what became of it")
	case unknown:
		x.refuse(wire.CodeOverloaded, "the read did not end in time")
	case errors.Is(err, cluster.ErrNoLeader):
		x.refuse(wire.CodeNoLeader, "")
	case errors.Is(err, cluster.ErrShuttingDown):
		x.refuse(wire.CodeShuttingDown, "")
	case errors.Is(err, cluster.ErrOverloaded):
		x.refuse(wire.CodeOverloaded, "")
	case errors.As(err, &older):
		x.refuse(wire.CodeNotReady, older.Error())
	case errors.As(err, &quota):
		x.refuse(wire.CodeQuotaReached, quota.Error())
	case errors.As(err, &queue):
		x.refuse(wire.CodeQueueFull, queue.Error())
	case errors.As(err, &compacted):
		x.problem(&wire.Problem{Code: wire.CodeCompacted, Oldest: compacted.Oldest, Detail: compactedDetail(compacted.Oldest)})
	case errors.Is(err, cluster.ErrTooManyWatchers):
		x.refuse(wire.CodeTooManyRequests, "this node serves as many watches as it may; another node may have room")
	case errors.Is(err, cluster.ErrTooManyBackups):
		x.refuse(wire.CodeTooManyRequests, err.Error()+"; another node may have room")
	case errors.Is(err, cluster.ErrNameInUse):
		x.refuse(wire.CodeNameInUse, "")
	case x.membersFailed(err):
	default:
		x.h.log.Error("request failed", "request_id", x.id, "route", x.route.template, "error", err)
		x.refuse(wire.CodeInternal, "the log has more under request id "+x.id)
	}
}
