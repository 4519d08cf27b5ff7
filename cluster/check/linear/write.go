package linear

import (
	"encoding/base64"
	"encoding/json"
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

// hashed stands for a value. Bytes without a type are told to be octets.
func hashed(value, contentType string) uint64 {
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	h := fnv.New64a()
	h.Write([]byte(contentType + "\x00" + value))
	return h.Sum64()
}

func number(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

func unquoted(tag string) string { return strings.Trim(tag, `"`) }

// write reads a put, delete, fence or transaction. All attempts must tell one
// outcome (P11), which is what is left when they are compared without the text for
// people.
func (r *linReading) write(c *linCall) {
	if c.start == 0 {
		return
	}
	token, w, ok := writingOf(c)
	if !ok {
		return
	}
	op := &linOp{kind: linWrite, name: r.owner[token], token: token, call: c.start, ret: c.ret, from: c.from(), write: w}
	if len(c.told) == 0 {
		w.maybe = true
		w.id = int32(c.attempts[0].ID)
		if op.name != "" {
			r.writes = append(r.writes, r.add(op))
		}
		return
	}
	for i, x := range c.told {
		again := linWriting{ops: append([]linChange(nil), w.ops...)}
		into := &again
		if i == 0 {
			into = w
		}
		if !r.wrote(c, x, into) {
			return
		}
		if i > 0 && !sameOutcome(w, into) {
			r.v.Find("P11: the attempts %v of one %s of %q tell two outcomes", c.from(), c.verb, c.name)
		}
	}
	r.proved(op)
	r.add(op)
}

func sameOutcome(a, b *linWriting) bool {
	if a.version != b.version || a.code != b.code || a.refused != b.refused || a.opIndex != b.opIndex || value(a.watermark) != value(b.watermark) || value(a.mismatch) != value(b.mismatch) {
		return false
	}
	for i := range a.ops {
		x, y := &a.ops[i], &b.ops[i]
		if (x.deleted == nil) != (y.deleted == nil) || x.deleted != nil && *x.deleted != *y.deleted || value(x.watermark) != value(y.watermark) || value(x.version) != value(y.version) {
			return false
		}
	}
	return true
}

// proved notes what an answered write proves about its token, and that its version
// is its own.
func (r *linReading) proved(op *linOp) {
	w := op.write
	if w.code == "" {
		if op.name == "" {
			r.v.Find("P6: exchanges %v: a write was accepted with token %d, which no answer tells to be granted", op.from, op.token)
		}
		if other, ok := r.versions[w.version]; ok && w.version != 0 {
			r.v.Find("exchanges %v and %d were told one version, %d", op.from, other, w.version)
		}
		if w.version != 0 {
			r.versions[w.version] = op.from[0]
		}
	}
	if op.name == "" {
		return
	}
	t := r.name(op.name).token(op.token)
	switch {
	case w.code == "" && w.held:
		t.held = max(t.held, op.call)
	case w.refused == wire.ReasonNotHeld || w.refused == wire.ReasonNotOnRecord || w.refused == wire.ReasonNewerIssued:
		t.over = earlier(t.over, op.ret)
	}
}

// writingOf reads what was asked.
func writingOf(c *linCall) (token uint64, w *linWriting, ok bool) {
	x := c.attempts[0]
	if c.verb == "txn" {
		return transactionOf(x)
	}
	change := linChange{op: c.verb, key: c.name}
	if c.verb == "put" {
		change.value = hashed(string(x.Body), x.Header["Content-Type"])
	}
	if match := x.Header["If-Match"]; match != "" {
		change.ifVersion = new(number(unquoted(match)))
	} else if x.Header["If-None-Match"] != "" {
		change.ifVersion = new(uint64)
	}
	w = &linWriting{lease: x.Header[wire.HeaderFencingLease], held: x.Header[wire.HeaderFencingGuard] == wire.GuardHeld, ops: []linChange{change}}
	token = number(x.Header[wire.HeaderFencingToken])
	return token, w, token != 0
}

func transactionOf(x *check.Exchange) (token uint64, w *linWriting, ok bool) {
	var q wire.TxnRequest
	if json.Unmarshal(x.Body, &q) != nil || len(q.Ops) == 0 {
		return 0, nil, false
	}
	w = &linWriting{lease: q.Lease, held: q.Guard == wire.GuardHeld}
	for _, o := range q.Ops {
		change := linChange{op: o.Op, key: o.Key, ifVersion: o.IfVersion}
		if o.ValueBase64 != nil {
			b, _ := base64.StdEncoding.DecodeString(*o.ValueBase64)
			change.value = hashed(string(b), o.ContentType)
		}
		w.ops = append(w.ops, change)
	}
	return q.Token, w, true
}

// wrote reads one answer to a write into w.
func (r *linReading) wrote(c *linCall, x *check.Exchange, w *linWriting) bool {
	if x.Status != http.StatusOK {
		p := problemOf(x)
		w.code, w.refused, w.watermark, w.mismatch = p.Code, p.Reason, p.Watermark, p.Version
		if p.OpIndex != nil {
			w.opIndex = *p.OpIndex
		}
		known := p.Code == wire.CodeStaleToken || p.Code == wire.CodeTokenNotIssued || p.Code == wire.CodeVersionMismatch
		if !known || w.opIndex < 0 || w.opIndex >= len(w.ops) {
			r.strange(x, p)
			return false
		}
		return true
	}
	first := &w.ops[0]
	key := first.key
	switch c.verb {
	case "put":
		var a wire.Put
		if !r.answer(x, &a) {
			return false
		}
		key, w.version = a.Key, a.Version
		first.told, first.version, first.watermark = true, &a.Version, &a.Watermark
	case "delete":
		var a wire.Deleted
		if !r.answer(x, &a) {
			return false
		}
		key = a.Key
		first.told, first.deleted, first.watermark = true, &a.Deleted, &a.Watermark
	case "fence":
		var a wire.Fenced
		if !r.answer(x, &a) {
			return false
		}
		key = a.Key
		first.told, first.watermark = true, &a.Watermark
	case "txn":
		return r.wroteAll(x, w)
	}
	if key != first.key {
		r.v.Find("exchange %d: a write of key %q was answered with key %q", x.ID, first.key, key)
	}
	return true
}

func (r *linReading) wroteAll(x *check.Exchange, w *linWriting) bool {
	var a wire.Txn
	if !r.answer(x, &a) {
		return false
	}
	if len(a.Results) != len(w.ops) {
		r.v.Find("exchange %d: %d operations have %d results", x.ID, len(w.ops), len(a.Results))
		return false
	}
	w.version = a.Version
	for i := range a.Results {
		one, change := &a.Results[i], &w.ops[i]
		if one.Key != change.key || one.Op != change.op {
			r.v.Find("exchange %d: result %d is of %s %q", x.ID, i, one.Op, one.Key)
		}
		change.told, change.version, change.watermark = true, &one.Version, &one.Watermark
		if change.op == wire.OpDelete {
			change.deleted = &one.Deleted
		}
	}
	return true
}

// bindWrites finds the write of which no answer came, but whose value was read: if
// it is the only one that can have put it, its version and its latest end are known.
func (r *linReading) bindWrites() {
	versions := make(map[*linOp][]linVersion)
	for v := range r.seen {
		if _, ok := r.versions[v.version]; ok {
			continue
		}
		var only *linOp
		count := 0
		for _, op := range r.writes {
			for _, c := range op.write.ops {
				if c.op == wire.OpPut && c.key == v.key && c.value == v.value && op.token == v.token {
					only = op
					count++
				}
			}
		}
		if count == 1 {
			versions[only] = append(versions[only], v)
		}
	}
	for op, vs := range versions {
		var end int64
		one := true
		for _, v := range vs {
			one = one && v.version == vs[0].version
			end = earlier(end, r.seen[v])
		}
		if one && end >= op.call {
			op.write.maybe, op.write.version, op.ret = false, vs[0].version, end
			op.write.id = 0
		}
	}
}
