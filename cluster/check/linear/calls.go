package linear

import (
	"encoding/json"
	"net/http"
	"net/url"
	"sort"
	"strings"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

// linFate is what an attempt says of the call that it belongs to.
type linFate int

const (
	linUnknown   linFate = iota // it may have been applied
	linUnapplied                // it surely was not (P10), and tells nothing else
	linTold                     // its answer tells the outcome
)

// linTarget is what the path of a request names.
type linTarget struct {
	verb string // acquire, renew, release, cancel, lease, leases, renewmany, put, delete, fence, key, keys, txn
	name string // of the lease or key
}

// linCall is one thing that a client wanted done once, in one or several attempts.
type linCall struct {
	linTarget
	key      string
	attempts []*check.Exchange
	told     []*check.Exchange // those that tell the outcome, by their end
	maybe    bool              // an attempt is unknown
	// start is the first start of an attempt that may have been applied, ret the
	// first end of one that told; 0: there is none.
	start, ret int64

	token uint64 // that an acquire was granted; 0: none that anybody was told
	held  bool   // of an acquire: refused as held
}

func (c *linCall) from() (ids []int) {
	for _, x := range c.attempts {
		ids = append(ids, x.ID)
	}
	return ids
}

// targetOf reads the path; false: it is none of ours.
func targetOf(x *check.Exchange) (t linTarget, ok bool) {
	path, query, _ := strings.Cut(x.Path, "?")
	if q, _ := url.ParseQuery(query); q.Get("consistency") == "stale" {
		return t, false
	}
	switch x.Method + " " + path {
	case "POST /v1/renew":
		return linTarget{verb: "renewmany"}, true
	case "POST /v1/txn":
		return linTarget{verb: "txn"}, true
	case "GET /v1/leases":
		return linTarget{verb: "leases"}, true
	case "GET /v1/kv":
		return linTarget{verb: "keys"}, true
	}
	raw, isLease := strings.CutPrefix(path, "/v1/leases/")
	if !isLease {
		if raw, ok = strings.CutPrefix(path, "/v1/kv/"); !ok {
			return t, false
		}
	}
	switch x.Method {
	case http.MethodPost:
		i := strings.LastIndexByte(raw, '/')
		if i < 0 {
			return t, false
		}
		raw, t.verb = raw[:i], raw[i+1:]
	case http.MethodGet:
		t.verb = "key"
		if isLease {
			t.verb = "lease"
		}
	case http.MethodPut:
		t.verb = "put"
	case http.MethodDelete:
		t.verb = "delete"
	default:
		return t, false
	}
	name, err := url.PathUnescape(raw)
	t.name = name
	switch t.verb {
	case "acquire", "renew", "release", "cancel", "lease":
		return t, err == nil && isLease
	case "put", "delete", "fence", "key":
		return t, err == nil && !isLease
	}
	return t, false
}

// problemOf is the document of a refusal; its code is "" if there is none.
func problemOf(x *check.Exchange) (p wire.Problem) {
	if err := json.Unmarshal(x.Answer, &p); err != nil {
		return wire.Problem{}
	}
	return p
}

// fateOf judges an attempt at a mutation. Of one that the transport sent twice, an
// answer that it was not accepted speaks of the second sending alone.
func fateOf(x *check.Exchange) linFate {
	fate := fateOfAnswer(x)
	if fate == linUnapplied && x.Sent > 1 {
		return linUnknown
	}
	return fate
}

func fateOfAnswer(x *check.Exchange) linFate {
	switch {
	case x.Unsent:
		return linUnapplied
	case x.End == 0:
		return linUnknown
	}
	switch x.Status {
	case http.StatusOK:
		return linTold
	case http.StatusConflict, http.StatusPreconditionFailed, http.StatusUnprocessableEntity:
		switch problemOf(x).Code {
		case "":
			return linUnknown
		case wire.CodeKeyReused:
			return linUnapplied
		}
		return linTold
	case http.StatusServiceUnavailable:
		switch problemOf(x).Code {
		case wire.CodeNoLeader, wire.CodeOverloaded, wire.CodeShuttingDown:
			return linUnapplied
		}
		return linUnknown
	}
	if x.Status >= 300 && x.Status < 500 {
		return linUnapplied
	}
	return linUnknown
}

// callKey is the Idempotency-Key of an attempt; the server tells one of its own
// beside an unknown outcome, under which it can be repeated.
func callKey(x *check.Exchange) string {
	if x.Key != "" {
		return x.Key
	}
	return x.Told[wire.HeaderIdempotencyKey]
}

// asked is what must be the same in all attempts of a call.
func asked(t linTarget, x *check.Exchange) string {
	switch t.verb {
	case "acquire":
		a, err := acquireOf(x)
		if err != nil {
			break
		}
		a.WaitMS = 0
		b, _ := json.Marshal(a) // strings and numbers
		return string(b)
	case "put", "delete", "fence":
		parts := []string{string(x.Body)}
		for _, name := range [...]string{wire.HeaderFencingToken, wire.HeaderFencingGuard, wire.HeaderFencingLease, "If-Match", "If-None-Match"} {
			parts = append(parts, x.Header[name])
		}
		if t.verb == "put" {
			parts = append(parts, x.Header["Content-Type"])
		}
		return strings.Join(parts, "\x00")
	}
	return string(x.Body)
}

// acquireOf reads the body of an acquire, with its defaults filled in.
func acquireOf(x *check.Exchange) (a wire.AcquireRequest, err error) {
	err = json.Unmarshal(x.Body, &a)
	a.Slots, a.Take = max(a.Slots, 1), max(a.Take, 1)
	if a.TTLMS == 0 {
		a.TTLMS = 10_000
	}
	return a, err
}

// callsOf puts the attempts of each call together. Renewals and cancels are not
// remembered by their key, so each is a call, and so is each read.
func callsOf(h *check.History, v *check.Verdict) (calls []*linCall) {
	byKey := make(map[string]*linCall)
	scopes := make(map[string][]*check.Exchange)
	for _, x := range h.Exchanges {
		t, ok := targetOf(x)
		if !ok {
			continue
		}
		key := callKey(x)
		var c *linCall
		switch t.verb {
		case "acquire", "release", "put", "delete", "fence", "txn":
			if key != "" {
				scope := strings.Join([]string{t.verb, t.name, key}, "\x00")
				scopes[scope] = append(scopes[scope], x)
				scope += "\x00" + asked(t, x)
				if c = byKey[scope]; c == nil {
					c = &linCall{linTarget: t, key: key}
					byKey[scope] = c
					calls = append(calls, c)
				}
			}
		}
		if c == nil {
			c = &linCall{linTarget: t, key: key}
			calls = append(calls, c)
		}
		c.attempts = append(c.attempts, x)
	}
	for _, c := range calls {
		c.sum()
	}
	for _, attempts := range scopes {
		reusedFalsely(attempts, v)
	}
	return calls
}

func (c *linCall) sum() {
	for _, x := range c.attempts {
		fate := fateOf(x)
		if fate == linUnapplied {
			continue
		}
		if c.start == 0 || x.Start < c.start {
			c.start = x.Start
		}
		if fate == linUnknown {
			c.maybe = true
			continue
		}
		c.told = append(c.told, x)
		if c.ret == 0 || x.End < c.ret {
			c.ret = x.End
		}
	}
	sort.SliceStable(c.told, func(i, j int) bool { return c.told[i].End < c.told[j].End })
}

// reusedFalsely finds a key_reused of a key that had no other use. The attempts
// share verb, name and key.
func reusedFalsely(attempts []*check.Exchange, v *check.Verdict) {
	for _, x := range attempts {
		if x.Status != http.StatusUnprocessableEntity || problemOf(x).Code != wire.CodeKeyReused {
			continue
		}
		t, _ := targetOf(x)
		reused := false
		for _, y := range attempts {
			reused = reused || y.Start < x.End && asked(t, y) != asked(t, x)
		}
		if !reused {
			v.Find("P11: exchange %d was told that its Idempotency-Key belongs to another request, and there is none", x.ID)
		}
	}
}
