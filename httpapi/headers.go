package httpapi

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// readKey takes the request's Idempotency-Key, or makes one.
func (x *exchange) readKey() bool {
	given := x.r.Header[wire.HeaderIdempotencyKey]
	switch {
	case len(given) == 0:
		x.key, x.keyIsOurs = rand.Text(), true
		return true
	case len(given) > 1:
		return x.invalid(wire.HeaderIdempotencyKey, "must be given once")
	}
	key := given[0]
	if key == "" || len(key) > wire.MaxIdempotencyKey {
		return x.invalid(wire.HeaderIdempotencyKey, "must have 1 to 128 characters")
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return x.invalid(wire.HeaderIdempotencyKey, "must have visible ASCII characters only")
		}
	}
	x.key = key
	// Only another node may say so; a client that pretends shortens nothing but
	// the memory of its own key.
	x.keyIsOurs = x.forwarded() && len(x.r.Header[wire.HeaderServerMade]) > 0
	return true
}

// request identifies this mutation to the state machine (P11). digest is of what
// was asked, without the method and path, which are added here.
func (x *exchange) request(decodedPath string, asked func(d *digest)) *fsmpb.Request {
	d := &digest{sum: sha256.New()}
	scope := x.r.Method + " " + decodedPath
	d.text(scope)
	asked(d)
	return &fsmpb.Request{Key: x.key, Path: scope, Digest: d.sum.Sum(nil)[:16], ServerMade: x.keyIsOurs}
}

// digest hashes parts so that no two lists of parts look alike.
type digest struct{ sum hash.Hash }

func (d *digest) text(s string) {
	d.number(uint64(len(s)))
	_, _ = io.WriteString(d.sum, s) // a hash takes everything
}

func (d *digest) bytes(b []byte) {
	d.number(uint64(len(b)))
	_, _ = d.sum.Write(b)
}

func (d *digest) number(n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	_, _ = d.sum.Write(b[:])
}

// fence is what the headers of a guarded write say.
type fence struct {
	token     uint64
	guard     fsmpb.Guard
	lease     string
	ifVersion *uint64
}

// readFence takes the headers of a guarded write.
func (x *exchange) readFence() (f fence, ok bool) {
	tokens := x.r.Header[wire.HeaderFencingToken]
	if len(tokens) == 0 {
		return f, x.refuse(wire.CodeTokenRequired, "every write names the token of its lease in "+wire.HeaderFencingToken)
	}
	if f.token, ok = wholeNumber(tokens[0]); !ok || len(tokens) > 1 || f.token == 0 {
		return f, x.invalid(wire.HeaderFencingToken, "must be one whole number from 1 to 2^53-1")
	}
	if guard := x.r.Header[wire.HeaderFencingGuard]; len(guard) > 0 {
		if f.guard, ok = guardOf(guard[0]); !ok || len(guard) > 1 {
			return f, x.invalid(wire.HeaderFencingGuard, `must be "latest" or "held"`)
		}
	}
	if lease := x.r.Header[wire.HeaderFencingLease]; len(lease) > 0 {
		if len(lease) > 1 {
			return f, x.invalid(wire.HeaderFencingLease, "must be given once")
		}
		if !x.wrong(x.h.limits.checkName(wire.HeaderFencingLease, lease[0])) {
			return f, false
		}
		f.lease = lease[0]
	}
	f.ifVersion, ok = x.readCondition()
	return f, ok
}

func guardOf(s string) (fsmpb.Guard, bool) {
	switch s {
	case wire.GuardLatest:
		return fsmpb.Guard_GUARD_LATEST, true
	case wire.GuardHeld:
		return fsmpb.Guard_GUARD_HELD, true
	}
	return 0, false
}

// readCondition takes If-Match or If-None-Match; nil: neither.
func (x *exchange) readCondition() (version *uint64, ok bool) {
	match, none := x.r.Header["If-Match"], x.r.Header["If-None-Match"]
	switch {
	case len(match) > 0 && len(none) > 0:
		return nil, x.invalid("If-Match", "and If-None-Match exclude each other")
	case len(none) > 1 || len(none) == 1 && none[0] != "*":
		return nil, x.invalid("If-None-Match", "must be *")
	case len(none) == 1:
		return new(uint64), true
	case len(match) == 0:
		return nil, true
	}
	tag := match[0]
	if len(match) == 1 && len(tag) > 2 && tag[0] == '"' && tag[len(tag)-1] == '"' {
		if v, ok := wholeNumber(tag[1 : len(tag)-1]); ok {
			return &v, true
		}
	}
	return nil, x.invalid("If-Match", "must be one version in double quotes")
}

// askFence adds what the headers of a guarded write ask for, as they came.
func (x *exchange) askFence(d *digest) {
	for _, name := range [...]string{wire.HeaderFencingToken, wire.HeaderFencingGuard, wire.HeaderFencingLease, "If-Match", "If-None-Match"} {
		values := x.r.Header[name]
		d.number(uint64(len(values)))
		for _, v := range values {
			d.text(v)
		}
	}
}

// wholeNumber reads digits without a sign or leading zeros, up to fsm.MaxToken.
func wholeNumber(s string) (uint64, bool) {
	if s == "" || len(s) > 16 || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	var n uint64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + uint64(s[i]-'0')
	}
	return n, n <= fsm.MaxToken
}
