package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// Acquire asks for the lease and keeps it: it is renewed in the background until
// it is released, or lost, or the client is closed. Held by somebody else, also
// after [Wait], it is ErrHeld.
//
// The end of ctx ends the call, not the lease. A place in the queue, or a lease,
// that the call may have got and cannot return is given back in the background at
// once, also if the error is ErrUnknown; only under a key of the caller's own
// (WithIdempotencyKey) that is left to the caller. A lease whose time had run out
// on the way is given back and is an error, a *LostError.
//
// A waiter that no node was reached for in seconds loses its place, as does one
// whose cluster is restored from a backup; Acquire then queues up again for what
// is left of the wait.
func (c *Client) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	if err := c.keep.open(); err != nil {
		return nil, fmt.Errorf("acquire %s: %w", name, err)
	}
	asked, err := c.asked(name, opts)
	if err != nil {
		return nil, err
	}
	g, a, err := c.grant(ctx, name, asked)
	if err != nil {
		c.giveUp(ctx, name, err)
		return nil, err
	}
	l := c.newLease(ctx, g, a.sent)
	if err := c.keep.add(l); err != nil {
		c.background("release "+name, l.Release)
		return nil, fmt.Errorf("acquire %s: %w", name, err)
	}
	return l, nil
}

// giveUp gives back what an acquire may have got.
func (c *Client) giveUp(ctx context.Context, name string, err error) {
	var o *OutcomeError
	if key, _ := ctx.Value(keyInContext{}).(string); key == "" && errors.As(err, &o) && o.Unknown {
		c.background("cancel "+name, func(ctx context.Context) error {
			_, err := c.Cancel(ctx, name, o.Key)
			return err
		})
	}
}

func (c *Client) newLease(ctx context.Context, g *Grant, sent instant) *Lease {
	l := &Lease{
		c: c, told: g.Acquired, ttl: time.Duration(g.TTLMS) * time.Millisecond,
		lost: make(chan struct{}), releaseKey: rand.Text(),
	}
	l.margin = c.margin
	if l.margin == 0 {
		l.margin = max(l.ttl/10, minMargin)
	}
	// Not with the key of the acquire, which is for that call alone.
	l.ctx, l.cancel = context.WithCancelCause(WithIdempotencyKey(context.WithoutCancel(ctx), ""))
	l.granted(sent, time.Duration(g.ExpiresInMS+g.WaitedMS)*time.Millisecond)
	return l
}

// Do acquires the lease, calls f, and releases the lease when f has returned, or
// panicked, and not before. The context of f ends with the lease and with ctx, and
// has the lease's cause; f must return when it ends.
//
// The error is that of the acquire, in which case f was not called, or what f
// returned, joined with the *LostError if the lease was lost meanwhile: the work
// of an f that returns nil then may have run beside another holder's. A release
// that fails is logged, and no error: the work is done, and the lease ends by its
// TTL.
func (c *Client) Do(ctx context.Context, name string, f func(context.Context, *Lease) error, opts ...AcquireOption) error {
	l, err := c.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	defer c.giveBack(ctx, l)
	work, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	err = f(leaseContext{work, l}, l)
	if lost := l.Err(); isLost(lost) && !isLost(err) {
		err = errors.Join(err, lost)
	}
	return err
}

// giveBack releases a lease after its work, also if the caller's context has
// ended.
func (c *Client) giveBack(ctx context.Context, l *Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
	defer cancel()
	if err := l.Release(ctx); err != nil {
		c.logger().Warn("the lease was not released, so it ends by its TTL", "lease", l.Name(), "token", l.Token(), "error", err)
	}
}

// background gives something back without holding up the caller. On a closed
// client it does hold it up, since nobody would wait for it.
func (c *Client) background(what string, f func(context.Context) error) {
	run := func(life context.Context) {
		ctx, cancel := context.WithTimeout(life, releaseBound)
		defer cancel()
		if err := f(ctx); err != nil {
			c.logger().Warn("what was not wanted could not be given back, so it ends by itself", "call", what, "error", err)
		}
	}
	if !c.keep.start(func() { run(c.life) }) {
		run(context.Background())
	}
}
