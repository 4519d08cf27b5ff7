package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"fencepost/client"
)

const (
	leaseTTL     = 10 * time.Second // longer than any outage: no lease ends but by a release
	callBound    = 15 * time.Second // one operation of a worker, with all its repetitions
	probeBound   = 400 * time.Millisecond
	attemptBound = 500 * time.Millisecond
	pauseMax     = 20 * time.Millisecond // between rounds of a worker: the machine is the servers', too
	probeEvery   = 20 * time.Millisecond
	sharedNames  = 2
	probers      = 2
	// repeatAge is the oldest request that is repeated at the end; a key is
	// remembered for ten minutes.
	repeatAge     = 8 * time.Minute
	repeatSample  = 200
	readBackBound = time.Minute
)

// load works until ctx ends, then repeats a sample, reads everything back and
// writes the history.
func load(ctx context.Context, endpoints []string, workers int, path string) error {
	c, err := client.New(endpoints, client.WithAttemptTimeout(attemptBound))
	if err != nil {
		return err
	}
	defer c.Close()
	rec := newRecorder()
	var wg sync.WaitGroup
	for i := range workers {
		w := &worker{id: i, client: c, rec: rec}
		wg.Go(func() { w.work(ctx) })
	}
	for i := range probers {
		w := &worker{id: workers + i, client: c, rec: rec}
		wg.Go(func() { w.probe(ctx) })
	}
	wg.Wait()
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), readBackBound)
	defer cancel()
	w := &worker{client: c, rec: rec}
	w.repeatSample(after, rec.all())
	err = w.readBack(after)
	return errors.Join(err, writeHistory(path, rec.all()))
}

// worker does one operation after the other.
type worker struct {
	id     int
	client *client.Client
	rec    *recorder
	writes int
}

