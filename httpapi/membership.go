package httpapi

import (
	"context"
	"errors"
	"time"

	"fencepost/cluster"
	"fencepost/httpapi/wire"
)

const (
	// membersBound is how long a change of the members may take. A majority that is
	// not there must not keep others from trying.
	membersBound = 10 * time.Second
	// handOvers is how often a removal may find that its node leads.
	handOvers = 3
)

// removeMember answers DELETE /v1/cluster/members/{name}. It may be repeated freely,
// so it needs no memory of its Idempotency-Key: 404 then says that it is done.
//
// A leader that is to be removed hands over, and the request goes on to its successor,
// even if it has been forwarded once: there is no other way to answer it.
func (x *exchange) removeMember() {
	x.moves = true
	if !x.readUnusedKey() || !x.readNoBody() || x.elsewhere(true) {
		return
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), membersBound)
	defer cancel()
	for range handOvers {
		err := x.h.node.Remove(ctx, x.name, x.query.force)
		if err == nil {
			x.setIndex(x.h.node.Status().Index)
			x.document(wire.MemberRemoved{Removed: true, Name: x.name})
			return
		}
		if !errors.Is(err, cluster.ErrHandedOver) {
			x.failed(err, true)
			return
		}
		switch x.status = x.h.node.Status(); {
		case x.status.IsLeader:
			continue
		case x.forwarded() && x.status.LeaderURL != "":
			x.forward(true)
			return
		}
		x.elsewhere(true)
		return
	}
	x.refuse(wire.CodeNoLeader, "leadership came back to the node that is to be removed")
}

// transfer answers POST /v1/cluster/transfer.
func (x *exchange) transfer() {
	x.moves = true
	if !x.readUnusedKey() || !x.readJSON() {
		return
	}
	to := ""
	if len(x.body) > 0 {
		e := decodeObject(x.body, func(d *decoder, name string) bool {
			if name != "to" {
				return false
			}
			to = d.text()
			if e := x.h.limits.checkName("to", to); e != nil {
				d.fail(e.detail)
			}
			return true
		})
		if !x.wrong(e) {
			return
		}
	}
	if x.elsewhere(true) {
		return
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), membersBound)
	defer cancel()
	leader, err := x.h.node.Transfer(ctx, to)
	if err != nil {
		x.failed(err, true)
		return
	}
	x.setIndex(x.h.node.Status().Index)
	x.document(wire.Transferred{Leader: leader})
}

// membersFailed answers the errors of a change of the members that say that nothing
// has changed; false: it is none.
func (x *exchange) membersFailed(err error) bool {
	for _, known := range [...]struct {
		err  error
		code wire.Code
	}{
		{cluster.ErrUnknownMember, wire.CodeNotFound},
		{cluster.ErrLosesQuorum, wire.CodeLosesQuorum},
		{cluster.ErrNotEligible, wire.CodeNotEligible},
		{cluster.ErrRemoved, wire.CodeRemoved},
	} {
		if errors.Is(err, known.err) {
			x.refuse(known.code, err.Error())
			return true
		}
	}
	return false
}
