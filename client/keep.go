package client

import (
	"context"
	"sync"
	"time"
)

const (
	minMargin = 10 * time.Millisecond
	// renewParts and pullParts: a lease is renewed a third of its TTL after the
	// last time, and from a sixth on together with one that is due, so that the
	// leases of a client fall into step.
	renewParts = 3
	pullParts  = 6
	// lookParts and maxLook: how often the wall clock is looked at, which no timer
	// follows.
	lookParts = 20
	maxLook   = time.Second
)

// keeper keeps the leases of a client. One goroutine, which ends when there are
// none, sleeps until the next deadline or renewal; renewals run beside it.
type keeper struct {
	c    *Client
	wake chan struct{}   // room for one
	life context.Context // of renewals; ends when there is nothing to keep any more
	end  context.CancelFunc

	mu      sync.Mutex // guards what follows and the state of each lease; never held over I/O or user code
	leases  map[*Lease]struct{}
	running bool
	closed  bool
}

func (k *keeper) init(c *Client) {
	k.c, k.leases, k.wake = c, make(map[*Lease]struct{}), make(chan struct{}, 1)
	k.life, k.end = context.WithCancel(c.life)
}

func (k *keeper) open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return ErrClosed
	}
	return nil
}

// start runs f in a goroutine that Close waits for; false: it is closed.
func (k *keeper) start(f func()) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	k.c.errand.Go(f)
	return true
}

// add begins to keep a lease; an error, and the lease has ended, if there is
// nothing left to keep.
func (k *keeper) add(l *Lease) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	reason := ""
	switch {
	case k.closed:
		reason = LostClosed
	case k.c.clocks().reached(l.deadline):
		reason = LostDeadline
	}
	if reason != "" {
		k.drop(l, l.lossBy(reason))
		close(l.lost)
		return l.ended
	}
	k.leases[l] = struct{}{}
	k.hookOf(l, k.c.hooks.Acquired, false)
	if !k.running {
		k.running = true
		k.c.errand.Go(k.run)
	}
	k.nudge()
	return nil
}

func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// check looks at the clocks, and tells why a lease has ended.
func (k *keeper) check(l *Lease) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire(l, k.c.clocks())
	return l.ended
}

func (k *keeper) expire(l *Lease, now instant) {
	if l.ended == nil && now.reached(l.deadline) {
		k.lose(l, l.lossBy(LostDeadline))
	}
}

// lose ends a lease that has not ended. The caller has the mutex: whoever sees
// the end sees all of it. Cancelling calls nobody, it only wakes.
func (k *keeper) lose(l *Lease, cause error) {
	if l.ended != nil {
		return
	}
	k.drop(l, cause)
	close(l.lost)
	if log := k.c.log; log != nil { // from where hooks are called: a log can be slow, too
		k.hook(l, func() { log.Warn("lease lost", "lease", l.Name(), "token", l.Token(), "error", cause) }, false)
	}
	if f := k.c.hooks.Lost; f != nil {
		k.hook(l, func() { f(l, cause) }, false)
	}
}

func (k *keeper) drop(l *Lease, cause error) {
	l.ended = cause
	delete(k.leases, l)
	l.cancel(cause)
	k.nudge()
}

func (l *Lease) lossBy(reason string) *LostError {
	return &LostError{Name: l.Name(), Token: l.Token(), Reason: reason, Last: l.last}
}

// release ends a lease by the will of the program. True: the cluster is known to
// have ended it.
func (k *keeper) release(l *Lease) (gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire(l, k.c.clocks())
	if l.ended == nil {
		k.drop(l, ErrReleased)
		k.hookOf(l, k.c.hooks.Released, false)
	}
	return l.gone
}

func (k *keeper) released(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.gone = true
}

func (k *keeper) hookOf(l *Lease, f func(*Lease), skip bool) {
	if f != nil {
		k.hook(l, func() { f(l) }, skip)
	}
}

func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.end()
	for l := range k.leases {
		k.lose(l, l.lossBy(LostClosed))
	}
	k.nudge()
}

// run keeps the leases until there are none.
func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, more := k.step()
		if !more {
			return
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-k.wake:
		}
	}
}

// step does what is due, deadlines first, and says how long there is nothing more
// to do.
func (k *keeper) step() (next time.Duration, more bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.c.clocks()
	for l := range k.leases {
		k.expire(l, now)
	}
	if len(k.leases) == 0 {
		k.running = false
		return 0, false
	}
	k.begin(now)
	next = maxLook
	for l := range k.leases {
		next = min(next, now.until(l.deadline), max(l.ttl/lookParts, minMargin))
		if !l.renewing {
			next = min(next, l.due.Sub(now.mono))
		}
	}
	return max(next, 0), true
}
