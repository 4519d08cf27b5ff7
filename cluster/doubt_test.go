package cluster

import (
	"strings"
	"testing"
	"time"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// A replica that applied something else than its leader stops and says so.
func TestP14_DifferingReplicaStops(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		g := l.mustAcquire("db", time.Hour)
		var follower *simNode
		for _, n := range s.nodes {
			if n != l {
				follower = n
			}
		}
		s.sameEverywhere()
		// A bit flips in this replica's memory: the lease has another TTL there,
		// and the renewal below comes to another deadline.
		follower.machine.view(func(st *fsm.State) {
			lease, _ := st.Lease("db")
			lease.Holders[0].TTLMS += 1 << 20
		})
		if o, err := l.renew("db", g.Token); err != nil || o.Code != fsmpb.Code_CODE_OK {
			t.Fatal(o, err)
		}
		time.Sleep(2 * digestEvery)
		follower.mu.Lock()
		why := follower.exited
		follower.mu.Unlock()
		if !strings.Contains(why, "differs from the leader's") {
			t.Fatalf("the replica that differs ended with %q", why)
		}
		if _, err := l.acquire("other", time.Second, ""); err != nil {
			t.Fatalf("the others do not go on: %v", err)
		}
	})
}

// What the digests of two replicas say decides, and nothing else.
func TestP14_DigestRing(t *testing.T) {
	var r digestRing
	for i := uint64(1); i <= 1<<17; i++ {
		r.add(i, i*7)
	}
	if err := r.compare(&fsmpb.Tick{DigestVersion: fsm.DigestVersion, DigestIndex: 1 << 17, Digest: 7 << 17}); err != nil {
		t.Fatalf("equal digests: %v", err)
	}
	err := r.compare(&fsmpb.Tick{DigestVersion: fsm.DigestVersion, DigestIndex: 1 << 17, Digest: 1})
	if err == nil || !strings.Contains(err.Error(), "131072") {
		t.Fatalf("differing digests: %v", err)
	}
	if err := r.compare(&fsmpb.Tick{DigestVersion: fsm.DigestVersion, DigestIndex: 5, Digest: 1}); err != nil {
		t.Fatalf("an index that is no longer kept: %v", err)
	}
	if err := r.compare(&fsmpb.Tick{DigestVersion: 99, DigestIndex: 1 << 17, Digest: 1}); err != nil {
		t.Fatalf("a digest made in another way: %v", err)
	}
}

// A leader that stood still may have been replaced meanwhile. It answers no
// read before it has proven itself with an entry of its own.
func TestP10_ReadAfterAPauseProvesAnew(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustAcquire("db", time.Hour)
		time.Sleep(100 * time.Millisecond)
		before := l.member.Load().raft.LastIndex()
		if _, _, err := l.lease("db"); err != nil {
			t.Fatal(err)
		}
		if after := l.member.Load().raft.LastIndex(); after != before {
			t.Fatalf("an ordinary read went through the log: %d, %d", before, after)
		}
		// As if the ticker had not run for ten leader leases.
		l.pauses.stamp.Store(int64(time.Since(l.pauses.start) - 10*l.cfg.LeaderLease))
		if _, _, err := l.lease("db"); err != nil {
			t.Fatal(err)
		}
		if after := l.member.Load().raft.LastIndex(); after <= before {
			t.Fatal("the read after the pause was answered without a proof")
		}
	})
}

// While a non-voter is there, its answers would count in a confirmation of
// leadership: reads go through the log.
func TestP10_ReadsWithANonvoterGoThroughTheLog(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		if err := change(t.Context(), l.member.Load().raft.AddNonvoter("id9", "n9", 0, 0)); err != nil {
			t.Fatal(err)
		}
		before := l.member.Load().raft.LastIndex()
		if _, _, err := l.lease("db"); err != nil {
			t.Fatal(err)
		}
		if after := l.member.Load().raft.LastIndex(); after <= before {
			t.Fatal("the read did not go through the log")
		}
	})
}
