// Package cluster is a fencepost node: the state machine of package fsm on
// hashicorp/raft, with everything around it that the promises need.
//
// # What a caller sees
//
// A proposal ends in one of three ways, which are never mixed (P10): an
// outcome, which an entry decided and a quorum has on disk; an error that says
// that surely nothing was applied (ErrNoLeader, ErrShuttingDown, ErrOverloaded,
// *QuotaError); or ErrOutcomeUnknown. A read is linearizable unless it asks to
// be stale. Only the leader takes proposals and linearizable reads; forwarding
// is the HTTP layer's work.
//
// # Time
//
// The leader reads the cluster clock by adding to the last commit that it saw
// the monotonic time since then, but two seconds at the most (clock.go). So the
// clock stands still while nothing can commit, and between leaders: a holder
// whose renewals could not get through loses nothing by it (P7, P8).
//
// # Files
//
//	config.go      settings, their defaults and what they must satisfy
//	identity.go    the data directory: who this node is, and of which cluster
//	formation.go   finding a cluster, or making one
//	node.go        a node's life: open, serve, hand over, close
//	status.go      what a node knows of itself
//	storage.go     log, snapshots and transport: what Raft stands on
//	machine.go     the state machine under Raft
//	propose.go     proposals and what becomes of them
//	quota.go       what the leader refuses for want of room
//	renewals.go    many renewals in one entry
//	reads.go       linearizable and stale reads
//	leader.go      what a leader does in its term
//	clock.go       the leader's reading of the cluster clock
//	pauses.go      noticing that the process stood still
//	members.go     who is in the cluster; joining it; promotion
//	events.go      the newest events, for watchers; ring.go how they are kept;
//	               watch.go the node's part in it
//	snapshots.go   when the log is compacted
//	watchdog.go    a stalled disk ends the process
//	transport.go   Raft connections, which begin with the cluster id
//	metrics.go     what is counted here
package cluster
