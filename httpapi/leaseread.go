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
	var l seenLease
	var clockMS uint64
	info, err := x.h.node.Read(x.r.Context(), x.query.stale, func(s *fsm.State) {
		l.Lease, _ = s.Lease(x.name)
		l.queued = s.QueueLength(x.name)
		clockMS = s.ClockMS()
	})
	if err != nil {
		x.failed(err, false)
		return
	}
	x.noteRead(info)
	if l.Lease == nil {
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
	var page []seenLease
	var more bool
	var clockMS uint64
	info, err := x.h.node.Read(x.r.Context(), x.query.stale, func(s *fsm.State) {
		var leases []*fsm.Lease
		leases, more = s.Leases(x.query.prefix, x.query.after, x.query.limit)
		page = make([]seenLease, len(leases))
		for i, l := range leases {
			page[i] = seenLease{l, s.QueueLength(l.Name)}
		}
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

// seenLease is a lease as a read saw it.
type seenLease struct {
	*fsm.Lease
	queued int
}

// appendLease writes a lease on record. One that has ended has no holder; its
// token is still its last one.
func appendLease(b []byte, l seenLease, clockMS uint64) []byte {
	first := l.First()
	if first == nil {
		first = &fsm.Holder{}
	}
	b = append(b, '{')
	b = appendText(b, "name", l.Name)
	b = appendBool(b, "held", l.Live())
	b = appendHolder(b, first, clockMS)
	b = appendUint(b, "last_token", l.LastToken)
	b = appendUint(b, "queue_length", uint64(l.queued))
	grace, free := max(l.GraceUntilMS, clockMS)-clockMS, l.Slots-l.Used()
	if grace > 0 {
		free = 0 // nobody is granted any of them
	}
	b = appendUint(b, "grace_ms", grace)
	b = appendUint(b, "slots", l.Slots)
	b = appendUint(b, "free", free)
	b = append(appendName(b, "holders"), '[')
	for i, h := range l.Holders {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendHolder(append(b, '{'), h, clockMS)
		b = append(appendUint(b, "take", h.Take), '}')
	}
	return append(b, ']', '}')
}

func appendHolder(b []byte, h *fsm.Holder, clockMS uint64) []byte {
	b = appendText(b, "holder", h.Holder)
	b = appendUint(b, "token", h.Token)
	b = appendUint(b, "ttl_ms", h.TTLMS)
	b = appendUint(b, "expires_in_ms", h.ExpiresInMS(clockMS))
	b = appendUint(b, "renewals", h.Renewals)
	return appendMetadata(b, h.Metadata)
}
