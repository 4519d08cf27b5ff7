package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"fencepost/cluster/check"
)

// transferPause is between two hand-overs of a storm.
const transferPause = 200 * time.Millisecond

// transferStorm is N18: leadership is handed over again and again. No call may fail by
// it, and no lease outlive its time because each new leader counts anew.
type transferStorm struct{ r *rand.Rand }

func (a *transferStorm) land(ctx context.Context, c *cluster) (*landing, error) {
	before, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	at, hold := c.recorder.Now(), between(a.r, 4*time.Second, 8*time.Second)
	asked := 0
	for end := time.Now().Add(hold); time.Now().Before(end); asked++ {
		if err := memberCall(ctx, c, http.MethodPost, "/v1/cluster/transfer"); err != nil {
			return nil, fmt.Errorf("transfer: %w", err)
		}
		if err := sleep(ctx, transferPause); err != nil {
			return nil, err
		}
	}
	return &landing{
		at: at, what: fmt.Sprintf("%d transfers in %s; %s led in term %d", asked, hold.Round(time.Millisecond), before.node.name, before.term),
		heal: func(ctx context.Context) (string, error) {
			after, err := c.leader(ctx, 0)
			if err != nil {
				return "", err
			}
			if after.term < before.term+3 {
				return "", fmt.Errorf("%w: from term %d to %d", errMissed, before.term, after.term)
			}
			return fmt.Sprintf("%d terms went by", after.term-before.term), nil
		},
	}, nil
}

func (a *transferStorm) verdicts(e *evidence) []*check.Verdict { return nothingNoticed(e) }
