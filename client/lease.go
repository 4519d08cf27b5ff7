package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fencepost/httpapi/wire"
)

// A Lease is held, and kept by its client, until Release, its loss, or
// Client.Close. What has ended stays ended: a lease never comes back to life, and
// is never acquired anew under its handle. Safe for concurrent use.
type Lease struct {
	c          *Client
	told       wire.Acquired
	ttl        time.Duration
	margin     time.Duration
	ctx        context.Context
	cancel     context.CancelCauseFunc
	lost       chan struct{}
	releaseKey string

	// Guarded by the keeper's mutex.
	ended    error // nil while it is kept
	deadline instant
	due      time.Time // of the next renewal
	renewing bool
	failures int   // attempts to renew in a row
	last     error // of them
	hooks    hookQueue
	gone     bool // the cluster has answered that the token holds nothing
}

// Name is the lease's.
func (l *Lease) Name() string { return l.told.Name }

// Token is the fencing token: greater than that of any earlier acquisition (P1).
// Hand it to whatever the work touches.
func (l *Lease) Token() uint64 { return l.told.Token }

// OldestToken is the least token of the holders when this one was granted: what a
// resource may refuse below if the lease has slots.
func (l *Lease) OldestToken() uint64 { return l.told.OldestToken }

// PreviousToken was issued for the name before; 0: none is on record. Only if it is
// one's own last token was nobody there in between.
func (l *Lease) PreviousToken() uint64 { return l.told.PreviousToken }

// Holder is the label that the lease was acquired with.
func (l *Lease) Holder() string { return l.told.Holder }

// TTL is how long the lease outlives its last renewal.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Context ends with the lease. context.Cause then is a *LostError, which is
// ErrLost, or ErrReleased. It has the values of the context of Acquire, but does
// not end with it. Its Err looks at the clocks, so that a process that was
// suspended sees the loss at once, and not when its goroutines got to it.
func (l *Lease) Context() context.Context { return leaseContext{l.ctx, l} }

// Lost is closed when the lease is lost, which is before anybody else can be
// granted it. It is not closed by Release; Context ends with both.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Err is nil while the lease is held, else as the cause of its Context. It looks
// at the clocks.
func (l *Lease) Err() error { return l.c.keep.check(l) }

// Deadline is when the lease is lost unless it is renewed before: what the cluster
// granted, counted from before the request left (P7), less the margin. It moves on
// with each renewal, and counts on the monotonic and on the wall clock.
func (l *Lease) Deadline() time.Time {
	l.c.keep.mu.Lock()
	defer l.c.keep.mu.Unlock()
	return l.deadline.mono
}

// Guard is what a write under this lease carries: its token, its name, and what
// the cluster shall check. The deadline is looked at before each time that the
// write is sent; one that slips out in spite of that is fenced (P4).
func (l *Lease) Guard(level Guard) Write {
	return Write{Token: l.Token(), Lease: l.Name(), Guard: level, lease: l}
}

// Txn is Client.Txn under this lease, as if by Guard.
func (l *Lease) Txn(ctx context.Context, level Guard, ops ...wire.TxnOp) (*wire.Txn, error) {
	return l.c.txn(ctx, wire.TxnRequest{Token: l.Token(), Lease: l.Name(), Guard: string(level), Ops: ops}, l)
}

// releaseBound is how long a Release takes at most that was called with the
// context of the lease itself.
const releaseBound = 5 * time.Second

// Release gives the lease back; the work under it must have stopped. From the call
// on it is not renewed any more, its Context has ended, and no write is sent under
// it. Nil: the cluster has confirmed that the token holds nothing. After an error,
// which is ErrUnavailable, ErrUnknown or an *Error, it may be called again; at
// worst the lease ends by its TTL. Releasing a lease that was lost is not an
// error.
func (l *Lease) Release(ctx context.Context) error {
	if l.c.keep.release(l) {
		return nil
	}
	if ctx.Value(leaseInContext{}) == l { // it has just ended
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
		defer cancel()
	}
	if _, err := l.c.Release(WithIdempotencyKey(ctx, l.releaseKey), l.Name(), l.Token()); err != nil {
		return err
	}
	l.c.keep.released(l)
	return nil
}

// bind is a context that ends with the lease, too.
func (l *Lease) bind(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

type leaseInContext struct{}

// leaseContext looks at the clocks when it is asked.
type leaseContext struct {
	context.Context
	l *Lease
}

func (c leaseContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if c.l.Err() != nil {
		return c.Context.Err()
	}
	return nil
}

func (c leaseContext) Value(key any) any {
	if key == (leaseInContext{}) {
		return c.l
	}
	return c.Context.Value(key)
}

// Reasons of a LostError beside those that the cluster gives (wire.ReasonExpired
// and so on).
const (
	LostDeadline = "deadline" // it could not be renewed in time
	LostClosed   = "closed"   // the client was closed
	LostPanic    = "panic"    // a hook panicked
)

// A LostError says that a lease was lost, and why. It is ErrLost; after
// Client.Close also ErrClosed.
type LostError struct {
	Name   string
	Token  uint64
	Reason string
	// Last is how the last attempt to renew it failed, if one did. It is not
	// unwrapped.
	Last error
}

func (e *LostError) Error() string {
	s := fmt.Sprintf("lease %s (token %d) is lost: %s", e.Name, e.Token, e.Reason)
	if e.Last != nil {
		s += fmt.Sprintf(" (last: %v)", e.Last)
	}
	return s
}

// Is matches ErrLost, and ErrClosed if that is the reason.
func (e *LostError) Is(target error) bool {
	return target == ErrLost || (target == ErrClosed && e.Reason == LostClosed)
}

func isLost(err error) bool { return errors.Is(err, ErrLost) }
