package sim

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"fencepost/client"
	"fencepost/httpapi/wire"
)

// worker is one client program.
type worker struct {
	l    *load
	name string
	r    *rand.Rand
	c    *client.Client
	n    int // values written
}

func (k *worker) run() {
	k.c = k.l.connect(k.name)
	defer k.c.Close()
	for k.l.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(k.l.ctx, 8*time.Second)
		k.step(ctx)
		cancel()
		rest(k.l.ctx, between(k.r, 0, 60*time.Millisecond))
	}
}

func (k *worker) step(ctx context.Context) {
	switch n := k.r.IntN(100); {
	case n < 40:
		k.job(ctx)
	case n < 50:
		k.grant(ctx)
	case n < 62:
		k.share(ctx)
	case n < 75:
		k.read(ctx)
	case n < 85:
		k.writeStale(ctx)
	case n < 93:
		k.repeat(ctx)
	default:
		k.cancel(ctx)
	}
}

func (k *worker) ttl() time.Duration { return between(k.r, time.Second, 3*time.Second) }
func (k *worker) lease() string      { return leaseName(k.r.IntN(exclusive)) }
func (k *worker) wait() client.AcquireOption {
	if k.r.IntN(2) == 0 {
		return client.Wait(0)
	}
	return client.Wait(between(k.r, 100*time.Millisecond, 4*time.Second))
}

func (k *worker) value() []byte {
	k.n++
	return []byte(k.name + "/" + strconv.Itoa(k.n))
}

// job is what leases are for: acquire, read, write, release. Now and then it takes
// longer than the TTL, or forgets to release.
func (k *worker) job(ctx context.Context) {
	name := k.lease()
	l, err := k.c.Acquire(ctx, name, client.TTL(k.ttl()), k.wait(), client.Grace(k.grace()))
	if err != nil {
		return
	}
	k.l.w.beliefs.got(k.name, l)
	k.l.remember(l.Token())
	for range k.r.IntN(4) {
		k.write(ctx, name, l.Guard(k.guard()))
		if k.r.IntN(4) == 0 {
			_, _ = l.Txn(ctx, k.guard(), k.ops(ctx, name)...)
		}
		rest(ctx, between(k.r, 0, 300*time.Millisecond))
	}
	if k.r.IntN(8) == 0 {
		rest(ctx, between(k.r, 0, 6*time.Second))
	}
	k.write(ctx, name, l.Guard(client.Held))
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = l.Release(done)
}

func (k *worker) grace() time.Duration {
	if k.r.IntN(5) == 0 {
		return between(k.r, 0, 500*time.Millisecond)
	}
	return 0
}

func (k *worker) guard() client.Guard {
	if k.r.IntN(2) == 0 {
		return client.Held
	}
	return ""
}

// write puts, or deletes, or fences, now and then on condition.
func (k *worker) write(ctx context.Context, name string, w client.Write) {
	key := keyOf(name)
	switch k.r.IntN(8) {
	case 0:
		_, _ = k.c.Delete(ctx, key, w)
	case 1:
		_, _ = k.c.Fence(ctx, key, w)
	case 2:
		if got, err := k.c.Get(ctx, key); err == nil {
			_, _ = k.c.Put(ctx, key, k.value(), w.If(got.Version))
		}
	default:
		_, _ = k.c.Put(ctx, key, k.value(), w)
	}
}

// ops is for a transaction: some of the keys of a lease, and one that all leases share, in
// any order, so that each has another watermark, and any of them can be what refuses it.
func (k *worker) ops(ctx context.Context, name string) (ops []wire.TxnOp) {
	keys := []string{keyOf(name), keyOf(name) + "/x", keyOf(name) + "/y", "of/all"}
	for _, i := range k.r.Perm(len(keys))[:1+k.r.IntN(3)] {
		op := wire.TxnOp{Key: keys[i]}
		switch k.r.IntN(8) {
		case 0:
			op.Op = wire.OpDelete
		case 1:
			op.Op = wire.OpFence
		default:
			value := base64.StdEncoding.EncodeToString(k.value())
			op.Op, op.ValueBase64 = wire.OpPut, &value
		}
		if k.r.IntN(4) == 0 {
			version := uint64(0)
			if got, err := k.c.Get(ctx, op.Key); err == nil && k.r.IntN(3) > 0 {
				version = got.Version
			}
			op.IfVersion = &version
			if k.r.IntN(4) == 0 {
				op.Op, op.ValueBase64 = wire.OpCheck, nil
			}
		}
		ops = append(ops, op)
	}
	return ops
}

// grant takes a lease that nobody keeps, renews it once perhaps, and lets it end.
func (k *worker) grant(ctx context.Context) {
	name := k.lease()
	g, err := k.c.Grant(ctx, name, client.TTL(between(k.r, 300*time.Millisecond, 2*time.Second)), k.wait())
	if err != nil {
		return
	}
	k.l.remember(g.Token)
	k.write(ctx, name, client.Write{Token: g.Token, Lease: name})
	if k.r.IntN(2) == 0 {
		rest(ctx, between(k.r, 0, time.Second))
		if old, ok := k.l.remembered(k.r); ok && k.r.IntN(2) == 0 {
			_, _, _ = k.c.RenewMany(ctx, []wire.Renewal{{Name: name, Token: old}, {Name: name, Token: g.Token}})
		} else {
			_, _ = k.c.Renew(ctx, name, g.Token, k.ttl())
		}
	}
	if k.r.IntN(3) == 0 {
		_, _ = k.c.Release(ctx, name, g.Token)
	}
}

