package fsm

import (
	"google.golang.org/protobuf/proto"

	"fencepost/fsm/fsmpb"
)

// setNode writes a member. The first one names the cluster; one that speaks of
// another cluster is refused.
func (s *State) setNode(c *fsmpb.SetNode) *fsmpb.Outcome {
	n := c.Node
	if n.GetName() == "" || n.GetId() == "" {
		return invalid("node")
	}
	if c.ClusterId == "" || s.clusterID != "" && s.clusterID != c.ClusterId {
		return invalid("cluster_id")
	}
	s.clusterID = c.ClusterId
	s.putNode(n.Name, n)
	return &fsmpb.Outcome{}
}

// removeNode removes that incarnation of the name; another one stays.
func (s *State) removeNode(c *fsmpb.RemoveNode) *fsmpb.Outcome {
	n, ok := s.nodes.Get(c.Name)
	if !ok || n.Id != c.Id {
		return &fsmpb.Outcome{Code: fsmpb.Code_CODE_NOT_FOUND}
	}
	s.putNode(c.Name, nil)
	return &fsmpb.Outcome{}
}

func (s *State) putNode(name string, n *fsmpb.Node) {
	if old, ok := s.nodes.Get(name); ok {
		s.sum -= nodeDigest(old)
	}
	if n == nil {
		s.nodes.Delete(name)
		return
	}
	n = proto.CloneOf(n)
	s.sum += nodeDigest(n)
	s.nodes.Set(name, n)
}
