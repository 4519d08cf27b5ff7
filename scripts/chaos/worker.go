package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"time"

	"fencepost/client"
)

// Twenty names: some to be had at once or not at all, some that are queued for, and
// some that several hold. A key belongs to the name that is its first segment.
const (
	jobNames    = 12
	queueNames  = 4
	sharedNames = 4
	sharedSlots = 3
)

// finalClient is who reads everything back at the end.
const finalClient = "final"

// A worker is one sequential client.
type worker struct {
	load   *load
	name   string
	client *client.Client
	raw    http.RoundTripper // for what the client package does not offer
	r      *mathrand.Rand
	writes int
}

// A request is a mutation that can be sent again exactly as it was.
type request struct {
	key   string // Idempotency-Key
	kind  string
	name  string // of the lease
	path  string // of the key in the store
	value string
	token uint64
	ttl   time.Duration
	slots uint64
}

// send sends a request under its key, and remembers it if it was acknowledged.
func (w *worker) send(ctx context.Context, q request) (token uint64, err error) {
	if q.key == "" {
		q.key = rand.Text()
		defer func() {
			if err == nil {
				w.load.keep(q)
			}
		}()
	}
	ctx, cancel := context.WithTimeout(client.WithIdempotencyKey(context.WithoutCancel(ctx), q.key), callBound)
	defer cancel()
	switch q.kind {
	case kindAcquire:
		var g *client.Grant
		g, err = w.client.Grant(ctx, q.name, client.Holder("worker"), client.TTL(q.ttl), client.Slots(q.slots))
		if err == nil {
			token = g.Token
		}
	case kindPut:
		write := client.Write{Token: q.token}
		if q.slots > 1 {
			write.Guard, write.Lease = client.GuardHeld, q.name
		}
		_, err = w.client.Put(ctx, q.path, []byte(q.value), write)
	case kindDelete:
		_, err = w.client.Delete(ctx, q.path, client.Write{Token: q.token})
	case kindRelease:
		_, err = w.client.Release(ctx, q.name, q.token)
	}
	w.answered(q.kind+" "+q.name, err)
	return token, err
}

// answered counts a call, and notes one that got no answer.
func (w *worker) answered(what string, err error) {
	w.load.calls.Add(1)
	if (errors.Is(err, client.ErrUnknown) || errors.Is(err, client.ErrUnavailable)) && !errors.Is(err, client.ErrLost) {
		w.load.fail(w.name+": "+what, err)
	}
}

func (w *worker) value() string {
	w.writes++
	return fmt.Sprintf("%s-%d", w.name, w.writes)
}

func (w *worker) ttl() time.Duration { return between(w.r, minTTL, maxTTL) }

func (w *worker) pause(ctx context.Context) { sleep(ctx, between(w.r, 0, pauseMax)) }

// work does one round after the other.
func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		switch p := w.r.IntN(100); {
		case p < 35:
			w.exclusive(ctx)
		case p < 50:
			w.queued(ctx)
		case p < 65:
			w.shared(ctx)
		case p < 75:
			w.kept(ctx)
		case p < 82:
			if q, ok := w.load.aSent(w.r); ok {
				w.send(ctx, q)
			}
		default:
			w.read(ctx)
		}
		w.pause(ctx)
	}
}

func (w *worker) job() string { return fmt.Sprintf("job-%d", w.r.IntN(jobNames)) }

// exclusive takes a lease if it is free, writes, and gives it back or leaves it to
// its TTL.
func (w *worker) exclusive(ctx context.Context) {
	name := w.job()
	token, err := w.send(ctx, request{kind: kindAcquire, name: name, ttl: w.ttl(), slots: 1})
	if err != nil {
		return
	}
	w.underLease(ctx, name, token, 1)
}

// underLease writes some keys of a lease, and ends it.
func (w *worker) underLease(ctx context.Context, name string, token, slots uint64) {
	for range 1 + w.r.IntN(4) {
		q := request{kind: kindPut, name: name, path: fmt.Sprintf("%s/k%d", name, w.r.IntN(2)), value: w.value(), token: token, slots: slots}
		switch p := w.r.IntN(10); {
		case p == 0 && slots == 1:
			q.kind, q.path = kindDelete, name+"/d"
		case p == 1 && slots == 1:
			q.path = name + "/d"
		case p == 2:
			q.path = name + "/once/" + q.value // shows later that no write was lost
		}
		if _, err := w.send(ctx, q); err != nil {
			break
		}
		w.pause(ctx)
	}
	if w.r.IntN(3) == 0 {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
		_, err := w.client.Renew(bounded, name, token, 0)
		cancel()
		w.answered("renew "+name, err)
	}
	if slots == 1 {
		w.load.remember(name, token)
	}
	if w.r.IntN(4) > 0 {
		w.send(ctx, request{kind: kindRelease, name: name, token: token})
	}
}

