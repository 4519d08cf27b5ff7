package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// Known cases of renewals that come late, or not at all.

// command is what this node's log has at an index, committed or not.
func (n *simNode) command(index uint64) *fsmpb.Command {
	n.s.t.Helper()
	var l raft.Log
	if err := n.store.GetLog(index, &l); err != nil {
		n.s.t.Fatalf("entry %d: %v", index, err)
	}
	if l.Type != raft.LogCommand {
		return nil
	}
	c, err := fsm.Decode(l.Data)
	if err != nil {
		n.s.t.Fatalf("entry %d: %v", index, err)
	}
	return c
}

// A holder that slept over its TTL asks for a renewal: it has lost, its renewal
// becomes no acquisition, and neither that nor its write touches the next holder.
func TestP4_P7_B14_ASleeperHasLost(t *testing.T) {
	const ttl = 2 * time.Second
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		a := l.mustAcquire("db", ttl)
		if o, err := l.put("k", a.Token, "a"); err != nil || o.Code != fsmpb.Code_CODE_OK {
			t.Fatal(o, err)
		}
		granted := make(chan uint64, 1)
		go func() {
			o, err := s.insist(t.Context(), "db", "b", time.Minute, time.Minute)
			if err != nil || o.Code != fsmpb.Code_CODE_OK {
				t.Errorf("b: %v %v", o, err)
			}
			granted <- o.GetToken()
		}()
		time.Sleep(ttl + 2*time.Second)
		b := <-granted
		if b <= a.Token {
			t.Fatalf("token %d after %d", b, a.Token)
		}
		_, _, before := l.seen("db")
		if o, err := l.renew("db", a.Token); err != nil || o.Code != fsmpb.Code_CODE_LEASE_LOST {
			t.Errorf("the renewal: %v %v, want lease_lost", o, err)
		}
		if o, err := l.put("k", a.Token, "late"); err != nil || o.Code != fsmpb.Code_CODE_STALE_TOKEN {
			t.Errorf("the write: %v %v, want stale_token", o, err)
		}
		if live, token, left := l.seen("db"); !live || token != b || left > before || l.queued("db") != 0 {
			t.Errorf("token %d with %s left (before: %s), %d wait; want %d and nobody", token, left, before, l.queued("db"), b)
		}
	})
}

// One of ten leases that are renewed together is taken away. It alone is lost,
// and told so each time; the others keep their tokens.
func TestP7_B15_OneLostLeaseIsOneLostLease(t *testing.T) {
	const ttl, count, lost = 3 * time.Second, 10, 3
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		renewals := func() (rs []*fsmpb.Renewal) {
			for i := range count {
				live, token, _ := l.seen(fmt.Sprint("l", i))
				if !live && i != lost {
					t.Fatalf("l%d has ended", i)
				}
				rs = append(rs, &fsmpb.Renewal{Name: fmt.Sprint("l", i), Token: token})
			}
			return rs
		}
		for i := range count {
			l.mustAcquire(fmt.Sprint("l", i), ttl)
		}
		all := renewals()
		if r, err := l.Release(t.Context(), time.Now(), &fsmpb.Release{Name: fmt.Sprint("l", lost), Token: all[lost].Token}); err != nil || !r.Outcome.Released {
			t.Fatal(r, err)
		}
		for began := time.Now(); time.Since(began) < 5*ttl; time.Sleep(ttl / 3) {
			r, err := l.Renew(t.Context(), all)
			if err != nil || len(r.Outcome) != count {
				t.Fatal(r, err)
			}
			for i, o := range r.Outcome {
				want := fsmpb.Code_CODE_OK
				if i == lost {
					want = fsmpb.Code_CODE_LEASE_LOST
				}
				if o.Code != want {
					t.Fatalf("l%d after %s: %v, want %s", i, time.Since(began), o, want)
				}
			}
		}
		for i, now := range renewals() {
			if i != lost && now.Token != all[i].Token {
				t.Errorf("l%d has token %d, had %d", i, now.Token, all[i].Token)
			}
		}
	})
}

// A lease that has ended is not brought back by a renewal, though nobody else
// wants it; a new acquisition is a new lease, with a greater token, and lives.
func TestP7_B18_AnEndedLeaseIsNotRenewed(t *testing.T) {
	const ttl = 2 * time.Second
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		first := l.mustAcquire("db", ttl).Token
		l.untilFree("db", ttl+time.Second)
		if o, err := l.renew("db", first); err != nil || o.Code != fsmpb.Code_CODE_LEASE_LOST || o.Reason != fsmpb.Reason_REASON_EXPIRED {
			t.Errorf("the renewal: %v %v, want lease_lost, expired", o, err)
		}
		if live, _, _ := l.seen("db"); live {
			t.Error("the renewal brought the lease back")
		}
		second := l.mustAcquire("db", ttl).Token
		if second <= first {
			t.Errorf("token %d after %d", second, first)
		}
		for began := time.Now(); time.Since(began) < 5*ttl; time.Sleep(ttl / 3) {
			if o, err := l.renew("db", second); err != nil || o.Code != fsmpb.Code_CODE_OK {
				t.Fatalf("after %s: %v %v", time.Since(began), o, err)
			}
			if o, err := l.renew("db", first); err != nil || o.Code != fsmpb.Code_CODE_LEASE_LOST {
				t.Fatalf("the old token after %s: %v %v", time.Since(began), o, err)
			}
		}
	})
}
