package cluster

import "time"

// standstill is how far a leader counts past its last commit. Something commits
// at least once a second while anything has a deadline, so a leader whose last
// commit is older has been stalled, and the time may not count against holders
// whose renewals could not get through.
const standstill = 2 * time.Second

// A reading is the leader's view of the cluster clock: what it was at the last
// commit that the leader saw, and when that was by the monotonic clock. It is
// immutable.
type reading struct {
	ns    int64
	at    time.Time
	term  uint64
	clock func() time.Time // monotonic
}

// now is the cluster clock at this instant, in nanoseconds. It never runs ahead
// of real time, whatever the wall clock does.
func (r *reading) now() int64 {
	return r.ns + int64(min(max(r.age(), 0), standstill))
}

// age is how long ago the commit was.
func (r *reading) age() time.Duration { return r.clock().Sub(r.at) }

// nowMS is what an entry carries: rounded down, and nothing else ever is.
func (r *reading) nowMS() uint64 { return uint64(r.now() / int64(time.Millisecond)) }

// rebase is the reading after a commit seen now.
func (r *reading) rebase() *reading {
	return &reading{ns: r.now(), at: r.clock(), term: r.term, clock: r.clock}
}