// queued stands in line, without a key of its own: the client may lose its place
// and take another.
func (w *worker) queued(ctx context.Context) {
	name := fmt.Sprintf("queue-%d", w.r.IntN(queueNames))
	wait := between(w.r, 200*time.Millisecond, 3*time.Second)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound+wait)
	g, err := w.client.Grant(bounded, name, client.Holder("worker"), client.TTL(w.ttl()), client.Wait(wait))
	cancel()
	w.answered("acquire "+name, err)
	if err == nil {
		w.underLease(ctx, name, g.Token, 1)
	}
}

// shared takes one of several slots, or all of them.
func (w *worker) shared(ctx context.Context) {
	name := fmt.Sprintf("shared-%d", w.r.IntN(sharedNames))
	token, err := w.send(ctx, request{kind: kindAcquire, name: name, ttl: w.ttl(), slots: sharedSlots})
	if err == nil {
		w.underLease(ctx, name, token, sharedSlots)
	}
}

// kept holds a lease for longer than its TTL, as programs do.
func (w *worker) kept(ctx context.Context) {
	name := w.job()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
	l, err := w.client.Acquire(bounded, name, client.TTL(minTTL), client.Holder("keeper"))
	cancel()
	w.answered("acquire "+name, err)
	if err != nil {
		return
	}
	w.load.remember(name, l.Token())
	for end := time.Now().Add(between(w.r, minTTL, 3*minTTL)); ctx.Err() == nil && time.Now().Before(end) && l.Err() == nil; {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
		guard := client.Latest
		if w.r.IntN(2) == 0 {
			guard = client.Held
		}
		_, err := w.client.Put(bounded, fmt.Sprintf("%s/k%d", name, w.r.IntN(2)), []byte(w.value()), l.Guard(guard))
		cancel()
		w.answered("put under "+name, err)
		sleep(ctx, between(w.r, 20*time.Millisecond, 200*time.Millisecond))
	}
	w.load.kept.Add(1)
	if err := l.Err(); err != nil {
		w.load.lose(w.name+": "+name, err)
	}
	bounded, cancel = context.WithTimeout(context.WithoutCancel(ctx), callBound)
	defer cancel()
	w.answered("release "+name, l.Release(bounded))
}

// read reads what was last written, or what some node thinks that was.
func (w *worker) read(ctx context.Context) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
	defer cancel()
	name := w.job()
	switch w.r.IntN(3) {
	case 0:
		_, err := w.client.Get(bounded, name+"/k0")
		w.answered("get "+name, err)
	case 1:
		_, err := w.client.GetLease(bounded, name)
		w.answered("look at "+name, err)
	case 2:
		path := "/v1/kv/" + name + "/k0"
		if w.r.IntN(2) == 0 {
			path = "/v1/leases/" + name
		}
		w.get(bounded, w.load.c.endpoints(w.r.IntN(nodeCount))[0]+path+"?"+staleQuery)
	}
}

const staleQuery = "consistency=stale"

// get is one attempt that may fail.
func (w *worker) get(ctx context.Context, url string) {
	ctx, cancel := context.WithTimeout(ctx, attemptBound)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return
	}
	if resp, err := w.raw.RoundTrip(q); err == nil {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// probe writes with short patience, so that the end of an outage is met by a call
// that began shortly before. Its leases are no part of what is measured: they end,
// and nobody supersedes them.
func (w *worker) probe(ctx context.Context) {
	for token := uint64(0); ctx.Err() == nil; sleep(ctx, probeEvery) {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeBound)
		var err error
		if token == 0 {
			var g *client.Grant
			if g, err = w.client.Grant(bounded, w.name, client.Holder(w.name), client.TTL(minTTL)); err == nil {
				token = g.Token
			}
		} else if _, err = w.client.Put(bounded, w.name+"/k0", []byte(w.value()), client.Write{Token: token}); errors.Is(err, client.ErrStale) {
			token = 0
		}
		cancel()
		if w.writes%1000 == 999 {
			token = 0 // long before it is off the record
		}
	}
}

// goOnStale writes with tokens of leases that have ended, or will have soon.
func (w *worker) goOnStale(ctx context.Context) {
	for ; ctx.Err() == nil; sleep(ctx, between(w.r, 20*time.Millisecond, 150*time.Millisecond)) {
		o, ok := w.load.anOld(w.r)
		if !ok {
			continue
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
		_, err := w.client.Put(bounded, o.name+"/k0", []byte(w.value()), client.Write{Token: o.token})
		cancel()
		w.answered("stale put of "+o.name, err)
	}
}

// readBack reads every key.
func (w *worker) readBack(ctx context.Context) error {
	p := client.Page{Limit: 1000}
	for {
		_, next, err := w.client.List(ctx, p, true)
		if err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		if next == "" {
			return nil
		}
		if next <= p.After {
			return fmt.Errorf("read back: page after %q goes back to %q", p.After, next)
		}
		p.After = next
	}
}
