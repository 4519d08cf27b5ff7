package cluster

import (
	"fmt"
	"math"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// NotUnderstoodError says that a command was not proposed, because a member would
// have to stop at it: that member runs an older version. Nothing has changed.
type NotUnderstoodError struct {
	Member            string // its name, or its Raft id if it has not said its name yet
	Understands, Need uint32 // command versions (see fsm.Understands)
}

func (e *NotUnderstoodError) Error() string {
	return fmt.Sprintf("member %s understands version %d of the log, and this needs version %d: upgrade all members first", e.Member, e.Understands, e.Need)
}

// schema is what this program knows of command versions. Tests put a later
// version's in its place.
type schema struct {
	newest uint32 // fsm.Understands
	needs  func(*fsmpb.Command) uint32
}

func ownSchema() schema { return schema{fsm.Understands, fsm.Needs} }

// understoodByAll is nil if every member has announced that it can apply the
// command. A node that joins between this look and the entry, with an older
// version, stops at the entry: that is safe, and its operator is told why (P14).
func (n *Node) understoodByAll(mb *member, c *fsmpb.Command) error {
	name, lowest := n.oldestMember(mb)
	if lowest >= n.schema.newest {
		return nil
	}
	if need := n.schema.needs(c); need > lowest {
		return &NotUnderstoodError{name, lowest, need}
	}
	return nil
}

// oldestMember is the one that understands least, of those that are recorded and
// those that are only in Raft's configuration. One that has announced nothing is
// taken to understand the first version.
func (n *Node) oldestMember(mb *member) (name string, lowest uint32) {
	lowest = math.MaxUint32
	note := func(of string, understands uint32) {
		if understands = max(understands, 1); understands < lowest {
			name, lowest = of, understands
		}
	}
	members := n.machine.members()
	for _, m := range members {
		note(m.Name, m.Understands)
	}
servers:
	for _, s := range mb.configuration().Servers {
		for _, m := range members {
			if m.Id == string(s.ID) {
				continue servers
			}
		}
		note(string(s.ID), 1)
	}
	return name, lowest
}
