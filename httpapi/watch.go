package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"fencepost/cluster"
	"fencepost/fsm"
	"fencepost/httpapi/wire"
)

const (
	// watchBeat is how often a quiet stream carries its position.
	watchBeat = 10 * time.Second
	// watchWriteBound is how long a reader may take to make room for one chunk. A
	// reader that has stopped is cut then.
	watchWriteBound = 10 * time.Second
	// watchChunk is about how many bytes are written at a time.
	watchChunk = 8 << 10
	// watchIdleBytes is the most of its buffer that a quiet stream keeps.
	watchIdleBytes = 1 << 10
	// watchSendBuffer is what the kernel may buffer for one reader, in bytes. Left
	// alone it takes megabytes for each that has stopped.
	watchSendBuffer = 128 << 10
	// watchRetry tells browsers how soon to come back.
	watchRetry = "retry: 1000\n"
)

// watchQuery is what a watch asks for.
type watchQuery struct {
	kinds    eventKinds
	from     uint64 // inclusive; 0: not given
	renewals bool
}

// setWatchParameter takes one parameter that only watches have.
func (x *exchange) setWatchParameter(name, value string) bool {
	q := &x.query.watch
	switch name {
	case "kind":
		for part := range strings.SplitSeq(value, ",") {
			kind, ok := eventKindsOf(part)
			if !ok {
				return x.invalid(name, `must be "lease", "kv" or "refusal"`)
			}
			q.kinds |= kind
		}
	case "from":
		n, ok := wholeNumber(value)
		if !ok {
			return x.invalid(name, "must be a whole number from 0 to 2^53-1")
		}
		q.from = max(n, 1) // there is no entry 0
	case "renewals":
		if value != "true" && value != "false" {
			return x.invalid(name, `must be "true" or "false"`)
		}
		q.renewals = value == "true"
	}
	return true
}

// readLastEventID lets Last-Event-ID go before "from": a browser that resumes
// repeats the URL that it had at first.
func (x *exchange) readLastEventID() bool {
	given := x.r.Header["Last-Event-Id"]
	if len(given) == 0 {
		return true
	}
	n, ok := wholeNumber(given[0])
	if !ok || len(given) > 1 || n == fsm.MaxToken {
		return x.invalid(wire.HeaderLastEventID, "must be one index")
	}
	x.query.watch.from = n + 1
	return true
}

func compactedDetail(oldest uint64) string {
	return fmt.Sprintf("events before index %d are not kept any more: list again, and watch from that answer's Fencepost-Index + 1", oldest)
}

// watch answers GET /v1/watch, by this node's own events wherever the leader
// is (P13).
func (x *exchange) watch() {
	if !x.readLastEventID() {
		return
	}
	q := x.query.watch
	w, err := x.h.node.Watch(q.from, q.renewals && (q.kinds == 0 || q.kinds&leaseEvents != 0))
	if err != nil {
		x.failed(err, false)
		return
	}
	defer w.Close()
	h := x.w.Header()
	h["Content-Type"] = []string{wire.ContentTypeEvents}
	h["X-Accel-Buffering"] = []string{"no"} // proxies that know it pass each event on at once
	h["Connection"] = []string{"close"}     // its buffers are not those of an ordinary one
	if q.from == 0 {
		x.setIndex(w.Reached()) // what is read at this index misses nothing
	}
	x.w.WriteHeader(http.StatusOK)
	x.took = time.Since(x.received)
	if x.r.Method == http.MethodHead {
		return
	}
	boundSendBuffer(x.r.Context())
	s := &stream{x: x, watcher: w, control: http.NewResponseController(&x.w)}
	if err := s.run(x.r.Context()); err != nil {
		x.h.log.Debug("a watch has ended", "request_id", x.id, "reached", w.Reached(), "error", err)
	}
}

// stream is a watch that is being answered.
type stream struct {
	x       *exchange
	watcher *cluster.Watcher
	control *http.ResponseController
	b       []byte
	wrote   time.Time // when the last chunk was
}

// run writes until the reader is gone or too slow, or the watch is ended.
func (s *stream) run(ctx context.Context) error {
	// The position at once: a reader that is cut before its first event resumes
	// from here and not from a later "now".
	s.b = appendPosition(append(s.b, watchRetry...), s.watcher.Reached())
	for {
		if err := s.flush(); err != nil {
			return err
		}
		entries, err := s.watcher.Next(ctx, max(0, watchBeat-time.Since(s.wrote)))
		if err != nil {
			return s.end(err)
		}
		for _, e := range entries {
			if err := s.entry(e.Events); err != nil {
				return err
			}
		}
		if len(s.b) == 0 && time.Since(s.wrote) >= watchBeat {
			s.b = appendPosition(s.b, s.watcher.Reached())
		}
	}
}

// entry writes those events of an entry that are asked for.
func (s *stream) entry(events []fsm.Event) error {
	last := len(events) - 1
	for last >= 0 && !s.x.query.selects(&events[last]) {
		last--
	}
	for i := range last + 1 {
		if !s.x.query.selects(&events[i]) {
			continue
		}
		s.b = appendEvent(s.b, &events[i], i == last)
		if len(s.b) >= watchChunk {
			if err := s.write(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (q *query) selects(e *fsm.Event) bool {
	kinds := kindsOf(e.Kind)
	all := leaseEvents | keyEvents | refusals
	return (q.watch.kinds == 0 || q.watch.kinds&kinds != 0) && (kinds == all || strings.HasPrefix(e.Name, q.prefix))
}

// end says why the stream ends, if the reader can still be told.
func (s *stream) end(why error) error {
	var compacted *cluster.CompactedError
	switch {
	case errors.As(why, &compacted):
		s.b = appendCompacted(s.b, s.watcher.Reached(), compacted.Oldest)
	case errors.Is(why, cluster.ErrNoLeader), errors.Is(why, cluster.ErrShuttingDown):
		s.b = append(append(append(s.b, ": "...), why.Error()...), "; resume at another node\n\n"...)
	}
	return errors.Join(why, s.flush())
}

// flush sends what is there on its way.
func (s *stream) flush() error {
	if len(s.b) == 0 {
		return nil
	}
	if err := s.write(); err != nil {
		return err
	}
	if cap(s.b) > watchIdleBytes {
		s.b = nil
	}
	return s.control.Flush()
}

func (s *stream) write() error {
	err := s.control.SetWriteDeadline(time.Now().Add(watchWriteBound))
	if err != nil && !errors.Is(err, http.ErrNotSupported) { // by writers of tests
		return err
	}
	_, err = s.x.w.Write(s.b)
	s.b, s.wrote = s.b[:0], time.Now()
	return err
}

// connectionKey finds a request's connection in its context.
type connectionKey struct{}

func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, c)
}

// boundSendBuffer keeps the kernel from buffering megabytes for a reader that
// has stopped: it would be noticed late, and thousands would be costly.
func boundSendBuffer(ctx context.Context) {
	c := ctx.Value(connectionKey{})
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	if plain, ok := c.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = plain.SetWriteBuffer(watchSendBuffer) // it works without
	}
}
