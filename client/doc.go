// Package client keeps leases of a fencepost cluster, and writes to its guarded
// keys. It needs the standard library only.
//
//	c, err := client.New([]string{"http://10.0.0.1:7001", "http://10.0.0.2:7001", "http://10.0.0.3:7001"})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	err = c.Do(ctx, "jobs/nightly", func(ctx context.Context, l *client.Lease) error {
//		report, err := build(ctx) // stops when ctx ends
//		if err != nil {
//			return err
//		}
//		_, err = c.Put(ctx, "reports/today", report, l.Guard(client.Held))
//		return err
//	}, client.TTL(10*time.Second), client.Wait(time.Minute))
//
// # Leases
//
// [Client.Acquire] gives a [Lease] that the client keeps: it is renewed in the
// background until it is released, or lost, or the client is closed. [Client.Do]
// is the same around a function, and releases when that has returned. The options
// are [TTL], [Wait] for a place in the queue, [Slots] and [Take] for leases that
// several hold, [Grace], [Holder] and [Metadata]. [Client.Grant], [Client.Renew]
// and [Client.Release] are the calls alone, for programs that keep leases in
// their own way.
//
// A lease that is lost says so by [Lease.Context], whose work should be under it,
// by [Lease.Lost], and by [Lease.Err]. It is over: a lease never comes back to
// life, and a new acquisition is a new lease with a greater token.
//
// # What a lease is worth
//
// No lease keeps a process from acting after it has lost it: it may have been
// suspended between its last look at the clock and its write. So what the work
// touches must see the token ([Lease.Token]) and refuse older ones. Guarded keys
// do: a write under [Lease.Guard] carries the token, and is refused from the
// moment on in which another holder was granted the lease (P4), or, with [Held],
// from the moment on in which this one has ended. The token of a write must be on
// record (P6), and there is no write without one.
//
// Choose the TTL by how long others may wait for a holder that has died: it is also
// how long a holder lasts without an answer from any node. Ten seconds outlast a
// change of leaders, or one hung node, with room to spare.
//
// # Time
//
// Clocks of client and cluster are never compared. A lease counts from before the
// request left that was answered (P7), on the monotonic and on the wall clock, and
// ends when the first of the two says so: the monotonic clock may stand still while
// a laptop is suspended, the wall clock can be set back. (Set forward beyond the
// TTL, the wall clock ends leases that were good; that is the safe side.) From that
// end a margin is taken off, a tenth of the TTL and at least 10 ms, or what
// [WithMargin] says. It covers a clock that runs slow, by up to a tenth, and the
// time to stop the work. So the loss is signalled before anybody else can be
// granted the lease. After a pause of the whole process the deadline is looked at
// before any write under the lease is sent, and by Lease.Err and the Err of its
// Context, without waiting for a timer.
//
// A lease is renewed after a third of its TTL, together with the others of the
// client that are near it, up to a thousand in one request. One attempt takes at
// most a sixth of the TTL; the next goes to another node, on a new connection. With
// three nodes a lease therefore outlasts two of them that hang. What one lease
// meets, a refusal or a hook that panics, is no other's concern.
//
// # Outcomes
//
// Every call ends in one of three ways, and the error says which (P10):
//
//   - done: the error is nil;
//   - refused: an *[Error], with what the cluster decided. [ErrHeld], [ErrLost],
//     [ErrStale], [ErrNotIssued], [ErrNotFound] and [ErrMismatch] name the
//     refusals that programs branch on; nothing was changed;
//   - no answer in time: an *[OutcomeError] that is [ErrUnavailable] (surely not
//     applied) or [ErrUnknown] (it may have been).
//
// A lease that has ended is a *[LostError], which is ErrLost, or [ErrReleased]. A
// write under such a lease is not sent. One that was under way when its lease ended
// is an OutcomeError that also is ErrLost.
//
// # Retries
//
// A call is repeated over answers that decide nothing (503, 504, a broken
// connection), on another node, with a jittered back-off, until its context or its
// lease ends. All attempts of a mutation carry one Idempotency-Key, so it is
// applied once however often it is sent (P11). A caller that wants to go on after
// ErrUnknown, even in another process, repeats the call under the key that the
// OutcomeError tells; see [WithIdempotencyKey]. Acquire instead gives back, in the
// background, whatever an unanswered attempt may have got.
//
// A context without a deadline means: until it is answered. Only a mutation that may
// have happened ends as ErrUnknown after nine minutes, since the cluster knows its
// key for ten; a caller that repeats it later may make it happen twice.
//
// A node that works is stayed with. One that is silent for an attempt
// ([WithAttemptTimeout]) is avoided for a while. Hints of who leads are followed to
// the endpoints given to [New], and to the nodes that [Client.Cluster] has told
// of, and nowhere else, since requests carry the bearer token. The latter are also
// asked when all of the former are silent: a program that runs for longer than the
// nodes that it was given does well to call Cluster now and then.
//
// # Elections
//
// An [Election] is a lease that is spoken of as a leadership: campaign, observe,
// resign.
//
// # Watching
//
// [Client.Watch] follows events over as many streams as it takes, without missing
// or repeating one, or ends with [ErrCompacted] (P13).
//
// # Closing
//
// [Client.Close] stops the keeping and signals every lease as lost, but releases
// none: only the program knows whether the work under them has stopped.
//
// # Files
//
//	client.go          a client and its options
//	acquire.go         acquire, do; acquireoptions.go what is asked for
//	lease.go           a lease, as its holder sees it
//	keep.go            the keeper: deadlines; renewals.go keeping them off
//	hooks.go           functions of the program that are told
//	instant.go         the two clocks
//	election.go        a leadership
//	members.go         changes of the cluster
//	leases.go, keys.go the other calls; watch.go, stream.go events
//	call.go            a call: attempts, keys, outcomes; errors.go how it ends
//	endpoints.go       which node is asked
package client
