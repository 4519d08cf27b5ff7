package main

import (
	"bytes"
	"context"
	"fmt"
	"time"
)

const (
	workExpiry  = "expiry"
	benchLeased = 300 * time.Millisecond // TTL of a lease that is left to run out
	// benchWatched is when a client begins to look, before the TTL is over: a
	// lease that ended earlier by more would not be noticed, but then by much.
	benchWatched = 20 * time.Millisecond
	benchLook    = time.Millisecond // between two looks
)

func (c *benchClient) prepareExpiry(ctx context.Context, lease string) (err error) {
	body := fmt.Appendf(nil, `{"holder":"bench","ttl_ms":%d}`, benchLeased.Milliseconds())
	if c.acquire, err = c.request(ctx, "POST", lease+"/acquire", body); err != nil {
		return err
	}
	c.again, err = c.request(ctx, "GET", lease, nil)
	return err
}

// expire takes a lease, does nothing, and measures how long after its TTL it is
// seen to be free, counted from before the request left: the same count by which
// it must never be free early (P7).
func (c *benchClient) expire() error {
	sent := time.Now()
	if err := c.take(); err != nil {
		return err
	}
	time.Sleep(time.Until(sent.Add(benchLeased - benchWatched)))
	for {
		if err := c.send(c.again); err != nil {
			return err
		}
		seen := time.Now()
		if bytes.Contains(c.scratch.Bytes(), []byte(`"held":false`)) {
			if c.measured = seen.Sub(sent) - benchLeased; c.measured < 0 {
				return fmt.Errorf("a lease of %s was free %s early", benchLeased, -c.measured)
			}
			return nil
		}
		time.Sleep(benchLook)
	}
}
