package linear

import (
	"maps"
	"math"
	"slices"
	"sort"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

// linReading turns a history into operations, and collects beside them what the
// answers prove about each token: that bounds when what nobody was told of can have
// happened, and keeps the search short.
type linReading struct {
	v      *check.Verdict
	ops    []*linOp
	names  map[string]*linName
	owner  map[uint64]string // the lease that a token was told to be of
	writes []*linOp          // without an answer
	// versions are those that acknowledged writes were told, seen those that were read.
	versions map[uint64]int
	seen     map[linVersion]int64
	end      int64   // of the history
	drift    float64 // of the nodes' clocks
	refusals []linRefusal
}

// linRefusal tells that a token holds nothing; if it was only guessed, perhaps not yet.
type linRefusal struct {
	of         *linToken
	start, end int64
}

// linName is what is known of one lease.
type linName struct {
	tokens map[uint64]*linToken
	order  []uint64 // the tokens that were told, ascending
	newer  []int64  // by when one above order[i] had been granted
	// unanswered are the starts of acquires that may have been granted without a word.
	unanswered []int64
	shared     bool
}

// linToken is what the answers prove about one token.
type linToken struct {
	granted  bool   // an acquire was told it
	label    string // of its holder
	seen     int64  // the first end of an answer that tells it; 0: none
	held     int64  // the last start of a call that found it held; it ended later
	promise  int64  // until when it was promised
	over     int64  // the first end of a call that found it over; 0: none
	released bool   // an answer tells when it ended
}

// linVersion is a version that was read, and of what.
type linVersion struct {
	key            string
	version, token uint64
	value          uint64
}

func newLinReading(v *check.Verdict) *linReading {
	return &linReading{
		v: v, names: make(map[string]*linName), owner: make(map[uint64]string),
		versions: make(map[uint64]int), seen: make(map[linVersion]int64),
	}
}

// read does the leases first: whose a token is must be known before a write is read.
func (r *linReading) read(h *check.History) {
	r.drift = h.Drift
	calls := callsOf(h, r.v)
	for _, x := range h.Exchanges {
		r.end = max(r.end, x.Start, x.End)
	}
	acquires := make(map[string][]*linCall)
	for _, c := range calls {
		if c.verb == "acquire" {
			r.acquire(c)
			acquires[c.name+"\x00"+c.key] = append(acquires[c.name+"\x00"+c.key], c)
		}
	}
	cancels := make(map[string][]*linCall)
	for _, c := range calls {
		switch c.verb {
		case "renew":
			r.renew(c)
		case "renewmany":
			r.renewMany(c)
		case "release":
			r.release(c)
		case "lease":
			r.seeLease(c.attempts[0], c.name)
		case "leases":
			r.seeLeases(c.attempts[0])
		case "cancel":
			cancels[c.name+"\x00"+c.key] = append(cancels[c.name+"\x00"+c.key], c)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(cancels)) {
		for _, c := range cancels[key] {
			r.cancel(c, acquires[key], len(cancels[key]) > 1)
		}
	}
	for _, f := range r.refusals {
		if f.of.seen != 0 && f.of.seen <= f.start {
			f.of.over = earlier(f.of.over, f.end)
		}
	}
	for _, n := range r.names {
		n.sort()
	}
	for _, c := range calls {
		switch c.verb {
		case "put", "delete", "fence", "txn":
			r.write(c)
		case "key":
			r.seeKey(c.attempts[0], c.name)
		case "keys":
			r.seeKeys(c.attempts[0])
		}
	}
	r.bindWrites()
	r.endings()
}

func (r *linReading) add(op *linOp) *linOp {
	r.ops = append(r.ops, op)
	return op
}

func (r *linReading) name(name string) *linName {
	n := r.names[name]
	if n == nil {
		n = &linName{tokens: make(map[uint64]*linToken)}
		r.names[name] = n
	}
	return n
}

func (n *linName) token(token uint64) *linToken {
	t := n.tokens[token]
	if t == nil {
		t = &linToken{}
		n.tokens[token] = t
	}
	return t
}

// told notes that an answer tells the token to be of the lease.
func (r *linReading) told(x *check.Exchange, name string, token uint64) *linToken {
	if token == 0 {
		return &linToken{} // nobody's
	}
	if other, ok := r.owner[token]; ok && other != name {
		r.v.Find("P2: exchange %d tells token %d to be of lease %q, others of %q", x.ID, token, name, other)
	}
	r.owner[token] = name
	t := r.name(name).token(token)
	t.seen = earlier(t.seen, x.End)
	return t
}

// labelled compares the holder that is told with the one who was granted the token.
func (r *linReading) labelled(x *check.Exchange, name string, token uint64, holder *string) {
	if t := r.name(name).tokens[token]; t != nil && t.granted && holder != nil && *holder != t.label {
		r.v.Find("exchange %d tells %q to hold lease %q with token %d, which %q was granted", x.ID, *holder, name, token, t.label)
	}
}

// toldLast notes the newest token that a refusal tells.
func (r *linReading) toldLast(x *check.Exchange, name string, p *wire.Problem) *uint64 {
	if p.LastToken != nil {
		r.told(x, name, *p.LastToken)
	}
	return p.LastToken
}

// earlier is the earlier of two instants; 0: none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// sort prepares newerThan and unansweredBy, once the leases are read.
func (n *linName) sort() {
	for token, t := range n.tokens {
		if t.seen != 0 {
			n.order = append(n.order, token)
		}
	}
	slices.Sort(n.order)
	slices.Sort(n.unanswered)
	n.newer = make([]int64, len(n.order))
	var next int64
	for i := len(n.order) - 1; i >= 0; i-- {
		n.newer[i] = next
		next = earlier(next, n.tokens[n.order[i]].seen)
	}
}

// newerThan is by when a token above this one had surely been granted, which ends
// it and all that it may write (P1); 0: it is not known that one was.
func (n *linName) newerThan(token uint64) int64 {
	i := sort.Search(len(n.order), func(i int) bool { return n.order[i] > token })
	switch {
	case i > 0:
		return n.newer[i-1]
	case len(n.order) > 0:
		return earlier(n.newer[0], n.tokens[n.order[0]].seen)
	}
	return 0
}

// unansweredBy is how many acquires may have been granted by then without a word.
func (n *linName) unansweredBy(at int64) int {
	return sort.Search(len(n.unanswered), func(i int) bool { return n.unanswered[i] > at })
}

// clockGrain is what a promise may be short by: the cluster's clock is read in whole
// milliseconds, rounded down.
const clockGrain = int64(1_000_000)

// until is the end of a time that was promised to a request.
func (r *linReading) until(x *check.Exchange, ms uint64) int64 {
	return x.Start + int64(float64(ms)*(1-r.drift)*float64(milli))
}

// endings adds the grants that only others saw, and the end of every lease that no
// answer tells. Both are bounded by what was seen.
func (r *linReading) endings() {
	for _, name := range slices.Sorted(maps.Keys(r.names)) {
		n := r.names[name]
		for _, token := range n.order {
			t := n.tokens[token]
			first := t.held
			if !t.granted {
				op := &linOp{kind: linGrantSeen, name: name, token: token, ret: t.seen, limit: n.unansweredBy(t.seen)}
				if op.limit == 0 {
					r.v.Find("token %d of lease %q was told, and no acquire can have been granted it", token, name)
					continue
				}
				op.call = n.unanswered[0]
				first = max(first, op.call)
				r.add(op)
			}
			if t.released {
				continue
			}
			op := &linOp{kind: linExpire, name: name, token: token, call: max(first, t.promise-clockGrain)}
			if op.call > r.end {
				continue // it outlived the run
			}
			op.ret = earlier(t.over, n.newerThan(token))
			r.add(op)
		}
	}
	possible := r.ops[:0]
	for _, op := range r.ops {
		if r.bound(op) {
			possible = append(possible, op)
		}
	}
	r.ops = possible
}

// bound gives an operation its latest end. What would do nothing after a certain
// instant may as well have done nothing before; false: it did nothing at all.
func (r *linReading) bound(op *linOp) bool {
	n := r.names[op.name]
	if op.ret == 0 {
		op.ret = math.MaxInt64
	}
	if op.ret == math.MaxInt64 && n != nil && (op.kind == linWrite || op.kind == linEndMaybe) {
		over := n.newerThan(op.token)
		if t := n.tokens[op.token]; t != nil && op.kind == linEndMaybe {
			over = earlier(over, t.over)
			op.call = max(op.call, t.held)
		}
		if over != 0 {
			op.ret = over
		}
		if over != 0 && over < op.call {
			return false
		}
	}
	op.ret = max(min(op.ret, r.end+1), op.call)
	if n != nil && op.kind == linWrite {
		op.limit = n.unansweredBy(op.ret)
	}
	return true
}
