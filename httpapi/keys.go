package httpapi

import (
	"net/http"
	"strconv"

	"fencepost/cluster"
	"fencepost/fsm/fsmpb"
)

// put answers PUT /v1/kv/{key}.
func (x *exchange) put() {
	f, ok := x.readFence()
	if !ok || !x.readKey() {
		return
	}
	var contentType string
	if given := x.r.Header["Content-Type"]; len(given) > 0 {
		contentType = given[0]
		if len(given) > 1 || !storable(contentType) {
			x.invalid("Content-Type", "must be given once and be at most "+strconv.Itoa(maxContentType)+" bytes of printable ASCII")
			return
		}
	}
	if !x.readBody(x.h.limits.ValueBytes) {
		return
	}
	op := &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_PUT, Key: x.name, Value: x.body, ContentType: contentType}
	reply, ok := x.writeOne("/v1/kv/"+x.name, f, op, contentType)
	if !ok {
		return
	}
	b := append(make([]byte, 0, 96), '{')
	b = appendText(b, "key", x.name)
	b = appendUint(b, "version", reply.Outcome.Version)
	b = appendUint(b, "watermark", reply.Outcome.Ops[0].Watermark)
	x.ok(append(b, '}', '\n'))
}

// storable says whether a Content-Type can be kept and given back in a header.
func storable(s string) bool {
	if len(s) > maxContentType {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// remove answers DELETE /v1/kv/{key}.
func (x *exchange) remove() {
	f, ok := x.readFence()
	if !ok || !x.readKey() || !x.readNoBody() {
		return
	}
	op := &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_DELETE, Key: x.name}
	reply, ok := x.writeOne("/v1/kv/"+x.name, f, op, "")
	if !ok {
		return
	}
	b := append(make([]byte, 0, 96), '{')
	b = appendText(b, "key", x.name)
	b = appendBool(b, "deleted", reply.Outcome.Ops[0].Deleted)
	b = appendUint(b, "watermark", reply.Outcome.Ops[0].Watermark)
	x.ok(append(b, '}', '\n'))
}

// raise answers POST /v1/kv/{key}/fence.
func (x *exchange) raise() {
	f, ok := x.readFence()
	if !ok || !x.readKey() || !x.readNoBody() {
		return
	}
	op := &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_FENCE, Key: x.name}
	reply, ok := x.writeOne("/v1/kv/"+x.name+"/fence", f, op, "")
	if !ok {
		return
	}
	b := append(make([]byte, 0, 96), '{')
	b = appendText(b, "key", x.name)
	b = appendUint(b, "watermark", reply.Outcome.Ops[0].Watermark)
	x.ok(append(b, '}', '\n'))
}

// writeOne proposes a write of one key and answers everything but success.
func (x *exchange) writeOne(path string, f fence, op *fsmpb.WriteOp, contentType string) (reply cluster.Reply[*fsmpb.Outcome], ok bool) {
	if x.elsewhere(true) {
		return reply, false
	}
	op.IfVersion = f.ifVersion
	c := &fsmpb.Write{
		Token: f.token, Guard: f.guard, Lease: f.lease, Ops: []*fsmpb.WriteOp{op},
		Request: x.request(path, func(d *digest) {
			x.askFence(d)
			if x.r.Method == http.MethodPut { // elsewhere it is not looked at
				d.text(contentType)
			}
			d.bytes(x.body)
		}),
	}
	return x.write(c, false)
}

// write proposes a write and answers everything but success.
func (x *exchange) write(c *fsmpb.Write, ofTxn bool) (reply cluster.Reply[*fsmpb.Outcome], ok bool) {
	count := len(c.Ops)
	reply, err := x.h.node.Write(x.r.Context(), x.received, c)
	if err != nil {
		x.failed(err, true)
		return reply, false
	}
	x.setIndex(reply.Index)
	if !x.done(reply.Outcome, reply.Waited, ofTxn) {
		return reply, false
	}
	if len(reply.Outcome.Ops) != count {
		x.failed(errOps, true)
		return reply, false
	}
	return reply, true
}
