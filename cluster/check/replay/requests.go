package replay

import (
	"net/http"
	"slices"

	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
)

// A requestID is what a key is for.
type requestID struct {
	cancel     bool // its key and scope are those of the acquire
	scope, key string
}

func (a *asked) id() requestID { return requestID{a.call == callCancel, a.scope, a.key} }

// clientRequest is what a client's command carries to be told apart by; nil: it is
// the cluster's own, or a renewal.
func clientRequest(c *fsmpb.Command) (r *fsmpb.Request, ofClient bool) {
	switch op := c.Op.(type) {
	case *fsmpb.Command_Acquire:
		return op.Acquire.Request, true
	case *fsmpb.Command_Release:
		return op.Release.Request, true
	case *fsmpb.Command_Write:
		return op.Write.Request, true
	case *fsmpb.Command_Cancel:
		return op.Cancel.Request, op.Cancel.Attempt == 0
	}
	return nil, false
}

func entryID(c *fsmpb.Command, r *fsmpb.Request) requestID {
	return requestID{c.GetCancel() != nil, r.GetPath(), r.GetKey()}
}

// mayHaveApplied is how many entries an exchange may have left at the most. A fault
// layer that repeats a request records each repetition as an exchange of its own.
func (a *asked) mayHaveApplied() int {
	switch {
	case !a.decidable() || a.Unsent:
		return 0
	case a.Status >= 300 && a.Status < 500 && !a.decided(), a.Status == http.StatusServiceUnavailable:
		return max(0, a.Sent-1) // it speaks of the last attempt
	}
	return max(1, a.Sent)
}

// A renewal is all that tells one renewal from another.
type renewal struct {
	name       string
	token, ttl uint64
}

func renewalOf(r *fsmpb.Renewal) renewal { return renewal{r.Name, r.Token, r.TtlMs} }

// requests counts what was asked and what entries there are.
type requests struct {
	allowed  map[requestID]int // entries of a request
	wants    map[requestID][]string
	byServer map[requestID]int // requests whose key no client knows, by what they want
	asks     map[string]bool   // all that is wanted, by anybody
	renewals map[renewal]int

	entries        map[requestID][]uint64 // indexes
	serverKeys     map[requestID]bool
	ofServer       map[requestID]int // distinct keys, by what they want
	renewed        map[renewal]int
	total, refused int
}

func newRequests() *requests {
	return &requests{
		allowed: map[requestID]int{}, wants: map[requestID][]string{}, byServer: map[requestID]int{}, asks: map[string]bool{},
		renewals: map[renewal]int{}, entries: map[requestID][]uint64{}, serverKeys: map[requestID]bool{},
		ofServer: map[requestID]int{}, renewed: map[renewal]int{},
	}
}

// ask notes an exchange.
func (q *requests) ask(a *asked) {
	if !a.decidable() {
		return
	}
	n := a.mayHaveApplied()
	if n == 0 {
		q.refused++
	}
	for _, r := range a.renewals {
		q.renewals[renewalOf(r)] += n
	}
	switch {
	case a.wants == "":
	case a.key == "":
		q.byServer[a.withoutKey()] += n
	default:
		id := a.id()
		q.allowed[id] += n
		if !slices.Contains(q.wants[id], a.wants) {
			q.wants[id] = append(q.wants[id], a.wants)
		}
	}
	q.asks[a.wants] = true
}

// withoutKey finds requests by what they want, where the key is not known.
func (a *asked) withoutKey() requestID { return requestID{a.call == callCancel, a.scope, a.wants} }

// decidedBadly is for a 400 or 403 that an entry has decided after all.
func (q *requests) decidedBadly(a *asked) {
	if a.key == "" {
		q.byServer[a.withoutKey()]++
	} else {
		q.allowed[a.id()]++
	}
}

// see notes an entry, and judges whether somebody asked for it.
func (q *requests) see(e check.Entry, phantom *check.Verdict) {
	for _, r := range e.Command.GetRenew().GetRenewals() {
		q.renewed[renewalOf(r)]++
		q.total++
	}
	r, ofClient := clientRequest(e.Command)
	if !ofClient {
		return
	}
	q.total++
	id, wants := entryID(e.Command, r), signature(e.Command)
	switch {
	case r.GetKey() == "": // a full table: it is not remembered
		if !q.asks[wants] {
			phantom.Find("entry %d: nobody asked for %v", e.Index, e.Command)
		}
	case q.wants[id] != nil:
		q.entries[id] = append(q.entries[id], e.Index)
		if !slices.Contains(q.wants[id], wants) {
			phantom.Find("entry %d: key %q of %s asked for something else than %v", e.Index, id.key, id.scope, e.Command)
		}
	case r.ServerMade:
		unknown := requestID{id.cancel, id.scope, wants}
		if !q.serverKeys[id] {
			q.serverKeys[id] = true
			q.ofServer[unknown]++
		}
		if _, ok := q.byServer[unknown]; !ok {
			phantom.Find("entry %d: nobody asked without a key for %v", e.Index, e.Command)
		}
	default:
		phantom.Find("entry %d: nobody sent key %q of %s: %v", e.Index, id.key, id.scope, e.Command)
	}
}

// judge compares the counts, at the end.
func (q *requests) judge(surplus, phantom *check.Verdict) {
	for id, at := range q.entries {
		if len(at) > q.allowed[id] {
			surplus.Find("key %q of %s has %d entries, %v, and %d exchanges that may have left one", id.key, id.scope, len(at), at, q.allowed[id])
		}
	}
	for id, n := range q.ofServer {
		if allowed, ok := q.byServer[id]; ok && n > allowed {
			surplus.Find("%s has %d requests without a client's key in the log that want the same, and %d exchanges that may have left one", id.scope, n, allowed)
		}
	}
	for r, n := range q.renewed {
		switch allowed, ok := q.renewals[r]; {
		case !ok:
			phantom.Find("nobody asked to renew %s with token %d for %d ms, which the log does %d times", r.name, r.token, r.ttl, n)
		case n > allowed:
			surplus.Find("%s with token %d is renewed for %d ms %d times, and %d exchanges may have asked so", r.name, r.token, r.ttl, n, allowed)
		}
	}
	slices.Sort(surplus.Findings) // not the order of maps
	slices.Sort(phantom.Findings)
	surplus.Count("%d attempts that surely left nothing", q.refused)
	phantom.Count("%d requests and renewals in the log", q.total)
}
