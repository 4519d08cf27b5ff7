package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"fencepost/cluster/check"
)

// A nemesis is one kind of fault. All of them stand in the table of table.go; each
// has its code in a file of its own.
type nemesis struct {
	id   string // as in the plan: N1
	what string
	unit string // what one hit is
	// ci and release are the hits of a short and of a long run.
	ci, release int
	// batch is the most hits that one cluster gets: a history that is judged as a
	// whole has to stay small enough, and each cluster's log is kept from entry 1.
	batch int
	// gap is the longest pause between two hits; 0: a second.
	gap time.Duration
	// settle: the cluster must be whole and serving before the next hit. Otherwise
	// only at the end.
	settle bool
	// namespace: packets are dropped, so there must be a namespace to do it in.
	namespace bool
	// proxied: clients reach the nodes through a replyProxy each.
	proxied bool
	// make gives the attack on one cluster. r is that attack's own.
	make func(r *rand.Rand) attack
}

// An attack lands the faults of one nemesis on one cluster. It may also be a
// preparer or a witness.
type attack interface {
	// land starts one fault, and returns when it is there. It changes only nodes
	// that it has claimed, and releases them when it heals. errBusy: there was none
	// to claim, or no leader; nothing was done.
	land(ctx context.Context, c *cluster) (*landing, error)
}

// A preparer changes a cluster before its nodes are started: their directories,
// arguments, or the way they are launched.
type preparer interface {
	// prepare may return an undo, which is called when the nodes have ended.
	prepare(ctx context.Context, c *cluster) (undo func() error, err error)
}

// A witness adds checks of its own to the judges'.
type witness interface {
	verdicts(e *evidence) []*check.Verdict
}

// A landing is a fault that is there.
type landing struct {
	at   int64         // on the recorder's clock: just before it began
	what string        // for the report: "kill n2, which led in term 4"
	hold time.Duration // how long it stays
	// heal ends the fault and says what shows that it was there. It is called
	// exactly once, whatever happens, with a context that ends after healBound, and
	// leaves every node running. errMissed: nothing shows it, so the run has failed.
	heal func(ctx context.Context) (evidence string, err error)
	// parts are the single faults of one that is made of several.
	parts []hit
}

var (
	errBusy   = errors.New("nothing to attack now")
	errMissed = errors.New("the fault did not land")
)

// A hit is a landing that is over, as the judges see it. Instants are of the
// recorder's clock.
type hit struct {
	Nemesis  string `json:"nemesis"`
	What     string `json:"what"`
	At       int64  `json:"at"`
	Healed   int64  `json:"healed"`
	Evidence string `json:"evidence,omitempty"`
	Missed   string `json:"missed,omitempty"` // why it counts as not landed
}

// between is a random duration from a to b.
func between(r *rand.Rand, a, b time.Duration) time.Duration {
	return a + time.Duration(r.Int64N(int64(b-a)+1))
}

// pick is a random element.
func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// sleep waits, or returns the error of the context that ended first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
