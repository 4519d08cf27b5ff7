package fsm

// Refound makes the state another cluster's, without members. It is for recovery
// from a stopped node's directory, between two calls of Apply, behind Jump: the
// members that were lost must not be able to speak for this state.
func (s *State) Refound(clusterID string) {
	for _, n := range s.Nodes() {
		s.putNode(n.Name, nil)
	}
	s.clusterID = clusterID
}

// LongestTTLMS is the longest time for which a holder may believe to have its lease,
// of all that hold one, have held one that is on record, or wait for one; and the
// longest grace that they asked for. It walks all of them.
func (s *State) LongestTTLMS() (ttl, grace uint64) {
	note := func(t, g uint64) { ttl, grace = max(ttl, t), max(grace, g) }
	s.leases.Scan(func(_ string, l *Lease) bool {
		for _, h := range l.Holders {
			note(h.TTLMS, h.GraceMS)
		}
		if l.former != nil {
			note(l.former.TTLMS, l.former.GraceMS)
		}
		return true
	})
	s.AllWaiters(func(w *Waiter) bool {
		note(w.Acquire.TtlMs, w.Acquire.GraceMs)
		return true
	})
	return ttl, grace
}