// call bounds an operation. One that has begun is seen through, also when the load
// is to end: what became of it belongs to the history.
func (w *worker) call(ctx context.Context, o *op, bound time.Duration) (context.Context, context.CancelFunc) {
	if o.Request == "" {
		o.Request = rand.Text()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	o.Start = w.rec.now()
	return client.WithIdempotencyKey(ctx, o.Request), cancel
}

func (w *worker) acquire(ctx context.Context, o op) op {
	ctx, cancel := w.call(ctx, &o, callBound)
	defer cancel()
	g, err := w.client.Grant(ctx, o.Name, client.Holder("chaos"), client.TTL(leaseTTL))
	o.ended(w.rec.now(), err)
	if err == nil {
		// Counted from before the first attempt, which is earlier than the holder may.
		o.Token, o.TTLMS = g.Token, g.ExpiresInMS
	}
	o.ID = w.rec.add(o)
	return o
}

func (w *worker) put(ctx context.Context, o op, bound time.Duration) op {
	ctx, cancel := w.call(ctx, &o, bound)
	defer cancel()
	r, err := w.client.Put(ctx, o.Key, []byte(o.Value), client.Write{Token: o.Token})
	o.ended(w.rec.now(), err)
	if err == nil {
		o.Version = r.Version
	}
	o.ID = w.rec.add(o)
	return o
}

func (w *worker) release(ctx context.Context, o op) op {
	ctx, cancel := w.call(ctx, &o, callBound)
	defer cancel()
	var err error
	o.Released, err = w.client.Release(ctx, o.Name, o.Token)
	o.ended(w.rec.now(), err)
	o.ID = w.rec.add(o)
	return o
}

// work loops over a lease of its own and the shared ones.
func (w *worker) work(ctx context.Context) {
	before := make(map[string]uint64) // lease -> this worker's last token of it
	for round := 0; ctx.Err() == nil; round++ {
		name := fmt.Sprintf("own-%d", w.id)
		if round%2 == 1 {
			name = fmt.Sprintf("shared-%d", mathrand.N(sharedNames))
		}
		w.round(ctx, name, before)
		pause(ctx, mathrand.N(pauseMax))
	}
}

// round is acquire, writes, release. The key of a lease is written by whoever
// holds it; a key of one write alone shows later that no write was lost.
func (w *worker) round(ctx context.Context, name string, before map[string]uint64) {
	a := w.acquire(ctx, op{Kind: kindAcquire, Name: name})
	if a.Result != endOK {
		return
	}
	p := w.put(ctx, op{Kind: kindPut, Name: name, Key: "key-" + name, Value: w.value(), Token: a.Token}, callBound)
	if p.Result == endOK && mathrand.N(4) == 0 {
		w.repeat(ctx, p)
	}
	v := w.value()
	w.put(ctx, op{Kind: kindPut, Name: name, Key: "once/" + v, Value: v, Token: a.Token}, callBound)
	if old := before[name]; old != 0 && mathrand.N(4) == 0 {
		w.put(ctx, op{Kind: kindStalePut, Name: name, Key: "key-" + name, Value: w.value(), Token: old}, callBound)
	}
	before[name] = a.Token
	w.release(ctx, op{Kind: kindRelease, Name: name, Token: a.Token})
}

func (w *worker) value() string {
	w.writes++
	return fmt.Sprintf("w%d-%d", w.id, w.writes)
}

// probe writes with short patience, so that the end of an outage is met by an
// operation that began shortly before.
func (w *worker) probe(ctx context.Context) {
	name := fmt.Sprintf("probe-%d", w.id)
	token := uint64(0)
	for ctx.Err() == nil {
		if token == 0 {
			// Its lease ends and nobody supersedes it: the token stays on record
			// for ten minutes; renewed here long before.
			token = w.acquire(ctx, op{Kind: kindAcquire, Name: name}).Token
			pause(ctx, probeEvery)
			continue
		}
		p := w.put(ctx, op{Kind: kindPut, Name: name, Key: "key-" + name, Value: w.value(), Token: token}, probeBound)
		if w.writes%1000 == 0 || p.Result == endRefused {
			token = 0
		}
		pause(ctx, probeEvery)
	}
}

// repeat sends an acknowledged request again, exactly as it was.
func (w *worker) repeat(ctx context.Context, of op) {
	o := op{Kind: kindRepeat, Of: of.ID, Name: of.Name, Key: of.Key, Request: of.Request}
	ctx, cancel := w.call(ctx, &o, callBound)
	defer cancel()
	var err error
	switch of.Kind {
	case kindAcquire:
		var g *client.Grant
		if g, err = w.client.Grant(ctx, of.Name, client.Holder("chaos"), client.TTL(leaseTTL)); err == nil {
			o.Token = g.Token
		}
	case kindRelease:
		o.Released, err = w.client.Release(ctx, of.Name, of.Token)
		o.Token = of.Token
	case kindPut:
		r, putErr := w.client.Put(ctx, of.Key, []byte(of.Value), client.Write{Token: of.Token})
		if err = putErr; err == nil {
			o.Version = r.Version
		}
	}
	o.ended(w.rec.now(), err)
	w.rec.add(o)
}

// repeatSample asks for the outcome of acknowledged requests once more.
func (w *worker) repeatSample(ctx context.Context, ops []op) {
	oldest := w.rec.now() - int64(repeatAge)
	var can []op
	for _, o := range ops {
		if o.Result == endOK && o.Start > oldest && (o.Kind == kindAcquire || o.Kind == kindRelease || o.Kind == kindPut) {
			can = append(can, o)
		}
	}
	mathrand.Shuffle(len(can), func(i, j int) { can[i], can[j] = can[j], can[i] })
	for _, o := range can[:min(len(can), repeatSample)] {
		w.repeat(ctx, o)
	}
}

// readBack records every key.
func (w *worker) readBack(ctx context.Context) error {
	p := client.Page{Limit: 1000}
	for {
		start := w.rec.now()
		keys, next, err := w.client.List(ctx, p, true)
		if err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		for _, k := range keys {
			w.rec.add(op{
				Kind: kindFinal, Key: k.Key, Value: string(k.Value), Version: k.Version, Token: k.Token,
				Start: start, End: w.rec.now(), Result: endOK,
			})
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

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
