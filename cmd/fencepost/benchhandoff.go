package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

const workHandOff = "hand-off"

// benchWaitMS is how long the next holder waits: longer than any cell lasts.
const benchWaitMS = 300_000

// prepareHandOff makes the client hold its lease, and a partner to hand it to.
func (c *benchClient) prepareHandOff(ctx context.Context, lease string) (err error) {
	if err := c.take(); err != nil {
		return err
	}
	c.partner = newBenchClient(c.setup, 0)
	c.partner.name = c.name
	body := fmt.Appendf(nil, `{"holder":"bench","ttl_ms":%d,"wait_ms":%d}`, benchTTLMS, benchWaitMS)
	if c.partner.acquire, err = c.partner.request(ctx, "POST", lease+"/acquire", body); err != nil {
		return err
	}
	c.again, err = c.request(ctx, "GET", lease, nil)
	return err
}

// handOff lets the partner stand in the queue, releases the lease, and measures
// from before the release left until the partner has its answer.
func (c *benchClient) handOff() error {
	type answer struct {
		at  time.Time
		err error
	}
	next := make(chan answer, 1)
	go func() {
		err := c.partner.take()
		next <- answer{time.Now(), err}
	}()
	for queued := false; !queued; {
		select {
		case a := <-next:
			return errors.Join(errors.New("the partner did not wait"), a.err)
		default:
		}
		if err := c.send(c.again); err != nil {
			return err
		}
		queued = bytes.Contains(c.scratch.Bytes(), []byte(`"queue_length":1`))
	}
	sent := time.Now()
	if err := c.giveBack(); err != nil {
		return err
	}
	a := <-next
	c.measured = a.at.Sub(sent)
	c.token = append(c.token[:0], c.partner.token...)
	return a.err
}
