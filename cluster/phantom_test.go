package cluster

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// Raft goes on with a change of the members in memory when it could not be written,
// past the term in which it led: two such removals are two majorities. So the process
// ends, and the next one has what the log has.
func TestP3_AChangeOfMembersThatCannotBeWrittenEndsTheNode(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		other := s.nodes[0]
		if other == l {
			other = s.nodes[1]
		}
		l.store.full.Store(true)
		err := l.member.Load().raft.RemoveServer(raft.ServerID(other.id), 0, time.Second).Error() // as Remove asks for it
		l.store.full.Store(false)
		l.mu.Lock()
		defer l.mu.Unlock()
		if err == nil || l.exited == "" {
			t.Errorf("the removal that was in no log: %v; the node has ended itself for %q", err, l.exited)
		}
	})
}
