package fsm

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fencepost/fsm/fsmpb"
)

// crossingMS is the instant at which everything happens.
const crossingMS = 10_000

// A crossing is a shared name at an instant at which waits are over, holders
// expire, are released, cancelled and come again; and what was told to whom.
type crossing struct {
	t     *testing.T
	seed  string
	s     *State
	rnd   *rand.Rand
	slots uint64
	told  map[string]fsmpb.Code // by request key
	owns  map[uint64]string     // tokens that somebody was told of and has not given back, and by which request
	holds []uint64              // all tokens granted
}

// TestP12_CrossingsLeaveNothingStuck: cancel, time-out, release, expiry and
// grant at one instant, in a thousand random orders. Afterwards nobody waits for
// a lease that is free, and nobody has one that was not granted to them.
func TestP12_CrossingsLeaveNothingStuck(t *testing.T) {
	seed := rand.Uint64()
	granted, cancelled := 0, 0
	for order := range uint64(1000) {
		x := newCrossing(t, seed, order)
		for _, c := range x.commands() {
			x.apply(crossingMS, c)
		}
		x.advance(crossingMS)
		x.check()
		granted += len(x.holds)
		for _, code := range x.told {
			if code == fsmpb.Code_CODE_CANCELLED {
				cancelled++
			}
		}
		// Nothing is left when all times are over.
		x.advance(crossingMS * 1000)
		if c := x.s.Counts(); c.Held != 0 || c.Waiters != 0 || x.s.Ready() != 0 || len(x.owns) != 0 {
			x.fail("in the end: %+v, %d ready, held %v", c, x.s.Ready(), x.owns)
		}
	}
	if granted < 1500 || cancelled < 1000 {
		t.Errorf("only %d grants and %d cancelled requests: the test shows little", granted, cancelled)
	}
}

func newCrossing(t *testing.T, seed, order uint64) *crossing {
	x := &crossing{
		t: t, seed: fmt.Sprintf("rand.NewPCG(%d, %d)", seed, order), s: New(), rnd: rand.New(rand.NewPCG(seed, order)),
		told: map[string]fsmpb.Code{}, owns: map[uint64]string{},
	}
	x.slots = 1 + 2*x.rnd.Uint64N(2)
	for i := range 3 + x.rnd.IntN(6) {
		x.apply(0, x.acquire(fmt.Sprint("w", i), x.some(crossingMS, crossingMS, 2*crossingMS)))
	}
	return x
}

func (x *crossing) fail(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("%s: %s", x.seed, fmt.Sprintf(format, args...))
}

func (x *crossing) some(of ...uint64) uint64 { return of[x.rnd.IntN(len(of))] }

func (x *crossing) acquire(key string, wait uint64) *fsmpb.Command {
	c := acquireOf("db", key, x.some(crossingMS, crossingMS, 3*crossingMS))
	a := c.GetAcquire()
	a.Slots, a.Take, a.WaitMs = x.slots, 1+x.rnd.Uint64N(x.slots), wait
	a.GraceMs = x.some(0, 0, 0, 1000)
	a.Request = &fsmpb.Request{Key: key, Path: "p", Digest: []byte(key)}
	return c
}

// commands are all that happens at the instant, in a random order.
func (x *crossing) commands() (cs []*fsmpb.Command) {
	keys := []string{"new0", "new1"}
	for key := range len(x.told) {
		keys = append(keys, fmt.Sprint("w", key))
	}
	for _, key := range keys {
		for range 1 + x.rnd.IntN(3) {
			switch x.rnd.IntN(4) {
			case 0:
				cs = append(cs, x.acquire(key, x.some(0, crossingMS)))
			case 1:
				cs = append(cs, &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{
					Name: "db", Request: &fsmpb.Request{Key: key, Path: "p"}, Attempt: x.some(0, 1, 2),
				}}})
			case 2:
				cs = append(cs, advanceOf())
			}
		}
	}
	// Tokens of now, and one that an entry of this instant may issue.
	for _, token := range append(x.holds, x.s.Index()+2) {
		if x.rnd.IntN(3) == 0 {
			cs = append(cs, releaseOf("db", token))
		}
	}
	x.rnd.Shuffle(len(cs), func(i, j int) { cs[i], cs[j] = cs[j], cs[i] })
	return cs
}

// apply applies a command, and notes what everybody is told.
func (x *crossing) apply(nowMS uint64, c *fsmpb.Command) {
	c.NowMs, c.Term = nowMS, 1
	o, events, err := x.s.Apply(x.s.Index()+1, 1, c)
	if err != nil {
		x.fail("%v", err)
	}
	for _, e := range events {
		switch e.Kind {
		case EventReleased, EventExpired:
			delete(x.owns, e.PreviousToken)
		case EventGranted:
			x.holds = append(x.holds, e.Token)
		}
		if e.Decided != nil {
			key := e.Decided.Outcome.Holder
			if e.Kind != EventGranted {
				key = e.Holder
			}
			x.tell(key, e.Decided.Outcome)
		}
	}
	if a := c.GetAcquire(); a != nil {
		x.tell(a.Request.Key, o)
	}
	if c.GetCancel() != nil && o.Cancelled {
		x.told[c.GetCancel().Request.Key] = fsmpb.Code_CODE_CANCELLED
	}
}

// tell notes an answer. What is final stays: only a grant can be lost, or
// cancelled.
func (x *crossing) tell(key string, o *fsmpb.Outcome) {
	was, ok := x.told[key]
	switch {
	case !ok || was == fsmpb.Code_CODE_QUEUED || was == o.Code:
	case was == fsmpb.Code_CODE_OK && (o.Code == fsmpb.Code_CODE_LEASE_LOST || o.Code == fsmpb.Code_CODE_CANCELLED):
	default:
		x.fail("entry %d: %s was told %v, now %v", x.s.Index(), key, was, o)
	}
	x.told[key] = o.Code
	if o.Code == fsmpb.Code_CODE_OK {
		x.owns[o.Token] = key
	}
}

// advance does what the leader does while something is due.
func (x *crossing) advance(nowMS uint64) {
	for range 100 {
		x.apply(nowMS, advanceOf())
		if at, ok := x.s.NextExpiryMS(); !ok || at > nowMS {
			return
		}
	}
	x.fail("after a hundred Advances something is still due, %d can be granted", x.s.Ready())
}

func (x *crossing) check() {
	l, held := x.s.Lease("db")
	free := x.slots
	if held {
		for _, h := range l.Holders {
			free -= h.Take
			if key, ok := x.owns[h.Token]; !ok || x.told[key] != fsmpb.Code_CODE_OK {
				x.fail("token %d is live, its request %q was told %v", h.Token, key, x.told[key])
			}
		}
		if len(l.Holders) != len(x.owns) {
			x.fail("%d hold the lease, were told so: %v", len(l.Holders), x.owns)
		}
		if l.GraceUntilMS > crossingMS {
			free = 0
		}
	}
	waiters := x.s.Waiters("db", 100)
	if len(waiters) > 0 && waiters[0].Acquire.Take <= free {
		x.fail("%s waits for %d slots, %d are free", waiters[0].Acquire.Request.Key, waiters[0].Acquire.Take, free)
	}
	waiting := 0
	for _, code := range x.told {
		if code == fsmpb.Code_CODE_QUEUED {
			waiting++
		}
	}
	if waiting != len(waiters) {
		x.fail("%d wait, %d were told to wait", len(waiters), waiting)
	}
}
