package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/client"
)

// steadyLoad is what programs do with a cluster that is being worked on: each worker
// acquires, writes and releases through the client, and one holder keeps a lease. No
// call may fail, and the holder may not lose its lease.
type steadyLoad struct {
	t       *testing.T
	c       *processes
	clients []*client.Client
	stop    context.CancelFunc
	wg      sync.WaitGroup
	rounds  []atomic.Int64
	newest  atomic.Uint64 // token that was acknowledged

	mu   sync.Mutex        // guards last
	last map[string]string // the newest acknowledged value of each key
}

// steadyPatience is more than any call may take; it decides nothing else.
const steadyPatience = 30 * time.Second

func startSteadyLoad(t *testing.T, c *processes, workers int) *steadyLoad {
	t.Helper()
	var ctx context.Context
	l := &steadyLoad{t: t, c: c, rounds: make([]atomic.Int64, workers), last: map[string]string{}}
	ctx, l.stop = context.WithCancel(context.Background())
	for w := range workers {
		cl := l.client()
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil && !t.Failed(); i++ {
				l.round(cl, w, i)
				l.rounds[w].Add(1)
			}
		})
	}
	cl := l.client()
	l.wg.Go(func() { l.hold(ctx, cl) })
	t.Cleanup(l.end)
	return l
}

func (l *steadyLoad) client() *client.Client {
	var urls []string
	for _, n := range l.c.nodes {
		urls = append(urls, n.url)
	}
	cl, err := client.New(urls, client.WithAttemptTimeout(time.Second), client.WithTransport(&http.Transport{MaxIdleConnsPerHost: 4}))
	if err != nil {
		l.t.Fatal(err)
	}
	l.clients = append(l.clients, cl)
	return cl
}

func (l *steadyLoad) round(cl *client.Client, w, i int) {
	ctx, cancel := context.WithTimeout(context.Background(), steadyPatience)
	defer cancel()
	before := l.newest.Load()
	g, err := cl.Grant(ctx, fmt.Sprintf("steady-%d", w), client.TTL(time.Minute))
	if err != nil {
		l.t.Errorf("acquire: %v", err)
		return
	}
	if g.Token <= before {
		l.t.Errorf("token %d, after %d had been acknowledged", g.Token, before)
	}
	for {
		now := l.newest.Load()
		if g.Token <= now || l.newest.CompareAndSwap(now, g.Token) {
			break
		}
	}
	key, value := fmt.Sprintf("steady/%d", w), fmt.Sprint(i)
	if i%10 == 0 {
		key = fmt.Sprintf("steady/%d/%d", w, i)
	}
	if _, err := cl.Put(ctx, key, []byte(value), client.Write{Token: g.Token}); err != nil {
		l.t.Errorf("put: %v", err)
		return
	}
	l.mu.Lock()
	l.last[key] = value
	l.mu.Unlock()
	if _, err := cl.Release(ctx, fmt.Sprintf("steady-%d", w), g.Token); err != nil {
		l.t.Errorf("release: %v", err)
	}
}

// hold keeps one lease for as long as the load goes on.
func (l *steadyLoad) hold(ctx context.Context, cl *client.Client) {
	lease, err := cl.Acquire(ctx, "steady-held", client.TTL(3*time.Second))
	if err != nil {
		if ctx.Err() == nil {
			l.t.Errorf("acquire to hold: %v", err)
		}
		return
	}
	select {
	case <-ctx.Done():
		bounded, cancel := context.WithTimeout(context.Background(), steadyPatience)
		defer cancel()
		if err := lease.Release(bounded); err != nil && !errors.Is(err, client.ErrReleased) {
			l.t.Errorf("release what was held: %v", err)
		}
	case <-lease.Context().Done():
		l.t.Errorf("the lease of a renewing holder was lost: %v", lease.Err())
	}
}

// advance waits until every worker has done so many more rounds.
func (l *steadyLoad) advance(rounds int64) {
	l.t.Helper()
	for w := range l.rounds {
		from := l.rounds[w].Load()
		eventually(l.t, "the load goes on", func() bool { return l.rounds[w].Load() >= from+rounds || l.t.Failed() })
	}
}

// follow tells the clients of the cluster's nodes: those that join are asked as well.
func (l *steadyLoad) follow(*process) {
	for _, cl := range l.clients {
		ctx, cancel := context.WithTimeout(context.Background(), steadyPatience)
		if _, err := cl.Cluster(ctx); err != nil {
			l.t.Errorf("cluster: %v", err)
		}
		cancel()
	}
}

func (l *steadyLoad) end() {
	l.stop()
	l.wg.Wait()
	for _, cl := range l.clients {
		cl.Close()
	}
}

// finish ends the load and reads back what was acknowledged.
func (l *steadyLoad) finish() {
	l.t.Helper()
	l.end()
	for key, value := range l.last {
		if a := l.c.mustDo("GET", "/v1/kv/"+key, ""); string(a.raw) != value {
			l.t.Errorf("%s: read %s, the last acknowledged write was %q", key, a, value)
		}
	}
	if len(l.last) == 0 {
		l.t.Error("nothing was written")
	}
}
