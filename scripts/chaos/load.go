package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/client"
	"fencepost/cluster/check"
)

const (
	workers  = 8
	watchers = 4
	probers  = 2

	minTTL       = time.Second
	maxTTL       = 3 * time.Second
	callBound    = 15 * time.Second // one call of a worker, with all its repetitions
	probeBound   = 400 * time.Millisecond
	attemptBound = 500 * time.Millisecond
	probeEvery   = 25 * time.Millisecond
	pauseMax     = 60 * time.Millisecond // between rounds of a worker: the machine is the servers', too

	readBackBound = time.Minute
	repeatSample  = 100 // requests that are sent once more at the end
)

// A load is everything that clients do to a cluster, from start to stop.
type load struct {
	c     *cluster
	rec   *check.Recorder
	acked *acked
	end   context.CancelFunc
	done  sync.WaitGroup // workers
	seen  sync.WaitGroup // watchers: they see what the last writes did
	blind context.CancelFunc

	calls atomic.Int64 // of workers
	kept  atomic.Int64 // leases that workers had the client renew

	mu     sync.Mutex // guards what follows
	failed []string   // calls of workers without an answer
	lost   []string   // leases that were to be kept
	old    []past     // leases that were held once
	sent   []request  // that were acknowledged
}

// past is a token that was somebody's.
type past struct {
	name  string
	token uint64
}

// acked notes acknowledged mutations as they come, for those who wait for one.
type acked struct {
	rec    *check.Recorder
	newest atomic.Int64 // start of the newest of them
	count  atomic.Int64
}

// through passes exchanges on, to the recorder's transport.
func (a *acked) through(next http.RoundTripper) http.RoundTripper { return &noting{a, next} }

type noting struct {
	a    *acked
	next http.RoundTripper
}

func (t *noting) RoundTrip(q *http.Request) (*http.Response, error) {
	began := t.a.rec.Now()
	resp, err := t.next.RoundTrip(q)
	if err == nil && q.Method != http.MethodGet && resp.StatusCode == http.StatusOK {
		t.a.count.Add(1)
		for {
			before := t.a.newest.Load()
			if began <= before || t.a.newest.CompareAndSwap(before, began) {
				break
			}
		}
	}
	return resp, err
}

func (t *noting) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// newClient is a client whose exchanges are recorded, and that begins at the i-th
// node.
func (l *load) newClient(name string, i int) (*client.Client, http.RoundTripper, error) {
	t := &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}
	rt := l.acked.through(l.rec.Transport(name, t))
	c, err := client.New(l.c.endpoints(i), client.WithAttemptTimeout(attemptBound), client.WithTransport(rt))
	return c, rt, err
}

// startLoad begins all of it.
func startLoad(c *cluster, seed uint64) (*load, error) {
	l := &load{c: c, rec: c.recorder, acked: &acked{rec: c.recorder}}
	var ctx, sight context.Context
	ctx, l.end = context.WithCancel(context.Background())
	sight, l.blind = context.WithCancel(context.Background())
	begin := func(i int, name string, loop func(*worker, context.Context)) error {
		cl, rt, err := l.newClient(name, i)
		if err != nil {
			return err
		}
		w := &worker{load: l, name: name, client: cl, raw: rt, r: rand.New(rand.NewPCG(seed, uint64(i)+1000))}
		l.done.Go(func() {
			defer cl.Close()
			loop(w, ctx)
		})
		return nil
	}
	for i := range workers {
		if err := begin(i, fmt.Sprintf("w%d", i), (*worker).work); err != nil {
			return nil, err
		}
	}
	for i := range probers {
		if err := begin(workers+i, fmt.Sprintf("probe%d", i), (*worker).probe); err != nil {
			return nil, err
		}
	}
	if err := begin(workers+probers, "stale", (*worker).goOnStale); err != nil {
		return nil, err
	}
	for i := range watchers {
		w := &watcher{name: fmt.Sprintf("watcher%d", i), at: i, c: c}
		l.seen.Go(func() { w.watch(sight) })
	}
	return l, nil
}

// progress waits for a mutation that began after an instant to be acknowledged.
func (l *load) progress(ctx context.Context, after int64) error {
	for l.acked.newest.Load() <= after {
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("nothing that began later was acknowledged: %w", err)
		}
	}
	return nil
}

// stop ends the load: what is under way is seen through, a sample of what was
// acknowledged is asked once more, and everything is read back.
func (l *load) stop() error {
	l.end()
	l.done.Wait()
	defer func() {
		l.blind()
		l.seen.Wait()
	}()
	cl, rt, err := l.newClient(finalClient, 0)
	if err != nil {
		return err
	}
	defer cl.Close()
	w := &worker{load: l, name: finalClient, client: cl, raw: rt, r: rand.New(rand.NewPCG(1, 1))}
	ctx, cancel := context.WithTimeout(context.Background(), readBackBound)
	defer cancel()
	l.mu.Lock()
	sent := l.sent
	l.mu.Unlock()
	for _, i := range w.r.Perm(len(sent))[:min(len(sent), repeatSample)] {
		if ctx.Err() != nil {
			break // nothing answers: what follows says so
		}
		w.send(ctx, sent[i])
	}
	if err := w.readBack(ctx); err != nil {
		return err
	}
	return sleep(ctx, time.Second) // watchers get what there is
}

// abandon ends a load whose cluster is not there any more.
func (l *load) abandon() {
	l.end()
	l.blind()
	l.done.Wait()
	l.seen.Wait()
}

func (l *load) fail(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = append(l.failed, fmt.Sprintf("%s: %v", what, err))
}

// lose notes that a lease was not kept.
func (l *load) lose(name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = append(l.lost, fmt.Sprintf("%s: %v", name, err))
}

// remember keeps a token for the stale holder.
func (l *load) remember(name string, token uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.old = append(l.old, past{name, token})
}

// anOld is a token that was somebody's, mostly a recent one.
func (l *load) anOld(r *rand.Rand) (past, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.old) == 0 {
		return past{}, false
	}
	recent := l.old[max(0, len(l.old)-30):]
	return pick(r, recent), true
}

// keep remembers a request that was acknowledged, to repeat it later.
func (l *load) keep(q request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = append(l.sent, q)
}

func (l *load) aSent(r *rand.Rand) (request, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == 0 {
		return request{}, false
	}
	return pick(r, l.sent), true
}
