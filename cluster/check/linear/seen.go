package linear

import (
	"encoding/json"
	"net/http"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

// cancel reads one cancel of an acquire, which may have been called under several
// keys' worth of requests; only what it says of a granted token is an operation.
// several: it was cancelled more than once, so a later one finds it done.
func (r *linReading) cancel(c *linCall, acquires []*linCall, several bool) {
	x := c.attempts[0]
	if c.start == 0 || len(acquires) != 1 {
		return
	}
	of := acquires[0]
	var a wire.Cancelled
	told := len(c.told) > 0
	if told && (x.Status != http.StatusOK || !r.answer(x, &a)) {
		return
	}
	if told && a.Cancelled && of.held {
		r.v.Find("P10: exchange %d says that an acquire of %q is cancelled, exchanges %v that it was refused as held", x.ID, c.name, of.from())
	}
	if of.token == 0 {
		return
	}
	if !told {
		r.add(&linOp{kind: linEndMaybe, name: c.name, token: of.token, call: c.start, from: c.from()})
		return
	}
	t := r.name(c.name).token(of.token)
	t.over = earlier(t.over, x.End)
	// A leader cancels by itself what no attempt was there to be told of.
	again := several || of.maybe
	if a.Cancelled && !again {
		t.held, t.released = max(t.held, x.Start), true
	}
	r.add(&linOp{kind: linCancel, name: c.name, token: of.token, call: x.Start, ret: x.End, from: c.from(), ok: a.Cancelled, again: again})
}

// seeLease reads a linearizable read of one lease.
func (r *linReading) seeLease(x *check.Exchange, name string) {
	switch {
	case x.End == 0:
	case x.Status == http.StatusNotFound:
		r.add(&linOp{kind: linSeeLease, name: name, call: x.Start, ret: x.End, from: []int{x.ID}, absent: true})
	case x.Status == http.StatusOK:
		var l wire.Lease
		if !r.answer(x, &l) {
			return
		}
		if l.Name != name {
			r.v.Find("exchange %d: a read of lease %q was answered with %q", x.ID, name, l.Name)
			return
		}
		r.sawLease(x, &l)
	}
}

func (r *linReading) sawLease(x *check.Exchange, l *wire.Lease) {
	n := r.name(l.Name)
	n.shared = n.shared || l.Slots > 1
	last := r.told(x, l.Name, l.LastToken)
	op := &linOp{kind: linSeeLease, name: l.Name, token: l.Token, call: x.Start, ret: x.End, from: []int{x.ID}, last: &l.LastToken, ok: l.Held}
	if l.Held {
		t := r.told(x, l.Name, l.Token)
		r.labelled(x, l.Name, l.Token, &l.Holder)
		if op.due = l.ExpiresInMS == 0; !op.due {
			t.held = max(t.held, x.Start)
		}
	} else {
		last.over = earlier(last.over, x.End)
	}
	r.add(op)
}

// seeLeases takes a list apart: that its leases were read at one instant, and that
// none is missing, is left to Replay.
func (r *linReading) seeLeases(x *check.Exchange) {
	var page wire.Leases
	if x.End == 0 || x.Status != http.StatusOK || !r.answer(x, &page) {
		return
	}
	for i := range page.Leases {
		r.sawLease(x, &page.Leases[i])
	}
}

// seeKeys does the same with keys.
func (r *linReading) seeKeys(x *check.Exchange) {
	var page wire.Keys
	if x.End == 0 || x.Status != http.StatusOK || !r.answer(x, &page) {
		return
	}
	for i := range page.Keys {
		k := &page.Keys[i]
		r.sawKey(x, &linKeyRead{key: k.Key, version: k.Version, token: k.Token, watermark: k.Watermark}, k)
	}
}

// seeKey reads a linearizable read of one key, in either form.
func (r *linReading) seeKey(x *check.Exchange, key string) {
	read := &linKeyRead{key: key, watermark: number(x.Told[wire.HeaderWatermark])}
	switch {
	case x.End == 0:
	case x.Status == http.StatusNotFound:
		if p := problemOf(x); value(p.Watermark) != read.watermark {
			r.v.Find("exchange %d: head and body of the answer tell two watermarks of key %q", x.ID, key)
		}
		r.add(&linOp{kind: linSeeKey, call: x.Start, ret: x.End, from: []int{x.ID}, absent: true, read: read})
	case x.Status == http.StatusOK:
		read.version, read.token = number(unquoted(x.Told["Etag"])), number(x.Told[wire.HeaderFencingToken])
		var k *wire.Key
		if x.Header["Accept"] == "application/json" {
			k = new(wire.Key)
			if !r.answer(x, k) {
				return
			}
			if k.Key != key || k.Version != read.version || k.Token != read.token || k.Watermark != read.watermark {
				r.v.Find("exchange %d: head and body of the answer differ, or it is not key %q", x.ID, key)
			}
		} else {
			read.value = new(hashed(string(x.Answer), x.Told["Content-Type"]))
		}
		r.sawKey(x, read, k)
	}
}

func (r *linReading) sawKey(x *check.Exchange, read *linKeyRead, k *wire.Key) {
	if k != nil && k.ValueBase64 != nil {
		var b []byte
		quoted, _ := json.Marshal(*k.ValueBase64)
		if json.Unmarshal(quoted, &b) != nil {
			r.v.Find("exchange %d: the value of key %q is not base64", x.ID, read.key)
			return
		}
		read.value = new(hashed(string(b), k.ContentType))
	}
	if read.value != nil {
		seen := linVersion{read.key, read.version, read.token, *read.value}
		r.seen[seen] = earlier(r.seen[seen], x.End)
	}
	r.add(&linOp{kind: linSeeKey, call: x.Start, ret: x.End, from: []int{x.ID}, read: read})
}
