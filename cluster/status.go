package cluster

import "time"

// Status is what a node knows of itself and the cluster without asking anybody.
type Status struct {
	Name      string
	ID        string // Raft id, made with the data directory
	ClusterID string // "": not a member of a cluster yet
	IsLeader  bool   // by Raft's word on this node; a read is what proves it
	LeaderURL string // http://host:port of the leader; "": unknown
	LeaderID  string
	Term      uint64
	Index     uint64 // public index of the last entry applied here
	// LastContact is how long ago this node heard from the leader; 0 on the leader.
	LastContact time.Duration
}

// Member is a node of the cluster as the leader sees it.
type Member struct {
	Name, ID, RaftAddr, HTTPAddr, Version string
	Voter, Leader, Healthy                bool
	AppliedIndex                          uint64 // public; 0: unknown
	LastContact                           time.Duration
}

// Reply is the outcome of a proposal.
type Reply[T any] struct {
	Outcome T
	// Index is the public index of the entry that this reply rests on.
	Index uint64
	// Waited is how long this node had held the request when it stamped that
	// entry with the cluster clock (P7).
	Waited time.Duration
}

// ReadInfo says what a read saw.
type ReadInfo struct {
	Index uint64        // public index that it reflects
	Lag   time.Duration // of a stale read: time since this node last heard from the leader
}
