package linear

import "fencepost/httpapi/wire"

func plantedWrites() map[string]planted {
	return map[string]planted{
		"P4: an older token is accepted after the newer one wrote": {"put k with 5", func(s *story) {
			written(s)
			done(s.put(110, "k", "x", 5), 120, "k", 11, 5)
		}},
		"P4: an older token is accepted after the newer one was only granted": {"put l with 5", func(s *story) {
			written(s)
			done(s.put(110, "l", "x", 5), 120, "l", 11, 5)
		}},
		"P4: an older token deletes": {"delete k with 5", func(s *story) {
			written(s)
			s.remove(110, 120, "k", 5, true)
		}},
		"P4: guard held without holding": {"put k with 9", func(s *story) {
			written(s)
			released(s.release(110, "a", 9), 120, true)
			done(with(s.put(130, "k", "x", 9), wire.HeaderFencingGuard, "held"), 140, "k", 14, 9)
		}},
		"another lease's token is accepted under the name": {"put k with 6", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.lease(10, 20, "b", 6, 0)
			done(with(s.put(30, "k", "x", 6), wire.HeaderFencingLease, "a"), 40, "k", 7, 6)
		}},
		"P6: a token that was never issued is accepted": {"P6", func(s *story) {
			written(s)
			done(s.put(110, "k", "x", 77), 120, "k", 80, 77)
		}},
		"P4: the newest token is refused": {"stale_token not_on_record", func(s *story) {
			written(s)
			stale(s.put(110, "k", "x", 9), 120, 9, 9, wire.ReasonNotOnRecord)
		}},
		"the holder is refused as not_held": {"not_held", func(s *story) {
			written(s)
			stale(with(s.put(110, "k", "x", 9), wire.HeaderFencingGuard, "held"), 120, 9, 9, wire.ReasonNotHeld)
			renewed(s.renew(130, "a", 9), 140, "a", 9)
		}},
		"an issued token is refused as not issued": {"token_not_issued", func(s *story) {
			written(s)
			refused(s.put(110, "k", "x", 9), 120, wire.Problem{Code: wire.CodeTokenNotIssued, Token: 9, Watermark: new(uint64(9))})
		}},
		"a version that matches is refused": {"version_mismatch", func(s *story) {
			written(s)
			refused(with(s.put(110, "k", "x", 9), "If-Match", `"10"`), 120, wire.Problem{Code: wire.CodeVersionMismatch, Version: new(uint64(6))})
		}},
		"a version that does not match is accepted": {"put k if 6 with 9", func(s *story) {
			written(s)
			done(with(s.put(110, "k", "x", 9), "If-Match", `"6"`), 120, "k", 13, 9)
		}},
		"P10: refused as unavailable, and applied": {"no order", func(s *story) {
			written(s)
			refused(s.put(110, "k", "x", 9), 120, wire.Problem{Code: wire.CodeNoLeader})
			s.get(130, 140, "k", "x", 13, 9, 9)
		}},
	}
}

func plantedValues() map[string]planted {
	return map[string]planted{
		"P5: the watermark falls": {"watermark 5", func(s *story) {
			written(s)
			s.remove(110, 120, "k", 9, true)
			s.none(130, 140, "k", 5)
		}},
		"P5: the watermark goes with the value": {"watermark 0", func(s *story) {
			written(s)
			s.remove(110, 120, "k", 9, true)
			s.none(130, 140, "k", 0)
		}},
		"P9: an old value after a newer one was acknowledged": {"version 6", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			done(s.put(30, "k", "v", 5), 40, "k", 6, 5)
			done(s.put(50, "k", "w", 5), 60, "k", 7, 5)
			s.get(70, 80, "k", "v", 6, 5, 5)
		}},
		"P9: a deleted value comes back": {"version 10", func(s *story) {
			written(s)
			s.remove(110, 120, "k", 9, true)
			s.get(130, 140, "k", "w", 10, 9, 9)
		}},
		"P9: an acknowledged value is gone": {"no value", func(s *story) {
			written(s)
			s.none(130, 140, "k", 9)
		}},
		"a value without an answer comes, goes and comes": {"no order", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.put(30, "k", "v", 5)
			s.get(40, 50, "k", "v", 6, 5, 5)
			s.none(60, 70, "k", 0)
			s.get(80, 90, "k", "v", 6, 5, 5)
		}},
		"another value under a version": {"no order", func(s *story) {
			written(s)
			s.get(110, 120, "k", "other", 10, 9, 9)
		}},
		"one version for two writes": {"one version", func(s *story) {
			written(s)
			done(s.put(110, "l", "x", 9), 120, "l", 10, 9)
		}},
		"deleted: true of a key without a value": {"delete k with 9", func(s *story) {
			written(s)
			s.remove(110, 120, "k", 9, true)
			s.remove(130, 140, "k", 9, true)
		}},
		"half a transaction": {"no value of l", func(s *story) {
			s.lease(10, 20, "a", 5, 0)
			s.txn(70, wire.TxnRequest{Token: 5, Ops: []wire.TxnOp{putOp("k", "v"), putOp("l", "w")}})
			s.get(80, 90, "k", "v", 9, 5, 5)
			s.none(100, 110, "l", 0)
		}},
	}
}
