package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"fencepost/cluster/check"
)

// rollingRestart is N17: what an upgrade does. No call may fail by it.
type rollingRestart struct {
	r     *rand.Rand
	nodes int // in a round; 0: all
}

func (a *rollingRestart) land(ctx context.Context, c *cluster) (*landing, error) {
	at := c.recorder.Now()
	order := a.r.Perm(len(c.nodes))
	if a.nodes > 0 {
		order = order[:a.nodes]
	}
	what := "restart"
	for _, i := range order {
		n := c.nodes[i]
		if !n.claim() {
			return nil, errBusy
		}
		what += " " + n.name
		err := errors.Join(n.stop(), n.restart(ctx))
		n.release()
		if err != nil {
			return nil, err
		}
		if err := sleep(ctx, between(a.r, 0, time.Second)); err != nil {
			return nil, err
		}
	}
	return &landing{at: at, what: what, heal: func(context.Context) (string, error) { return "each was seen gone", nil }}, nil
}

func (a *rollingRestart) verdicts(e *evidence) []*check.Verdict { return nothingNoticed(e) }

// nothingNoticed are the checks of what is done on purpose: users of the client must
// not notice it.
func nothingNoticed(e *evidence) []*check.Verdict {
	v := &check.Verdict{Name: "no call of a retrying client failed", Findings: e.failed, Note: fmt.Sprintf("%d calls", e.calls)}
	if e.calls == 0 {
		find(v, "nothing was called")
	}
	kept := &check.Verdict{Name: "no lease of a renewing holder was lost", Findings: e.lost, Note: fmt.Sprintf("%d holders", e.kept)}
	if e.kept == 0 {
		find(kept, "nobody held a lease")
	}
	return []*check.Verdict{v, kept}
}
