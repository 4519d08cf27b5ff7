package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"time"

	"fencepost/httpapi/wire"
)

const (
	valueKey     = "value" // of the metadata of a leader's lease
	campaignWait = 5 * time.Minute
)

// An Election is a lease that is spoken of as a leadership: whoever holds it
// leads. Candidates lead in the order in which they came (P12). It is safe for
// concurrent use; several elections of one name, in one process or many, are
// candidates beside each other.
//
// What a leader does to the outside still has to carry its token: leading is
// something that it once knew, the fence is what holds now.
type Election struct {
	c    *Client
	name string
	opts []AcquireOption

	mu          sync.Mutex // guards what follows
	lease       *Lease     // of the last campaign that was won
	campaigning bool
}

// A Leader is who leads; the zero Leader is nobody.
type Leader struct {
	Holder string
	Token  uint64
	Value  string // that it campaigned with
}

// NewElection is an election over the lease of this name. The options are those
// of each campaign's acquire; Wait is not used.
func NewElection(c *Client, name string, opts ...AcquireOption) *Election {
	return &Election{c: c, name: name, opts: opts}
}

// Campaign waits until this candidate leads, or ctx ends, and tells the others the
// value (up to 4 KiB), such as an address. It leads until the lease ends: work
// under its Context, and campaign again to be a candidate again. Who leads
// already, or is a candidate, by this Election, is refused.
func (e *Election) Campaign(ctx context.Context, value string) (*Lease, error) {
	if err := e.stand(); err != nil {
		return nil, fmt.Errorf("campaign for %s: %w", e.name, err)
	}
	l, err := e.campaign(ctx, value)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.campaigning = false
	if err == nil {
		e.lease = l
	}
	return l, err
}

// stand makes this Election a candidate.
func (e *Election) stand() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.campaigning:
		return errors.New("is a candidate already")
	case e.lease != nil && e.lease.Err() == nil:
		return errors.New("leads already")
	}
	e.campaigning = true
	return nil
}

func (e *Election) campaign(ctx context.Context, value string) (*Lease, error) {
	opts := append(append([]AcquireOption(nil), e.opts...), Wait(campaignWait), Metadata(map[string]string{valueKey: value}))
	pause := backOff{next: firstBackOff}
	for {
		l, err := e.c.Acquire(ctx, e.name, opts...)
		switch {
		case err == nil:
			return l, nil
		case !errors.Is(err, ErrHeld) && !errors.Is(err, ErrCancelled) && !isLost(err) || errors.Is(err, ErrClosed):
			return nil, err
		}
		// The wait is over, or the place is gone: to the end of the queue.
		if pause.wait(ctx, true) != nil {
			return nil, err
		}
	}
}

// Resign ends the leadership of this Election, if it has one; the next candidate
// then leads. As Lease.Release, it may be repeated after an error.
func (e *Election) Resign(ctx context.Context) error {
	e.mu.Lock()
	l := e.lease
	e.mu.Unlock()
	if l == nil {
		return nil
	}
	return l.Release(ctx)
}

// Observe tells who leads, and then each change, in order. It may tell less than
// all if leaders change while it has to read anew; the last one told is always
// the newest known. It ends as Watch does, but goes on over ErrCompacted.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		o := &observer{e: e, yield: yield}
		for {
			again, err := o.follow(ctx)
			if err != nil {
				yield(Leader{}, err)
				return
			}
			if !again {
				return
			}
		}
	}
}

type observer struct {
	e     *Election
	yield func(Leader, error) bool
	now   Leader
	told  *Leader // nil: nothing yet
}

// tell yields the leader if it is another one than before; false: the loop was
// left.
func (o *observer) tell() bool {
	if o.told != nil && *o.told == o.now {
		return true
	}
	told := o.now
	o.told = &told
	return o.yield(told, nil)
}

// follow reads who leads, and watches from there. again: some events are not kept
// any more, so that has to be read anew.
func (o *observer) follow(ctx context.Context) (again bool, err error) {
	at, err := o.read(ctx)
	if err != nil {
		return false, err
	}
	if !o.tell() {
		return false, nil
	}
	for e, err := range o.e.c.Watch(ctx, Watch{Prefix: o.e.name, Kinds: []string{wire.WatchLease}, From: at + 1}) {
		switch {
		case errors.Is(err, ErrCompacted), err == nil && e.Kind == wire.EventRestored:
			return true, nil
		case err != nil:
			return false, err
		}
		if e.Name == o.e.name {
			o.see(e)
		}
		if e.Last && !o.tell() {
			return false, nil
		}
	}
	return false, nil
}

func (o *observer) see(e *Event) {
	switch e.Kind {
	case wire.EventGranted:
		o.now = Leader{Holder: e.Holder, Token: e.Token, Value: e.Metadata[valueKey]}
	case wire.EventReleased, wire.EventExpired:
		if e.PreviousToken == o.now.Token {
			o.now = Leader{}
		}
	}
}

// read is who leads, and as of which index.
func (o *observer) read(ctx context.Context) (index uint64, err error) {
	var l wire.Lease
	q := readCall("get lease "+o.e.name, leasePath(o.e.name))
	a, err := o.e.c.into(ctx, q, &l)
	var refusal *Error
	switch {
	case errors.Is(err, ErrNotFound) && errors.As(err, &refusal) && refusal.index > 0:
		o.now = Leader{}
		return refusal.index, nil
	case err != nil:
		return 0, err
	}
	o.now = Leader{}
	if l.Held {
		o.now = Leader{Holder: l.Holder, Token: l.Token, Value: l.Metadata[valueKey]}
	}
	if index, err = strconv.ParseUint(a.header.Get(wire.HeaderIndex), 10, 64); err != nil {
		return 0, unreadable(q, a, err)
	}
	return index, nil
}
