// Package fsm is fencepost's replicated state machine: leases, guarded keys,
// members and remembered requests, and the cluster clock that ends leases.
//
// It is a pure function. Apply takes the state, an entry's public index, its
// Raft term and its command, and decides the outcome and the events; every
// replica that applies the same entries decides the same. The package
// therefore uses no clock, no randomness, no I/O of its own, no goroutines, no
// configuration, and nothing whose order depends on a Go map. It knows neither
// Raft nor HTTP.
//
// # Words
//
// A lease is a named right with a time limit. Its token is the index of the
// entry that granted it, so tokens are ordered like acquisitions (P1), and a
// token names one acquisition (P2). A guarded key remembers the greatest token
// that has written it, its watermark, and refuses anything older (P4). A token
// is on record while it is live, and, of a lease with one slot, for ten minutes of
// cluster clock after it ended unless the name was granted again; only tokens on
// record can write (P6). A ticket is the index of the entry that queued a waiter. The floor is one below the oldest token on record.
//
// # Time
//
// Each command carries the leader's reading of the cluster clock and the term
// of the reading. An entry of that same term moves the clock forward to it;
// otherwise the reading is ignored. A lease whose deadline the clock has
// reached is over, and the next command that names it, or Advance, ends it.
//
// # Files
//
//	state.go     the state, its indexes, what can be read from it
//	records.go   leases, their holders, guarded keys
//	apply.go     an entry in, an outcome and events out; the clock
//	lease.go     acquire, renew, release
//	queue.go     waiting in line, cancel
//	jump.go      the index jumps, and what is from before is over (P1, P5)
//	advance.go   ending and removing what is due
//	write.go     guarded writes: the fence
//	request.go   requests that are applied once (P11)
//	restore.go   the contents of a backup, in the place of one's own
//	backup.go    the keys to a stream and back
//	member.go    the nodes of the cluster
//	form.go      what a well-formed name or command is
//	codec.go     commands to bytes and back
//	refound.go   the state as another cluster's, after a recovery
//	versions.go  which version of the program understands which command
//	snapshot.go  the state to a stream and back
//	digest.go    a number that equal states share (P14)
//
// # Concurrency
//
// A State is not safe for concurrent use: Apply excludes everything else.
// Readers may run beside each other. A Snapshot may be written while its State
// goes on applying.
package fsm
