package linear

import (
	"maps"
	"testing"

	"fencepost/httpapi/wire"
)

// What a sound cluster may answer has an order.
func TestLinearFindsNothingInSoundHistories(t *testing.T) {
	for name, tell := range soundStories() {
		t.Run(name, func(t *testing.T) {
			var s story
			tell(&s)
			if v := Judge(&s.h, t.TempDir()); len(v.Findings) > 0 {
				t.Errorf("%s\n%q", v.Note, v.Findings)
			}
		})
	}
}

func soundStories() map[string]func(*story) {
	all := soundLeases()
	for _, more := range []map[string]func(*story){soundUnanswered(), soundFences(), soundWrites()} {
		maps.Copy(all, more)
	}
	return all
}

func soundLeases() map[string]func(*story) {
	return map[string]func(*story){
		"one after the other": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			taken(s.acquire(30, "a", 0), 40, 5)
			renewed(s.renew(50, "a", 5), 60, "a", 5)
			s.see(61, 62, "a", 5, 5)
			released(s.release(70, "a", 5), 80, true)
			s.see(81, 82, "a", 0, 5)
			lost(s.renew(83, "a", 5), 84, 5, 5, wire.ReasonReleased)
			s.lease(90, 100, "a", 9, 5)
			released(s.release(110, "a", 5), 120, false)
		},
		"expiry after the promise that was made last": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			renewed(s.renew(900, "a", 5), 910, "a", 5)
			s.see(1890, 1895, "a", 5, 5)
			s.lease(1900, 1910, "a", 7, 5)
			lost(s.renew(1920, "a", 5), 1930, 5, 7, wire.ReasonSuperseded)
		},
		"a lease that outlives its promise, since nobody led": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			taken(s.acquire(5000, "a", 0), 5010, 5)
			renewed(s.renew(5020, "a", 5), 5030, "a", 5)
			s.lease(6020, 6030, "a", 8, 5)
		},
		"a waiter gets what is released": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			granted(s.acquire(30, "a", 5000), 510, "a", 8, 5, 470)
			released(s.release(500, "a", 5), 505, true)
			taken(s.acquire(600, "a", 0), 610, 8)
			s.lease(1501, 1510, "a", 12, 8)
		},
		"a waiter that waited in vain": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			taken(s.acquire(30, "a", 500), 540, 5)
		},
		"an acquire repeated": func(s *story) {
			keyed(s.acquire(10, "a", 0), "k1")
			refused(keyed(s.acquire(20, "a", 0), "k1"), 25, wire.Problem{Code: wire.CodeNoLeader})
			granted(keyed(s.acquire(30, "a", 700), "k1"), 40, "a", 5, 0, 0)
			granted(keyed(s.acquire(50, "a", 0), "k1"), 60, "a", 5, 0, 0)
			released(s.release(70, "a", 5), 80, true)
			lost(keyed(s.acquire(90, "a", 0), "k1"), 95, 5, 5, wire.ReasonReleased)
		},
	}
}

func soundUnanswered() map[string]func(*story) {
	return map[string]func(*story){
		"a token that was guessed before it was granted": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			refused(s.renew(30, "a", 8), 40, wire.Problem{Code: wire.CodeLeaseLost, Token: 8, LastToken: new(uint64(5)), Reason: wire.ReasonEnded})
			released(s.release(41, "a", 8), 42, false)
			released(s.release(50, "a", 5), 60, true)
			s.lease(70, 80, "a", 8, 5)
			s.release(90, "a", 8)
			s.lease(100, 110, "a", 12, 8)
		},
		"a grant of an attempt that was sent twice, and refused the second time": func(s *story) {
			refused(s.acquire(10, "a", 0), 20, wire.Problem{Code: wire.CodeNoLeader}).Sent = 2
			taken(s.acquire(30, "a", 0), 40, 5)
		},
		"a grant without an answer that others see": func(s *story) {
			s.acquire(10, "a", 0)
			taken(s.acquire(30, "a", 0), 40, 5)
			s.lease(2000, 2010, "a", 9, 5)
		},
		"a grant without an answer that only the fence sees": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			done(s.put(30, "k", "v", 5), 40, "k", 6, 5)
			s.acquire(1100, "a", 0)
			done(s.put(1110, "k", "w", 5), 1120, "k", 7, 5)
			stale(s.put(1130, "k", "x", 5), 1140, 5, 5, wire.ReasonNotOnRecord)
		},
		"a release without an answer": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.release(30, "a", 5)
			s.see(40, 50, "a", 5, 5)
			s.lease(60, 70, "a", 9, 5)
		},
		"cancelled": func(s *story) {
			keyed(s.lease(10, 20, "a", 5, 0), "k1")
			s.cancel(30, 40, "a", "k1", true)
			refused(keyed(s.acquire(41, "a", 0), "k1"), 45, wire.Problem{Code: wire.CodeCancelled})
			keyed(s.lease(50, 60, "a", 7, 5), "k2")
			released(s.release(61, "a", 7), 62, true)
			s.cancel(70, 80, "a", "k2", false)
			s.cancel(90, 95, "a", "k3", true)
			refused(keyed(s.acquire(96, "a", 0), "k3"), 99, wire.Problem{Code: wire.CodeCancelled})
		},
		"many renewed at once": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(10, 20, "b", 6, 0)
			released(s.release(30, "b", 6), 40, true)
			x := s.ask(50, "POST", "/v1/renew", `{"leases":[{"name":"a","token":5},{"name":"b","token":6}]}`)
			answered(x, 60, 200, wire.RenewedMany{Results: []wire.RenewResult{{Name: "a", Token: 5, ExpiresInMS: 1000}, {Name: "b", Token: 6, Code: wire.CodeLeaseLost, Reason: wire.ReasonReleased}}})
		},
	}
}

