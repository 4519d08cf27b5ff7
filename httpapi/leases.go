package httpapi

import (
	"errors"
	"strconv"
	"time"

	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// acquire answers POST /v1/leases/{name}/acquire.
func (x *exchange) acquire() {
	if !x.readKey() || !x.readJSON() {
		return
	}
	a, e := x.h.limits.decodeAcquisition(x.body)
	if !x.wrong(e) {
		return
	}
	if a.metaBytes > x.h.limits.MetadataBytes {
		x.tooLarge("metadata", x.h.limits.MetadataBytes)
		return
	}
	x.patience = time.Duration(a.waitMS) * time.Millisecond
	if x.elsewhere(true) {
		return
	}
	c := &fsmpb.Acquire{
		Name: x.name, Holder: a.holder, TtlMs: a.ttlMS, Metadata: a.metadata,
		WaitMs: a.waitMS, Slots: a.slots, Take: a.take, GraceMs: a.graceMS,
		Request: x.request(acquirePath(x.name), a.asked),
	}
	reply, err := x.h.node.Acquire(x.r.Context(), x.received, c)
	if err != nil {
		x.failed(err, true)
		return
	}
	x.setIndex(reply.Index)
	o := reply.Outcome
	if !x.done(o, reply.Waited, false) {
		return
	}
	b := append(make([]byte, 0, 320), '{')
	b = appendText(b, "name", o.Name)
	b = appendText(b, "holder", o.Holder)
	b = appendUint(b, "token", o.Token)
	b = appendUint(b, "ttl_ms", o.TtlMs)
	b = appendUint(b, "expires_in_ms", o.ExpiresInMs)
	b = appendUint(b, "waited_ms", milliseconds(reply.Waited))
	b = appendUint(b, "previous_token", o.PreviousToken)
	b = appendUint(b, "oldest_token", o.OldestToken)
	b = appendUint(b, "slots", o.Slots)
	b = appendUint(b, "take", o.Take)
	b = appendMetadata(b, o.Metadata)
	x.ok(append(b, '}', '\n'))
}

// acquirePath is the scope of an acquire's Idempotency-Key, which a cancel names
// too.
func acquirePath(name string) string { return "/v1/leases/" + name + "/acquire" }

// cancel answers POST /v1/leases/{name}/cancel. Its Idempotency-Key is that of
// the acquire to cancel; it needs none of its own, since twice comes to the same.
func (x *exchange) cancel() {
	if len(x.r.Header["Idempotency-Key"]) == 0 {
		x.invalid(wire.HeaderIdempotencyKey, "is required: that of the acquire to cancel")
		return
	}
	if !x.readKey() || !x.readJSON() {
		return
	}
	if len(x.body) > 0 && !x.wrong(decodeObject(x.body, func(*decoder, string) bool { return false })) {
		return
	}
	c := &fsmpb.Cancel{Name: x.name, Request: x.request(acquirePath(x.name), func(*digest) {})}
	if x.elsewhere(true) {
		return
	}
	reply, err := x.h.node.Cancel(x.r.Context(), x.received, c)
	if err != nil {
		x.failed(err, true)
		return
	}
	x.setIndex(reply.Index)
	if !x.done(reply.Outcome, reply.Waited, false) {
		return
	}
	x.ok(append(appendBool(append(make([]byte, 0, 32), '{'), "cancelled", reply.Outcome.Cancelled), '}', '\n'))
}

// renew answers POST /v1/leases/{name}/renew. A renewal says by when the lease
// ends at the earliest and never shortens it, so it may be repeated without
// being remembered; an Idempotency-Key is checked and otherwise of no effect.
func (x *exchange) renew() {
	if !x.readUnusedKey() || !x.readJSON() {
		return
	}
	r := &fsmpb.Renewal{Name: x.name}
	e := decodeObject(x.body, func(d *decoder, name string) bool {
		switch name {
		case "token":
			r.Token = token(d)
		case "ttl_ms":
			r.TtlMs = x.h.limits.ttl(d)
		default:
			return false
		}
		return true
	})
	if e == nil && r.Token == 0 {
		e = &invalidField{"token", "is required"}
	}
	if !x.wrong(e) || x.elsewhere(true) {
		return
	}
	outcomes, ok := x.proposeRenewals([]*fsmpb.Renewal{r})
	if !ok {
		return
	}
	o := outcomes[0]
	if !x.done(o, 0, false) {
		return
	}
	b := append(make([]byte, 0, 128), '{')
	b = appendText(b, "name", o.Name)
	b = appendUint(b, "token", o.Token)
	b = appendUint(b, "ttl_ms", o.TtlMs)
	b = appendUint(b, "expires_in_ms", o.ExpiresInMs)
	x.ok(append(b, '}', '\n'))
}

// readUnusedKey checks the Idempotency-Key of a call that needs none.
func (x *exchange) readUnusedKey() bool {
	return len(x.r.Header["Idempotency-Key"]) == 0 || x.readKey()
}

func (x *exchange) proposeRenewals(rs []*fsmpb.Renewal) ([]*fsmpb.Outcome, bool) {
	reply, err := x.h.node.Renew(x.r.Context(), rs)
	if err == nil && len(reply.Outcome) != len(rs) {
		err = errors.New("the node answered another number of renewals than were asked for")
	}
	if err != nil {
		x.failed(err, true)
		return nil, false
	}
	x.setIndex(reply.Index)
	return reply.Outcome, true
}

// renewMany answers POST /v1/renew.
func (x *exchange) renewMany() {
	if !x.readUnusedKey() || !x.readJSON() {
		return
	}
	rs, e := x.h.limits.decodeRenewals(x.body)
	if !x.wrong(e) || x.elsewhere(true) {
		return
	}
	outcomes, ok := x.proposeRenewals(rs)
	if !ok {
		return
	}
	b := append(make([]byte, 0, 96*len(rs)+16), `{"results":[`...)
	for i, o := range outcomes {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = appendText(b, "name", rs[i].Name)
		b = appendUint(b, "token", rs[i].Token)
		if code := codeOf(o.Code); code != "" {
			b = appendText(b, "code", string(code))
			b = appendText(b, "reason", reasonOf(o.Reason))
		} else {
			b = appendUint(b, "expires_in_ms", o.ExpiresInMs)
		}
		b = append(b, '}')
	}
	x.ok(append(b, ']', '}', '\n'))
}

func (l *Limits) decodeRenewals(body []byte) (rs []*fsmpb.Renewal, e *invalidField) {
	e = decodeObject(body, func(d *decoder, name string) bool {
		if name != "leases" {
			return false
		}
		d.array(l.BatchRenewals, func(d *decoder) {
			rs = append(rs, l.decodeRenewal(d))
		})
		return true
	})
	if e == nil && len(rs) == 0 {
		e = &invalidField{"leases", "must have 1 to " + strconv.Itoa(l.BatchRenewals) + " elements"}
	}
	return rs, e
}

func (l *Limits) decodeRenewal(d *decoder) *fsmpb.Renewal {
	r := &fsmpb.Renewal{}
	hasName := false
	d.object(func(d *decoder, name string) bool {
		switch name {
		case "name":
			r.Name, hasName = d.text(), true
			if e := l.checkName("name", r.Name); e != nil {
				d.fail(e.detail)
			}
		case "token":
			r.Token = token(d)
		case "ttl_ms":
			r.TtlMs = l.ttl(d)
		default:
			return false
		}
		return true
	})
	if !hasName {
		d.failAt("name", "is required")
	}
	if r.Token == 0 {
		d.failAt("token", "is required")
	}
	return r
}

// release answers POST /v1/leases/{name}/release.
func (x *exchange) release() {
	if !x.readKey() || !x.readJSON() {
		return
	}
	c := &fsmpb.Release{Name: x.name}
	e := decodeObject(x.body, func(d *decoder, name string) bool {
		if name != "token" {
			return false
		}
		c.Token = token(d)
		return true
	})
	if e == nil && c.Token == 0 {
		e = &invalidField{"token", "is required"}
	}
	if !x.wrong(e) || x.elsewhere(true) {
		return
	}
	c.Request = x.request("/v1/leases/"+x.name+"/release", func(d *digest) { d.bytes(x.body) })
	reply, err := x.h.node.Release(x.r.Context(), x.received, c)
	if err != nil {
		x.failed(err, true)
		return
	}
	x.setIndex(reply.Index)
	if !x.done(reply.Outcome, reply.Waited, false) {
		return
	}
	b := appendBool(append(make([]byte, 0, 32), '{'), "released", reply.Outcome.Released)
	x.ok(append(b, '}', '\n'))
}
