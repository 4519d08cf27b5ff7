package cluster

import (
	"testing"
	"time"
)

// A waiter that died with its leader, and is granted by the next one before that gives
// up whom nobody has come back for, costs the queue moments all the same, and not its
// TTL: it was in a queue, and no attempt at it has ever come here.
func TestAnInheritedWaiterThatIsDeadGivesItsGrantBack(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.grantInherited("dead")
		time.Sleep(newLeaderGrace / 2)
		if lease, _, err := l.lease("db"); err != nil || !lease.Live() {
			t.Fatalf("it was not granted: %+v %v", lease, err)
		}
		time.Sleep(newLeaderGrace/2 + l.cfg.WaiterGrace)
		if lease, _, err := l.lease("db"); err != nil || lease.Live() {
			t.Fatalf("nobody has it, and it is held: %+v %v", lease, err)
		}
	})
}
