package httpapi

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"

	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// errOps would be a bug: a write that was done must say so of each operation.
var errOps = errors.New("the outcome of a write lacks operations")

// txn answers POST /v1/txn.
func (x *exchange) txn() {
	if !x.readKey() || !x.readJSON() {
		return
	}
	c, large, e := x.h.limits.decodeTxn(x.body)
	if !x.wrong(e) {
		return
	}
	if c.Token == 0 {
		x.problem(&wire.Problem{Code: wire.CodeTokenRequired, Field: "token", Detail: "every write names the token of its lease in token"})
		return
	}
	if large != "" {
		x.tooLarge(large, x.h.limits.ValueBytes)
		return
	}
	if x.elsewhere(true) {
		return
	}
	c.Request = x.request("/v1/txn", func(d *digest) {
		x.askFence(d)
		d.bytes(x.body)
	})
	ops := c.Ops
	reply, ok := x.write(c, true)
	if !ok {
		return
	}
	b := append(make([]byte, 0, 96*len(ops)+48), '{')
	b = appendUint(b, "version", reply.Outcome.Version)
	b = append(appendName(b, "results"), '[')
	for i, r := range reply.Outcome.Ops {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = appendText(b, "op", opName(r.Kind))
		b = appendText(b, "key", r.Key)
		b = appendUint(b, "version", r.Version)
		b = appendBool(b, "deleted", r.Deleted)
		b = appendUint(b, "watermark", r.Watermark)
		b = append(b, '}')
	}
	x.ok(append(b, ']', '}', '\n'))
}

func opName(k fsmpb.WriteOp_Kind) string {
	switch k {
	case fsmpb.WriteOp_KIND_PUT:
		return wire.OpPut
	case fsmpb.WriteOp_KIND_DELETE:
		return wire.OpDelete
	case fsmpb.WriteOp_KIND_FENCE:
		return wire.OpFence
	}
	return wire.OpCheck
}

func opKind(name string) (fsmpb.WriteOp_Kind, bool) {
	switch name {
	case wire.OpPut:
		return fsmpb.WriteOp_KIND_PUT, true
	case wire.OpDelete:
		return fsmpb.WriteOp_KIND_DELETE, true
	case wire.OpFence:
		return fsmpb.WriteOp_KIND_FENCE, true
	case wire.OpCheck:
		return fsmpb.WriteOp_KIND_CHECK, true
	}
	return 0, false
}

// decodeTxn reads the body of a transaction. Token is 0 if there was none; large
// names a value above the limit.
func (l *Limits) decodeTxn(body []byte) (c *fsmpb.Write, large string, e *invalidField) {
	c = &fsmpb.Write{}
	seen := make(map[string]bool)
	e = decodeObject(body, func(d *decoder, name string) bool {
		switch name {
		case "token":
			c.Token = token(d)
		case "lease":
			c.Lease = d.text()
			if e := l.checkName("lease", c.Lease); e != nil {
				d.fail(e.detail)
			}
		case "guard":
			var ok bool
			if c.Guard, ok = guardOf(d.text()); !ok {
				d.fail(`must be "latest" or "held"`)
			}
		case "ops":
			d.array(l.TxnOps, func(d *decoder) {
				op := l.decodeOp(d)
				if seen[op.Key] {
					d.failAt("key", "is another operation's too")
				}
				seen[op.Key] = true
				if len(op.Value) > l.ValueBytes && large == "" {
					large = "ops[" + strconv.Itoa(len(c.Ops)) + "].value_base64"
				}
				c.Ops = append(c.Ops, op)
			})
		default:
			return false
		}
		return true
	})
	if e == nil && len(c.Ops) == 0 {
		e = &invalidField{"ops", "must have 1 to " + strconv.Itoa(l.TxnOps) + " elements"}
	}
	return c, large, e
}

// decodeOp reads one operation, and refuses fields that it has no use for.
func (l *Limits) decodeOp(d *decoder) *fsmpb.WriteOp {
	op := &fsmpb.WriteOp{}
	hasOp, hasKey, hasValue, hasType := false, false, false, false
	d.object(func(d *decoder, name string) bool {
		switch name {
		case "op":
			var ok bool
			if op.Kind, ok = opKind(d.text()); !ok {
				d.fail(`must be "put", "delete", "fence" or "check"`)
			}
			hasOp = true
		case "key":
			op.Key, hasKey = d.text(), true
			if e := l.checkName("key", op.Key); e != nil {
				d.fail(e.detail)
			}
		case "value_base64":
			op.Value, hasValue = decodeBase64(d), true
		case "content_type":
			op.ContentType, hasType = d.text(), true
			if !storable(op.ContentType) {
				d.fail("must be at most " + strconv.Itoa(maxContentType) + " bytes of printable ASCII")
			}
		case "if_version":
			op.IfVersion = new(d.whole())
		default:
			return false
		}
		return true
	})
	put := op.Kind == fsmpb.WriteOp_KIND_PUT
	switch {
	case !hasOp:
		d.failAt("op", "is required")
	case !hasKey:
		d.failAt("key", "is required")
	case put && !hasValue:
		d.failAt("value_base64", "is required of a put")
	case !put && hasValue:
		d.failAt("value_base64", "belongs to a put only")
	case !put && hasType:
		d.failAt("content_type", "belongs to a put only")
	case op.Kind == fsmpb.WriteOp_KIND_CHECK && op.IfVersion == nil:
		d.failAt("if_version", "is required of a check")
	}
	return op
}

// decodeBase64 takes standard base64 with padding, in its one canonical form:
// the library's would skip line ends.
func decodeBase64(d *decoder) []byte {
	s := d.text()
	value, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || strings.ContainsAny(s, "\r\n") {
		d.fail("must be standard base64 with padding")
	}
	return value
}
