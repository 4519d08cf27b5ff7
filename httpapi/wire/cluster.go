package wire

// Cluster is the answer to GET /v1/cluster.
type Cluster struct {
	ClusterID string `json:"cluster_id"`
	Leader    string `json:"leader"` // name of the node; "": unknown
	Term      uint64 `json:"term"`
	Index     uint64 `json:"index"`    // last one applied by the node that answers
	ClockMS   uint64 `json:"clock_ms"` // the cluster clock
	Floor     uint64 `json:"floor"`
	Nodes     []Node `json:"nodes"`
	// Removed says that the cluster does not have the node any more that answers, so
	// that nothing else here is current.
	Removed bool `json:"removed,omitempty"`
}

// Roles of a Node.
const (
	RoleVoter    = "voter"
	RoleNonvoter = "nonvoter"
)

// Node is a member of the cluster.
type Node struct {
	Name          string `json:"name"`
	ID            string `json:"id"`
	RaftAddr      string `json:"raft_addr"`
	HTTPAddr      string `json:"http_addr"`
	Role          string `json:"role"`
	Leader        bool   `json:"leader"`
	Healthy       bool   `json:"healthy"`
	AppliedIndex  uint64 `json:"applied_index"` // 0: unknown
	LastContactMS uint64 `json:"last_contact_ms"`
	Version       string `json:"version"`
}

// JoinRequest is the body of POST /v1/cluster/members. Joining again corrects
// the record, so it may be repeated freely.
type JoinRequest struct {
	Name        string `json:"name"`
	ID          string `json:"id"`
	RaftAddr    string `json:"raft_addr"` // host:port
	HTTPAddr    string `json:"http_addr"` // host:port
	Voter       bool   `json:"voter"`     // the wanted role
	Version     string `json:"version,omitempty"`
	Understands uint32 `json:"understands,omitempty"` // highest command version that it can apply
	ClusterID   string `json:"cluster_id,omitempty"`  // that it thinks it is of; another one's is refused
	// Member says that the node has been a member before. It is not made one again:
	// CodeRemoved if it is none any more.
	Member bool `json:"member,omitempty"`
}

// MemberRemoved is the answer to DELETE /v1/cluster/members/{name}.
type MemberRemoved struct {
	Removed bool   `json:"removed"` // true
	Name    string `json:"name"`
}

// TransferRequest is the body of POST /v1/cluster/transfer.
type TransferRequest struct {
	To string `json:"to,omitempty"` // name of a member; "": whichever voter is furthest
}

// Transferred is the answer to a transfer.
type Transferred struct {
	Leader string `json:"leader"` // name of the node that leads now
}

// Joined is the answer to a join: the node is a member, though it may still be
// catching up.
type Joined struct {
	Joined bool `json:"joined"`
}
