package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"fencepost/httpapi/wire"
)

// streamSilence is how long a stream may say nothing at all. A live one tells its
// position every 10 s, so one that has been silent for longer is dead.
const streamSilence = 25 * time.Second

// Watch selects what to watch. The zero Watch is everything but renewals, from
// now on.
type Watch struct {
	Prefix   string   // of the names of leases and keys
	Kinds    []string // of wire.WatchLease, WatchKV and WatchRefusal; none: all
	From     uint64   // first index wanted; 0: from now on. It may be ahead
	Renewals bool     // with renewals, which are many
	// Patience is how long to go without any stream before giving up with
	// ErrUnavailable; 0: as long as the context lives.
	Patience time.Duration
}

// An Event is one event of a watch.
type Event struct {
	wire.Event
	// Last says that the entry has no further event for this watch: a program
	// that keeps its place keeps Index+1, to go on From there.
	Last bool
	Raw  []byte // the document, as it came
}

// Watch follows events as they happen, in index order, without missing or
// repeating one (P13): when a stream ends it goes on with another, of the next
// endpoint, where it was.
//
//	for e, err := range c.Watch(ctx, client.Watch{Prefix: "jobs/"}) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(e.Index, e.Kind, e.Name)
//	}
//
// An error is the last thing that it yields: ErrCompacted if no node keeps what
// comes next (list again, and watch from the index of that list on), an *Error
// for what is refused, or an *OutcomeError that is ErrUnavailable when the
// context ends or the patience does. The loop may be left at any time.
//
// To have a list and all that happens after it, take Fencepost-Index of the list's
// first page + 1 as From.
func (c *Client) Watch(ctx context.Context, w Watch) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		f := &follower{c: c, w: w, yield: yield, resumed: w.From > 0, alive: time.Now()}
		if w.From > 0 {
			f.done = w.From - 1
		}
		if err := f.run(ctx); err != nil && !errors.Is(err, errLeft) {
			yield(nil, err)
		}
	}
}

// errLeft: the caller's loop has been left.
var errLeft = errors.New("the watch was left")

// follower is one watch, over as many streams as it takes.
type follower struct {
	c     *Client
	w     Watch
	yield func(*Event, error) bool

	resumed bool   // done is known
	done    uint64 // every event up to here was yielded
	part    uint64 // index of the entry that was cut in the middle,
	had     int    // how many of its events were yielded,
	again   int    // and how many of those the stream has yet to repeat

	alive time.Time // when a stream last said anything
}

// run follows streams until one of them ends the watch.
func (f *follower) run(ctx context.Context) error {
	o := &OutcomeError{Call: "watch"}
	pause := backOff{next: firstBackOff, free: f.c.nodes.spare()}
	gone := 0 // endpoints in a row that do not keep what comes next
	for {
		if o.cause = ctx.Err(); o.cause != nil {
			return o
		}
		if f.w.Patience > 0 && time.Since(f.alive) > f.w.Patience {
			o.cause = context.DeadlineExceeded
			return o
		}
		n := f.c.nodes.pick()
		o.Attempts++
		began := time.Now()
		sent, err := f.follow(ctx, n.base)
		if f.alive.After(began) {
			gone = 0
		}
		if f.alive.Sub(began) > maxBackOff { // it worked for a while
			pause = backOff{next: firstBackOff, free: f.c.nodes.spare()}
		}
		if errors.Is(err, ErrCompacted) {
			gone++
		}
		if f.ends(err, gone) {
			return err
		}
		o.Last = err
		if f.c.once {
			return o
		}
		if ctx.Err() == nil {
			f.c.nodes.failed(n, !sent, "")
		}
		if o.cause = pause.wait(ctx, sent); o.cause != nil {
			return o
		}
	}
}

// ends says whether what ended a stream ends the watch. Nodes keep events from
// different indexes on, so each is asked before the watch is given up.
func (f *follower) ends(err error, gone int) bool {
	var e *Error
	switch {
	case errors.Is(err, errLeft):
		return true
	case errors.Is(err, ErrCompacted):
		return gone > f.c.nodes.spare() || f.c.once
	case !errors.As(err, &e), e.Status == http.StatusTooManyRequests:
		return false
	}
	return judge(e) == hopeless || judge(e) == refused
}

// follow reads one stream to its end, which always is an error. sent is as for
// backOff.wait.
func (f *follower) follow(ctx context.Context, base string) (sent bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(f.c.attempt, func() { cancel(errors.New("no answer in time")) })
	defer silent.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+withQuery("/v1/watch", f.query()), nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Accept", wire.ContentTypeEvents)
	if f.resumed {
		req.Header.Set(wire.HeaderLastEventID, strconv.FormatUint(f.done, 10))
	}
	if f.c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+f.c.bearer)
	}
	resp, err := f.c.http.Do(req)
	if err != nil {
		return f.c.foreign, because(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxStreamLine))
		return true, problem(resp, body)
	}
	f.again = 0
	if f.part > f.done {
		f.again = f.had
	}
	silent.Reset(streamSilence)
	err = readStream(resp.Body, func() { silent.Reset(streamSilence) }, f.take)
	return true, because(ctx, fmt.Errorf("the stream of %s ended: %w", base, err))
}

// because is the cause of a cancelled exchange, if it was cancelled.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, errLeft) {
		return cause
	}
	return err
}

func (f *follower) query() url.Values {
	v := make(url.Values)
	if f.w.Prefix != "" {
		v.Set("prefix", f.w.Prefix)
	}
	if len(f.w.Kinds) > 0 {
		v["kind"] = slices.Clone(f.w.Kinds)
	}
	if f.w.Renewals {
		v.Set("renewals", "true")
	}
	return v
}

// take sees one message of a stream.
func (f *follower) take(m message) error {
	f.alive = time.Now()
	if m.event == wire.EventCompacted {
		return compacted(m.data)
	}
	var id uint64
	if m.id != "" {
		var err error
		if id, err = strconv.ParseUint(m.id, 10, 64); err != nil {
			return fmt.Errorf("id of an event: %w", err)
		}
	}
	if len(m.data) > 0 {
		if err := f.event(m.data, m.id != ""); err != nil {
			return err
		}
	}
	if m.id != "" {
		f.resumed, f.done = true, max(f.done, id)
	}
	return nil
}

// event yields an event unless it was yielded before: of an entry that was cut in
// the middle all events come again.
func (f *follower) event(data []byte, last bool) error {
	e := &Event{Last: last, Raw: slices.Clone(data)}
	if err := json.Unmarshal(data, &e.Event); err != nil {
		return fmt.Errorf("read an event: %w", err)
	}
	if f.resumed && e.Index <= f.done {
		return nil
	}
	if e.Index == f.part && f.again > 0 {
		f.again--
		return nil
	}
	if e.Index != f.part {
		f.part, f.had, f.again = e.Index, 0, 0
	}
	f.had++
	if !f.yield(e, nil) {
		return errLeft
	}
	return nil
}
