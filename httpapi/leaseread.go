package httpapi

import (
	"fencepost/fsm"
	"fencepost/httpapi/wire"
)

// getLease answers GET /v1/leases/{name}.
func (x *exchange) getLease() {
	if !x.query.stale && x.elsewhere(false) {
		return
	}
	var l *fsm.Lease
	var clockMS uint64
	info, err := x.h.node.Read(x.r.Context(), x.query.stale, func(s *fsm.State) {
		l, _ = s.Lease(x.name)
		clockMS = s.ClockMS()
	})
	if err != nil {
		x.failed(err, false)
		return
	}
	x.noteRead(info)
	if l == nil {
		x.refuse(wire.CodeNotFound, "no lease of this name is on record")
		return
	}
	x.ok(append(appendLease(make([]byte, 0, 512), l, clockMS), '\n'))
}

// listLeases answers GET /v1/leases.
func (x *exchange) listLeases() {
	if !x.query.stale && x.elsewhere(false) {
		return
	}
	var page []*fsm.Lease
	var more bool
	var clockMS uint64
	info, err := x.h.node.Read(x.r.Context(), x.query.stale, func(s *fsm.State) {
		page, more = s.Leases(x.query.prefix, x.query.after, x.query.limit)
		clockMS = s.ClockMS()
	})
	if err != nil {
		x.failed(err, false)
		return
	}
	x.noteRead(info)
	next := ""
	b := append(make([]byte, 0, 384*len(page)+64), `{"leases":[`...)
	for i, l := range page {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLease(b, l, clockMS)
		if more {
			next = l.Name
		}
	}
	b = appendText(append(b, ']'), "next", next)
	x.ok(append(b, '}', '\n'))
}

// appendLease writes a lease on record. One that has ended has no holder; its
// token is still its last one.
func appendLease(b []byte, l *fsm.Lease, clockMS uint64) []byte {
	held := *l
	if !l.Live {
		held = fsm.Lease{}
	}
	b = append(b, '{')
	b = appendText(b, "name", l.Name)
	b = appendBool(b, "held", l.Live)
	b = appendHolder(b, &held, clockMS)
	b = appendUint(b, "last_token", l.Token)
	b = appendUint(b, "queue_length", 0)
	b = appendUint(b, "grace_ms", 0)
	b = appendUint(b, "slots", 1)
	free := uint64(1)
	if l.Live {
		free = 0
	}
	b = appendUint(b, "free", free)
	b = append(appendName(b, "holders"), '[')
	if l.Live {
		b = appendHolder(append(b, '{'), l, clockMS)
		b = append(appendUint(b, "take", 1), '}')
	}
	return append(b, ']', '}')
}

func appendHolder(b []byte, l *fsm.Lease, clockMS uint64) []byte {
	b = appendText(b, "holder", l.Holder)
	b = appendUint(b, "token", l.Token)
	b = appendUint(b, "ttl_ms", l.TTLMS)
	b = appendUint(b, "expires_in_ms", l.ExpiresInMS(clockMS))
	b = appendUint(b, "renewals", l.Renewals)
	return appendMetadata(b, l.Metadata)
}