func soundFences() map[string]func(*story) {
	return map[string]func(*story){
		"the fence": func(s *story) {
			s.none(1, 2, "k", 0)
			s.lease(10, 20, "a", 5, 0)
			done(s.put(30, "k", "v", 5), 40, "k", 6, 5)
			done(with(s.put(50, "k", "w", 5), "If-Match", `"6"`), 60, "k", 7, 5)
			refused(with(s.put(61, "k", "x", 5), "If-None-Match", "*"), 65, wire.Problem{Code: wire.CodeVersionMismatch, Version: new(uint64(7))})
			released(s.release(70, "a", 5), 80, true)
			stale(with(s.put(81, "k", "x", 5), wire.HeaderFencingGuard, "held"), 82, 5, 5, wire.ReasonNotHeld)
			done(s.put(83, "k", "y", 5), 84, "k", 9, 5)
			s.lease(90, 100, "a", 11, 5)
			stale(s.put(110, "k", "z", 5), 120, 5, 5, wire.ReasonNotOnRecord)
			stale(with(s.put(121, "k", "z", 5), wire.HeaderFencingLease, "a"), 122, 5, 5, wire.ReasonNewerIssued)
			s.get(130, 140, "k", "y", 9, 5, 5)
			s.fence(150, 160, "k", 11)
			s.get(161, 162, "k", "y", 9, 5, 11)
			s.remove(170, 180, "k", 11, true)
			s.none(181, 182, "k", 11)
			s.remove(183, 184, "k", 11, false)
		},
		"two leases on one key": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(30, 40, "b", 6, 0)
			done(s.put(50, "k", "v", 6), 60, "k", 7, 6)
			stale(s.put(70, "k", "w", 5), 80, 5, 6, wire.ReasonBelowWatermark)
			stale(with(s.put(81, "k", "w", 6), wire.HeaderFencingLease, "a"), 82, 6, 6, wire.ReasonWrongLease)
			refused(s.put(83, "k", "w", 99), 84, wire.Problem{Code: wire.CodeTokenNotIssued, Token: 99, Watermark: new(uint64(6))})
			stale(s.put(85, "k", "w", 3), 86, 3, 6, wire.ReasonNotOnRecord)
		},
		"a deleted key whose watermark is below every token on record": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.remove(30, 40, "k", 5, false)
			s.none(41, 42, "k", 5)
			released(s.release(50, "a", 5), 60, true)
			s.lease(70, 80, "a", 9, 5)
			s.none(90, 95, "k", 0)
		},
	}
}

func soundWrites() map[string]func(*story) {
	return map[string]func(*story){
		"writes without an answer": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.put(30, "k", "v", 5) // late
			s.none(40, 50, "k", 0)
			s.get(60, 70, "k", "v", 6, 5, 5)
			s.put(80, "k", "w", 5) // never
			s.get(90, 100, "k", "v", 6, 5, 5)
			with(s.ask(110, "DELETE", "/v1/kv/k", ""), wire.HeaderFencingToken, "5")
			s.get(120, 130, "k", "v", 6, 5, 5)
			s.none(140, 150, "k", 5)
			s.put(160, "k", "same", 5)
			s.put(161, "k", "same", 5)
			s.get(170, 180, "k", "same", 12, 5, 5)
			s.get(190, 200, "k", "same", 13, 5, 5)
		},
		"a write repeated": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			keyed(s.put(30, "k", "v", 5), "w")
			done(keyed(s.put(50, "k", "v", 5), "w"), 60, "k", 6, 5)
			done(s.put(70, "k", "z", 5), 80, "k", 8, 5)
			done(keyed(s.put(90, "k", "v", 5), "w"), 95, "k", 6, 5)
			s.get(100, 110, "k", "z", 8, 5, 5)
			refused(keyed(s.put(111, "k", "other", 5), "w"), 112, wire.Problem{Code: wire.CodeKeyReused})
		},
		"transactions": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			q := wire.TxnRequest{Token: 5, Lease: "a", Ops: []wire.TxnOp{putOp("k", "v"), putOp("l", "w"), {Op: wire.OpCheck, Key: "m", IfVersion: new(uint64)}}}
			answered(s.txn(30, q), 40, 200, wire.Txn{Version: 6, Results: []wire.TxnResult{{Op: "put", Key: "k", Version: 6, Watermark: 5}, {Op: "put", Key: "l", Version: 6, Watermark: 5}, {Op: "check", Key: "m"}}})
			q.Ops[2] = wire.TxnOp{Op: wire.OpCheck, Key: "m", IfVersion: new(uint64(3))}
			refused(s.txn(50, q), 60, wire.Problem{Code: wire.CodeVersionMismatch, Version: new(uint64), OpIndex: new(2)})
			q.Ops[2] = wire.TxnOp{Op: wire.OpDelete, Key: "l2"}
			q.Ops[0], q.Ops[1] = putOp("k", "v2"), putOp("l", "w2")
			s.txn(70, q) // without an answer
			s.get(80, 90, "l", "w2", 9, 5, 5)
			s.get(91, 92, "k", "v2", 9, 5, 5)
			s.none(93, 94, "l2", 5)
		},
		"what surely did not happen": func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			for i, code := range []wire.Code{wire.CodeNoLeader, wire.CodeOverloaded, wire.CodeShuttingDown, wire.CodeQuotaReached, wire.CodeInvalidRequest, wire.CodeTooLarge} {
				refused(s.put(30+int64(i), "k", "v", 5), 40+int64(i), wire.Problem{Code: code})
			}
			s.put(50, "k", "v", 5).Unsent = true
			s.none(60, 70, "k", 0)
		},
	}
}
