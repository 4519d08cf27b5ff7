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
			if s.Remembers(a.Principal, a.Request) {
				return
			}
			if _, exists := s.Lease(a.Name); !exists && counts.Leases >= n.cfg.MaxLeases {
				refused = &QuotaError{"leases", uint64(n.cfg.MaxLeases)}
			} else if full && a.Request != nil {
				refused = &QuotaError{"requests", uint64(n.cfg.MaxRequests)}
			}
		case *fsmpb.Command_Release:
			if r := op.Release; full && !s.Remembers(r.Principal, r.Request) {
				r.Request = nil // applied without a record rather than refused
			}
		case *fsmpb.Command_Write:
			w := op.Write
			if s.Remembers(w.Principal, w.Request) {
				return
			}
			if grows := growth(s, w); grows > 0 && counts.DataBytes+grows > n.cfg.MaxDataBytes {
				refused = &QuotaError{"keys", n.cfg.MaxDataBytes}
			} else if full && w.Request != nil {
				if grows == 0 {
					w.Request = nil
					return
				}
				refused = &QuotaError{"requests", uint64(n.cfg.MaxRequests)}
			}
		}
	})
	return refused
}

// growth is about how many bytes more the keys take after the write; 0 if it
// only touches keys on record without putting a value.
func growth(s *fsm.State, w *fsmpb.Write) uint64 {
	var grows uint64
	for _, op := range w.Ops {
		_, exists := s.Key(op.Key)
		if op.Kind == fsmpb.WriteOp_KIND_PUT || !exists && op.Kind != fsmpb.WriteOp_KIND_CHECK {
			grows += uint64(len(op.Key) + len(op.Value) + len(op.ContentType))
		}
	}
	return grows
}
