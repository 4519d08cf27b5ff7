package linear

import (
	"encoding/json"
	"net/http"
	"slices"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

const milli = int64(1_000_000)

// answer reads the document of a success; one that is none is a finding.
func (r *linReading) answer(x *check.Exchange, into any) bool {
	if err := json.Unmarshal(x.Answer, into); err != nil {
		r.v.Find("exchange %d: %s %s was answered with what is no answer: %v", x.ID, x.Method, x.Path, err)
		return false
	}
	return true
}

// strange is an answer that the call cannot get.
func (r *linReading) strange(x *check.Exchange, p wire.Problem) {
	r.v.Find("exchange %d: %s %s was answered %d %s", x.ID, x.Method, x.Path, x.Status, p.Code)
}

// linAcquired is what the attempts of an acquire told together.
type linAcquired struct {
	granted   []*check.Exchange // 200 or lease_lost, with its token
	lost      []*check.Exchange // lease_lost, or cancelled after a grant
	previous  *uint64
	taken     *wire.Problem
	takenAt   *check.Exchange
	cancelled []*check.Exchange
}

// acquire reads all attempts of one acquire. They must tell one outcome (P11): a
// grant may be told as lost later, or as cancelled; the other refusals stand alone.
func (r *linReading) acquire(c *linCall) {
	n := r.name(c.name)
	if c.start == 0 {
		return
	}
	asked, err := acquireOf(c.attempts[0])
	if err != nil {
		return // it was not one, and nothing came of it
	}
	n.shared = n.shared || asked.Slots > 1
	var told linAcquired
	for _, x := range c.told {
		if x.Status == http.StatusOK {
			r.granted(c, x, &told, asked.Holder)
		} else {
			r.acquireRefused(c, x, &told)
		}
	}
	if len(told.granted) > 0 && told.taken != nil || len(told.cancelled) > 0 && told.taken != nil {
		r.v.Find("P11: the attempts %v of one acquire of %q tell two outcomes", c.from(), c.name)
	}
	switch {
	case len(told.granted) > 0:
		t := n.token(c.token)
		if t.granted {
			r.v.Find("P2: token %d of lease %q was granted twice, the second time to exchanges %v", c.token, c.name, c.from())
		}
		t.granted, t.label = true, asked.Holder
		r.add(&linOp{kind: linAcquire, name: c.name, token: c.token, call: c.start, ret: t.seenBy(told.granted), from: c.from(), last: told.previous})
		r.toldAgain(c, &told)
	case told.taken != nil:
		c.held = true
		r.add(r.takenOp(c, &told))
	case len(c.told) == 0 || len(told.cancelled) > 0:
		n.unanswered = append(n.unanswered, c.start)
	}
}

// seenBy is the first end of these.
func (t *linToken) seenBy(xs []*check.Exchange) (end int64) {
	for _, x := range xs {
		end = earlier(end, x.End)
	}
	return end
}

func (r *linReading) granted(c *linCall, x *check.Exchange, told *linAcquired, holder string) {
	var a wire.Acquired
	if !r.answer(x, &a) {
		return
	}
	if a.Token == 0 || a.Name != c.name || a.Holder != holder {
		r.v.Find("exchange %d: the acquire of %q by %q was answered with lease %q, holder %q, token %d", x.ID, c.name, holder, a.Name, a.Holder, a.Token)
		return
	}
	r.name(c.name).shared = r.name(c.name).shared || a.Slots > 1
	r.one(c, x, a.Token)
	if told.previous != nil && *told.previous != a.PreviousToken {
		r.v.Find("P11: the attempts %v of one acquire of %q tell two previous tokens", c.from(), c.name)
	}
	told.previous = &a.PreviousToken
	told.granted = append(told.granted, x)
	t := r.told(x, c.name, a.Token)
	t.held = max(t.held, x.Start)
	t.promise = max(t.promise, r.until(x, a.WaitedMS+a.ExpiresInMS))
	if a.PreviousToken != 0 {
		p := r.told(x, c.name, a.PreviousToken)
		p.over = earlier(p.over, x.End)
	}
}

// one checks that an acquire has one token.
func (r *linReading) one(c *linCall, x *check.Exchange, token uint64) {
	if c.token != 0 && c.token != token {
		r.v.Find("P11: exchange %d tells token %d for an acquire of %q that was told %d before", x.ID, token, c.name, c.token)
	}
	c.token = token
}

func (r *linReading) acquireRefused(c *linCall, x *check.Exchange, told *linAcquired) {
	p := problemOf(x)
	switch p.Code {
	case wire.CodeLeaseLost:
		if p.Token == 0 {
			r.strange(x, p)
			return
		}
		r.one(c, x, p.Token)
		told.granted, told.lost = append(told.granted, x), append(told.lost, x)
		t := r.told(x, c.name, p.Token)
		t.over = earlier(t.over, x.End)
		r.toldLast(x, c.name, &p)
	case wire.CodeCancelled:
		told.cancelled = append(told.cancelled, x)
	case wire.CodeLeaseHeld:
		if told.taken != nil && told.taken.Token != p.Token {
			r.v.Find("P11: the attempts %v of one acquire of %q were refused for two holders", c.from(), c.name)
		}
		if told.taken == nil {
			told.taken, told.takenAt = &p, x
		}
	case wire.CodeSlotsDiffer:
		r.name(c.name).shared = true
	default:
		r.strange(x, p)
	}
}

func (r *linReading) takenOp(c *linCall, told *linAcquired) *linOp {
	p := told.taken
	t := r.told(told.takenAt, c.name, p.Token)
	r.labelled(told.takenAt, c.name, p.Token, p.Holder)
	due := value(p.ExpiresInMS) == 0
	if !due {
		t.held = max(t.held, c.start)
	}
	// One whose own wait ends in the entry that ends the lease is refused, too; and
	// a repetition tells how many wait now.
	free := value(p.GraceMS) > 0 || value(p.QueueLength) > 0 || len(c.attempts) > 1
	for _, x := range c.attempts {
		a, _ := acquireOf(x)
		free = free || a.WaitMS > 0
	}
	return &linOp{
		kind: linIsTaken, name: c.name, token: p.Token, call: c.start, ret: c.ret, from: c.from(), due: due, ok: free,
	}
}

// toldAgain adds what the repetitions of a granted acquire say of its token: a 200
// that it held at that very attempt, a refusal that it was over.
func (r *linReading) toldAgain(c *linCall, told *linAcquired) {
	for _, x := range told.granted {
		if len(c.attempts) > 1 && x.Status == http.StatusOK {
			r.add(&linOp{kind: linIsHeld, name: c.name, token: c.token, call: x.Start, ret: x.End, from: []int{x.ID}})
		}
	}
	for _, x := range told.lost {
		p := problemOf(x)
		r.add(&linOp{kind: linIsLost, name: c.name, token: c.token, call: x.Start, ret: x.End, from: []int{x.ID}, last: p.LastToken, reason: p.Reason, was: true})
	}
	for _, x := range told.cancelled {
		t := r.name(c.name).token(c.token)
		t.over = earlier(t.over, x.End)
		r.add(&linOp{kind: linIsLost, name: c.name, token: c.token, call: x.Start, ret: x.End, from: []int{x.ID}, was: true})
	}
}

func (r *linReading) renew(c *linCall) {
	x := c.attempts[0]
	var q wire.RenewRequest
	if fateOf(x) != linTold || json.Unmarshal(x.Body, &q) != nil {
		return
	}
	if x.Status == http.StatusOK {
		var a wire.Renewed
		if r.answer(x, &a) {
			r.renewed(x, c.name, q.Token, a.ExpiresInMS)
		}
		return
	}
	p := problemOf(x)
	if p.Code != wire.CodeLeaseLost {
		r.strange(x, p)
		return
	}
	r.notRenewed(x, c.name, q.Token, p.Reason, r.toldLast(x, c.name, &p))
}

func (r *linReading) renewMany(c *linCall) {
	x := c.attempts[0]
	var q wire.RenewManyRequest
	var a wire.RenewedMany
	if x.Status != http.StatusOK || json.Unmarshal(x.Body, &q) != nil || !r.answer(x, &a) {
		return
	}
	if len(a.Results) != len(q.Leases) {
		r.v.Find("exchange %d: %d renewals have %d answers", x.ID, len(q.Leases), len(a.Results))
		return
	}
	for i, one := range a.Results {
		switch one.Code {
		case "":
			r.renewed(x, q.Leases[i].Name, q.Leases[i].Token, one.ExpiresInMS)
		case wire.CodeLeaseLost:
			r.notRenewed(x, q.Leases[i].Name, q.Leases[i].Token, one.Reason, nil)
		}
	}
}

func (r *linReading) renewed(x *check.Exchange, name string, token, expiresInMS uint64) {
	t := r.told(x, name, token)
	t.held = max(t.held, x.Start)
	t.promise = max(t.promise, r.until(x, expiresInMS))
	r.add(&linOp{kind: linIsHeld, name: name, token: token, call: x.Start, ret: x.End, from: []int{x.ID}})
}

func (r *linReading) notRenewed(x *check.Exchange, name string, token uint64, reason string, last *uint64) {
	r.refusals = append(r.refusals, linRefusal{r.name(name).token(token), x.Start, x.End})
	r.add(&linOp{kind: linIsLost, name: name, token: token, call: x.Start, ret: x.End, from: []int{x.ID}, last: last, reason: reason})
}

func (r *linReading) release(c *linCall) {
	var q wire.ReleaseRequest
	if c.start == 0 || json.Unmarshal(c.attempts[0].Body, &q) != nil {
		return
	}
	var outcomes []bool
	for _, x := range c.told {
		var a wire.Released
		if x.Status != http.StatusOK {
			r.strange(x, problemOf(x))
			continue
		}
		if r.answer(x, &a) {
			outcomes = append(outcomes, a.Released)
		}
	}
	if len(outcomes) == 0 {
		r.add(&linOp{kind: linEndMaybe, name: c.name, token: q.Token, call: c.start, from: c.from()})
		return
	}
	if slices.Contains(outcomes, !outcomes[0]) {
		r.v.Find("P11: the attempts %v of one release of %q tell two outcomes", c.from(), c.name)
	}
	t := r.name(c.name).token(q.Token)
	op := &linOp{kind: linIsLost, name: c.name, token: q.Token, call: c.start, ret: c.ret, from: c.from()}
	if outcomes[0] {
		r.told(c.told[0], c.name, q.Token)
		t.over = earlier(t.over, c.ret)
		t.held, t.released = max(t.held, c.start), true
		op.kind = linRelease
	} else {
		r.refusals = append(r.refusals, linRefusal{t, c.start, c.ret})
	}
	r.add(op)
}
