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
//	machine.go     the state machine under Raft
//	propose.go     proposals and what becomes of them; gate.go which of them go first
//	quota.go       what the leader refuses for want of room
//	renewals.go    many renewals in one entry
//	reads.go       linearizable and stale reads
//	waits.go       requests that stand in a queue, and clients that have gone
//	leader.go      what a leader does in its term
//	clock.go       the leader's reading of the cluster clock
//	pauses.go      noticing that the process stood still
//	events.go      the newest events, for watchers; ring.go how they are kept;
//	               watch.go the node's part in it
//	metrics.go     what is counted here
//
// Members:
//
//	members.go     who is in the cluster; joining it; promotion
//	remove.go      leaving it; registered.go what a node knows of that
//	transfer.go    handing leadership over
//	health.go      which of the others answer
//	upgrade.go     what all of them understand
//
// Connections:
//
//	transport.go   Raft's, which begin with the cluster id; greetings.go how many may
//	               wait to say it; secure.go TLS under them
//	certificates.go what a node does when its certificates run out (package certs)
//	onevoice.go    heartbeats, and who may answer them
//
// Disk:
//
//	storage.go     log, snapshots and transport: what Raft stands on
//	journal*.go    the newest entries, before they settle in the log's database
//	overlap.go     a leader's write beside its followers'
//	soundstore.go  checksums for what raft-boltdb has; boltpages.go for its own pages
//	whole.go       all that is stored is looked at before a node starts
//	snapshots.go   when the log is compacted; snapshotstore.go, snapshotmissed.go where to
//	watchdog.go    a stalled disk ends the process
//	disk.go        what a failing disk does to the node; diskfull.go a full one
//
// Backup and recovery:
//
//	backup.go      reading; restore.go replacing; spool.go where an upload waits;
//	               restoreonce.go one at a time
//	recover*.go    a new cluster of one survivor
//	inspect*.go    the log of a stopped node
//
// standins.go takes the place of disk, network and clock in simulations (package sim).
package cluster
