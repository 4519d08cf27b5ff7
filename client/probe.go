package client

import (
	"context"
	"net/http"
	"time"
)

const (
	// probeEvery and probeBound are such that a node which hangs is left before a
	// new leader gives up on the waiters whose clients have not come back, five
	// seconds after it is ready.
	probeEvery = time.Second
	probeBound = time.Second
)

// probe looks after an attempt that waits in a queue, which is silent for as long
// as all is well: it ends the attempt once the node no longer answers anything,
// twice in a row. A repetition at another node keeps the place in the queue. The
// returned function ends the probing.
func (c *Client) probe(ctx context.Context, giveUp context.CancelFunc, n *endpoint) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(probeEvery)
		defer t.Stop()
		for missed := 0; missed < 2; {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if missed++; c.alive(ctx, n) {
				missed = 0
			}
		}
		giveUp()
	}()
	return func() { cancel(); <-ended }
}

// alive says whether a node answers, whatever it says.
func (c *Client) alive(ctx context.Context, n *endpoint) bool {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.base+"/livez", nil)
	if err != nil {
		return true // no fault of the node's
	}
	_, _, err = c.exchange(req)
	return err == nil
}
