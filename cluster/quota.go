package cluster

import (
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// checkQuota refuses what would make the state larger than this node's flags
// allow. It is done by the leader before the log and not in the state machine,
// where differing flags would be divergence. What a key has decided already is
// always answered, and nothing that makes room is ever refused.
func (n *Node) checkQuota(c *fsmpb.Command) (refused error) {
	n.machine.view(func(s *fsm.State) {
		counts := s.Counts()
		full := counts.Requests >= n.cfg.MaxRequests
		switch op := c.Op.(type) {
		case *fsmpb.Command_Acquire:
			a := op.Acquire
			if _, exists := s.Lease(a.Name); !exists && counts.Leases >= n.cfg.MaxLeases {
				refused = &QuotaError{"leases", uint64(n.cfg.MaxLeases)}
			} else if err := n.queueFull(s, a, counts.Waiters); err != nil {
				refused = err
			} else if full && a.Request != nil {
				refused = &QuotaError{"requests", uint64(n.cfg.MaxRequests)}
			}
			if refused != nil && s.Remembers(a.Principal, a.Request) {
				refused = nil
			}
		case *fsmpb.Command_Cancel:
			// One that overtakes its acquire is remembered.
			if c := op.Cancel; full && c.Attempt == 0 && !s.Remembers(c.Principal, c.Request) {
				refused = &QuotaError{"requests", uint64(n.cfg.MaxRequests)}
			}
		case *fsmpb.Command_Release:
			if r := op.Release; full && !s.Remembers(r.Principal, r.Request) {
				r.Request = nil // applied without a record rather than refused
			}
		case *fsmpb.Command_Write:
			w := op.Write
			if overfills(s, w, counts.DataBytes, n.cfg.MaxDataBytes) {
				refused = &QuotaError{"keys", n.cfg.MaxDataBytes}
			} else if full && w.Request != nil {
				refused = &QuotaError{"requests", uint64(n.cfg.MaxRequests)}
			}
			switch {
			case refused == nil:
			case s.Remembers(w.Principal, w.Request):
				refused = nil
			case grows(s, w) == 0:
				refused = nil
				if !conditional(w) {
					w.Request = nil // as a release: repeated, it comes to the same
				}
			}
		}
	})
	return refused
}

// queueFull refuses a request that would have to wait where too many do.
func (n *Node) queueFull(s *fsm.State, a *fsmpb.Acquire, waiters int) error {
	if a.WaitMs == 0 || s.Free(a) {
		return nil
	}
	if s.QueueLength(a.Name) >= n.cfg.MaxQueue {
		return &QueueFullError{n.cfg.MaxQueue}
	}
	if waiters >= n.cfg.MaxWaiters {
		return &QueueFullError{n.cfg.MaxWaiters}
	}
	return nil
}

// overfills says whether the write would take the keys above the limit.
func overfills(s *fsm.State, w *fsmpb.Write, have, limit uint64) bool {
	var most uint64
	for _, op := range w.Ops {
		most += opBytes(op)
	}
	if have+most <= limit {
		return false // without a search for each key
	}
	more := grows(s, w)
	return more > 0 && have+more > limit
}

// grows is by how much the keys grow with the write, at the most; 0 if it only
// deletes, fences or checks keys on record.
func grows(s *fsm.State, w *fsmpb.Write) (bytes uint64) {
	for _, op := range w.Ops {
		_, exists := s.Key(op.Key)
		if op.Kind == fsmpb.WriteOp_KIND_PUT || !exists && op.Kind != fsmpb.WriteOp_KIND_CHECK {
			bytes += opBytes(op)
		}
	}
	return bytes
}

// conditional says whether the write, repeated, could be refused for what it
// changed the first time.
func conditional(w *fsmpb.Write) bool {
	for _, op := range w.Ops {
		if op.IfVersion != nil {
			return true
		}
	}
	return false
}

func opBytes(op *fsmpb.WriteOp) uint64 {
	return uint64(len(op.Key) + len(op.Value) + len(op.ContentType))
}
