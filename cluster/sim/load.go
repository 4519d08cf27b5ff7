package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"fencepost/client"
	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

const (
	workers   = 6
	watchers  = 3
	exclusive = 8 // names of leases, each with a key of its own
	shared    = 2
)

// load is what the clients do. It runs until it is stopped, whatever fails.
type load struct {
	w        *world
	ctx      context.Context
	end      context.CancelFunc
	wg       sync.WaitGroup
	mischief *mischief
	reader   http.RoundTripper // of stale reads
	urls     []string
	raw      map[string]*http.Transport // by client
	rawMu    sync.Mutex

	mu    sync.Mutex // guards what follows
	stale []uint64   // tokens that were granted
	past  []func(context.Context, *client.Client)
}

func startLoad(w *world) *load {
	l := &load{w: w, raw: make(map[string]*http.Transport)}
	l.ctx, l.end = context.WithCancel(context.Background())
	for _, h := range w.hosts {
		l.urls = append(l.urls, "http://"+h.name+":80")
	}
	l.mischief = &mischief{again: w.rec.Transport("repeater", l.transport("repeater")), rng: w.newRand(), counts: make(map[string]int)}
	l.reader = w.rec.Transport("reader", l.transport("reader"))
	for i := range workers {
		k := &worker{l: l, name: fmt.Sprintf("c%d", i+1), r: w.newRand()}
		l.wg.Go(k.run)
	}
	for i := range watchers {
		name := fmt.Sprintf("w%d", i+1)
		l.wg.Go(func() { l.watch(name, i) })
	}
	return l
}

// stop ends the load and waits for it.
func (l *load) stop() {
	l.end()
	l.wg.Wait()
	for _, t := range l.raw {
		t.CloseIdleConnections()
	}
}

func (l *load) clientName(r *rand.Rand) string { return fmt.Sprintf("c%d", r.IntN(workers)+1) }

// transport is a client's way to the nodes.
func (l *load) transport(name string) *http.Transport {
	t := &http.Transport{DialContext: l.w.net.dialer(name), MaxIdleConnsPerHost: 16}
	l.rawMu.Lock()
	defer l.rawMu.Unlock()
	l.raw[name] = t
	return t
}

// connect is a client as programs use it, on the network of the world.
func (l *load) connect(name string) *client.Client {
	rt := l.mischief.through(l.transport(name))
	c, err := client.New(l.urls, client.WithTransport(l.w.rec.Transport(name, rt)))
	l.w.must(err)
	return c
}

// watch follows events from one node, and from the next when its stream ends: the
// second watcher those of renewals, too, the third only some.
func (l *load) watch(name string, first int) {
	rt := l.transport(name)
	from := uint64(1)
	for i := first; l.ctx.Err() == nil; i++ {
		ctx, cancel := context.WithTimeout(l.ctx, 20*time.Second) // and cut it now and then
		s := &check.Stream{Watcher: name, From: from, Renewals: first == 1}
		if first == 2 {
			s.Kind, s.Prefix = wire.WatchKV+","+wire.WatchRefusal, keyOf(leaseName(1))
		}
		l.w.rec.Follow(ctx, rt, l.urls[i%len(l.urls)], s)
		cancel()
		switch {
		case s.Reached > 0:
			from = s.Reached + 1
		case s.Status == http.StatusGone:
			from = 0 // what is missed was told to be missing
		}
		rest(l.ctx, 100*time.Millisecond)
	}
}

// progress demands that everything works again: each name can be acquired, written
// under and released, by a new client.
func (w *world) progress() {
	c := w.load.connect("end")
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), healBound)
	defer cancel()
	for i := range exclusive {
		name := leaseName(i)
		err := c.Do(ctx, name, func(ctx context.Context, l *client.Lease) error {
			w.beliefs.got("end", l)
			_, err := c.Put(ctx, keyOf(name), []byte("end"), l.Guard(client.Held))
			return err
		}, client.TTL(3*time.Second), client.Wait(healBound))
		if err != nil {
			w.wrong.add(fmt.Sprintf("%s after everything healed, %s: %v", healBound, name, err))
		}
	}
}

func leaseName(i int) string    { return fmt.Sprintf("job/%d", i) }
func keyOf(lease string) string { return "of/" + lease }

// rest sleeps, or returns when ctx ends.
func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