// share is a reader or a writer of a lease with three slots.
func (k *worker) share(ctx context.Context) {
	name := fmt.Sprintf("shared/%d", k.r.IntN(shared))
	take := uint64(1)
	if k.r.IntN(3) == 0 {
		take = 3
	}
	slots := uint64(3)
	if k.r.IntN(8) == 0 {
		slots, take = 2, 1 // who wants other slots waits for all to go
	}
	l, err := k.c.Acquire(ctx, name, client.TTL(k.ttl()), k.wait(), client.Slots(slots), client.Take(take), client.Grace(k.grace()))
	if err != nil {
		return
	}
	_, _ = k.c.Put(ctx, keyOf(name), k.value(), l.Guard(client.Held))
	rest(ctx, between(k.r, 0, 500*time.Millisecond))
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = l.Release(done)
}

func (k *worker) read(ctx context.Context) {
	name := k.lease()
	_, _ = k.c.Get(ctx, keyOf(name))
	_, _ = k.c.GetLease(ctx, name)
	if k.r.IntN(2) == 0 {
		k.list(ctx)
	}
	if k.r.IntN(2) == 0 {
		k.readStale(ctx, name)
	}
}

// list goes through all leases or keys, a few at a time.
func (k *worker) list(ctx context.Context) {
	leases, values := k.r.IntN(2) == 0, k.r.IntN(2) == 0
	p := client.Page{Limit: 1 + k.r.IntN(6)}
	if k.r.IntN(2) == 0 {
		p.Prefix = []string{"job/", "of/job/", "shared/"}[k.r.IntN(3)]
	}
	for range 4 * (exclusive + shared) {
		if leases {
			l, err := k.c.ListLeases(ctx, p)
			if err != nil {
				return
			}
			p.After = l.Next
		} else if _, next, err := k.c.List(ctx, p, values); err != nil {
			return
		} else {
			p.After = next
		}
		if p.After == "" {
			return
		}
	}
	k.l.w.wrong.add(fmt.Sprintf("a list in pages of %d does not come to an end", p.Limit))
}

// readStale asks any node for what it has.
func (k *worker) readStale(ctx context.Context, name string) {
	paths := []string{"/v1/kv/" + keyOf(name), "/v1/leases/" + name, "/v1/kv", "/v1/leases"}
	url := k.l.urls[k.r.IntN(len(k.l.urls))] + paths[k.r.IntN(len(paths))] + "?consistency=stale"
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	k.l.w.must(err)
	if resp, err := k.l.reader.RoundTrip(q); err == nil {
		resp.Body.Close()
	}
}

// writeStale is a holder that was forgotten, and goes on.
func (k *worker) writeStale(ctx context.Context) {
	token, ok := k.l.remembered(k.r)
	switch name := k.lease(); {
	case !ok:
	case k.r.IntN(3) == 0:
		_, _ = k.c.Txn(ctx, wire.TxnRequest{Token: token, Guard: string(k.guard()), Ops: k.ops(ctx, name)})
	case k.r.IntN(3) == 0:
		k.write(ctx, name, client.Write{Token: token, Lease: name, Guard: k.guard()}) // most often of another
	default:
		k.write(ctx, name, client.Write{Token: token, Guard: k.guard()})
	}
}

// repeat is a request with a key, and later that request again.
func (k *worker) repeat(ctx context.Context) {
	if k.r.IntN(2) == 0 {
		if again := k.l.pastRequest(k.r); again != nil {
			again(ctx, k.c)
			return
		}
	}
	name, value, key := k.lease(), k.value(), k.name+"-"+strconv.FormatUint(k.r.Uint64(), 36)
	ttl := k.ttl()
	send := func(ctx context.Context, c *client.Client) {
		ctx = client.WithIdempotencyKey(ctx, key)
		_, _ = c.Grant(ctx, name, client.TTL(ttl), client.Holder(k.name))
	}
	if token, ok := k.l.remembered(k.r); ok && k.r.IntN(2) == 0 {
		send = func(ctx context.Context, c *client.Client) {
			_, _ = c.Put(client.WithIdempotencyKey(ctx, key), keyOf(name), value, client.Write{Token: token})
		}
	}
	send(ctx, k.c)
	k.l.mu.Lock()
	defer k.l.mu.Unlock()
	k.l.past = append(k.l.past, send)
}

// cancel waits for a lease under a key, and gives up by cancelling, perhaps when it
// has just been granted.
func (k *worker) cancel(ctx context.Context) {
	name, key := k.lease(), k.name+"-"+strconv.FormatUint(k.r.Uint64(), 36)
	waiting, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = k.c.Grant(client.WithIdempotencyKey(waiting, key), name, client.TTL(1500*time.Millisecond), client.Wait(3*time.Second))
	}()
	rest(ctx, between(k.r, 0, time.Second))
	_, _ = k.c.Cancel(ctx, name, key)
	stop()
	<-done
}

func (l *load) remember(token uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stale = append(l.stale, token)
}

// remembered is one of the last tokens that were granted.
func (l *load) remembered(r *rand.Rand) (uint64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.stale) == 0 {
		return 0, false
	}
	return l.stale[len(l.stale)-1-r.IntN(min(len(l.stale), 30))], true
}

func (l *load) pastRequest(r *rand.Rand) func(context.Context, *client.Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.past) == 0 {
		return nil
	}
	return l.past[r.IntN(len(l.past))]
}
