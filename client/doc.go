// Package client speaks fencepost's HTTP API.
//
//	c, err := client.New([]string{"http://10.0.0.1:7001", "http://10.0.0.2:7001"})
//	g, err := c.Acquire(ctx, "jobs/nightly", client.Acquire{Holder: "worker-1", TTL: 10 * time.Second})
//	_, err = c.Put(ctx, "reports/today", report, client.Write{Token: g.Token})
//	_, err = c.Release(ctx, "jobs/nightly", g.Token)
//
// # Outcomes
//
// Every call ends in one of three ways, and the error says which (P10):
//
//   - done: the error is nil;
//   - refused: an *Error, with what the cluster decided. [ErrHeld], [ErrLost],
//     [ErrStale], [ErrNotIssued], [ErrNotFound] and [ErrMismatch] name the
//     refusals that programs branch on; nothing was changed;
//   - no answer in time: an *OutcomeError that is [ErrUnavailable] (surely not
//     applied) or [ErrUnknown] (it may have been).
//
// # Retries
//
// A call is repeated over answers that decide nothing (503, 504, a broken
// connection), on the next endpoint, with a jittered back-off, until its context
// ends. All attempts of a mutation carry one Idempotency-Key, so it is applied
// once however often it is sent (P11). A caller that wants to go on after
// ErrUnknown, even in another process, repeats the call under the key that the
// OutcomeError tells; see [WithIdempotencyKey].
//
// A context without a deadline means: until it is answered.
//
// # Watching
//
// [Client.Watch] follows events over as many streams as it takes, without missing
// or repeating one, or ends with [ErrCompacted] (P13).
//
// # Time
//
// The holder of a lease counts from before its request left ([Grant.Until],
// [Renewed.Until]); clocks of client and cluster are never compared (P7).
package client
