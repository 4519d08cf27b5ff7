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
}

// Joined is the answer to a join: the node is a member, though it may still be
// catching up.
type Joined struct {
	Joined bool `json:"joined"`
}
