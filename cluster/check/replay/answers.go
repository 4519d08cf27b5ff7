package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
	"fencepost/fsm/model"
	"fencepost/httpapi/wire"
)

// judgeDecided finds the outcome that an answer rests on: of the attempt's own entry,
// or, if it waited, of the entry that decided its request.
func (r *replay) judgeDecided(a *asked, e check.Entry, own *attempt, o *fsmpb.Outcome, events []model.Event) {
	// One that queues its request decides nothing about it; but it may drop a twin
	// whose wait is over, and whose key nobody knows either.
	twin := a.key == "" && o.Code == fsmpb.Code_CODE_QUEUED
	if own != nil && !twin && r.isOwn(a, e, own) {
		r.compare(a, o, o.Index != e.Index || o.Attempt > 1)
		return
	}
	// An entry may decide several requests that want the same and whose keys nobody
	// knows; a must have been told of one of them.
	var decided *fsmpb.Outcome
	for _, ev := range events {
		if d := ev.Decided; d != nil && a.call == callAcquire && r.waited(a, d.ID) {
			if decided = d.Outcome; a.differs(decided) == "" {
				return
			}
		}
	}
	if decided != nil {
		r.compare(a, decided, decided.Attempt > 1)
		return
	}
	r.kept.Find("%v, key %q: that entry is of something else, %v", a, a.key, e.Command)
}

// waited says whether the request with this id waited, and a is an attempt at it.
func (r *replay) waited(a *asked, id model.ID) bool {
	attempts := r.own[requestID{false, a.scope, a.key}]
	if a.key == "" {
		attempts = r.unkeyed[a.withoutKey()]
	}
	return slices.ContainsFunc(attempts, func(t attempt) bool {
		return t.id == id && t.wants == a.wants && t.code == fsmpb.Code_CODE_QUEUED
	})
}

// positions are where each renewal stands in its entry.
func positions(rs []*fsmpb.Renewal) map[renewal][]int {
	at := make(map[renewal][]int, len(rs))
	for i, r := range rs {
		at[renewalOf(r)] = append(at[renewalOf(r)], i)
	}
	return at
}

// judgeRenewals looks for those that were asked for, one behind the other, in the
// entry; there may be several such places, of which one must tell the answer.
func (r *replay) judgeRenewals(a *asked, e check.Entry, o *fsmpb.Outcome, at map[renewal][]int) {
	in := e.Command.GetRenew().GetRenewals()
	best := ""
	for _, i := range at[renewalOf(a.renewals[0])] {
		same := i+len(a.renewals) <= len(in)
		for k := 0; same && k < len(a.renewals); k++ {
			same = renewalOf(in[i+k]) == renewalOf(a.renewals[k])
		}
		if !same {
			continue
		}
		if best = a.differsFromRenewals(o.Renewals[i : i+len(a.renewals)]); best == "" {
			return
		}
	}
	switch {
	case best != "":
		r.answers.Find("%v: %s", a, best)
	case a.decided():
		r.kept.Find("%v: that entry does not have the renewals asked for: %v", a, e.Command)
	}
}

func (r *replay) compare(a *asked, o *fsmpb.Outcome, repetition bool) {
	v := &r.answers
	if repetition {
		v = &r.once
	}
	if difference := a.differs(o); difference != "" {
		v.Find("%v, key %q: %s", a, a.key, difference)
	}
}

// noteAnswers counts, and minds that a run without a write or a lease shows nothing.
func (r *replay) noteAnswers() {
	decided, acquired, written, repeated := 0, 0, 0, 0
	for _, a := range r.asked {
		switch {
		case !a.decided():
			continue
		case a.Status == http.StatusOK && a.call == callAcquire:
			acquired++
		case a.Status == http.StatusOK && (a.call == callPut || a.call == callTxn):
			written++
		}
		decided++
	}
	for _, attempts := range r.own {
		repeated += len(attempts) - 1
	}
	r.kept.Count("%d acknowledged leases and writes", acquired+written)
	r.answers.Count("%d answers", decided)
	r.once.Count("%d entries of repeated requests", repeated)
	if acquired == 0 || written == 0 {
		r.kept.Find("%d leases and %d writes were acknowledged, which shows nothing", acquired, written)
	}
}

// differs compares an answer with an outcome; "": they tell the same.
func (a *asked) differs(o *fsmpb.Outcome) string {
	if o.Code != fsmpb.Code_CODE_OK {
		return a.differsFromRefusal(o)
	}
	if a.Status != http.StatusOK {
		return fmt.Sprintf("the entry did it: %v", o)
	}
	switch a.call {
	case callAcquire:
		return a.differsFromGrant(o)
	case callRenew:
		var got wire.Renewed
		return within(&got.ExpiresInMS, o.ExpiresInMs, a.unlike(&got, &wire.Renewed{Name: o.Name, Token: o.Token, TTLMS: o.TtlMs}, &got.ExpiresInMS))
	case callRelease:
		return a.unlike(&wire.Released{}, &wire.Released{Released: o.Released}, nil)
	case callCancel:
		return a.unlike(&wire.Cancelled{}, &wire.Cancelled{Cancelled: o.Cancelled}, nil)
	}
	if len(o.Ops) == 0 {
		return fmt.Sprintf("the entry wrote nothing: %v", o)
	}
	switch first := o.Ops[0]; a.call {
	case callPut:
		return a.unlike(&wire.Put{}, &wire.Put{Key: a.name, Version: o.Version, Watermark: first.Watermark}, nil)
	case callDelete:
		return a.unlike(&wire.Deleted{}, &wire.Deleted{Key: a.name, Deleted: first.Deleted, Watermark: first.Watermark}, nil)
	case callFence:
		return a.unlike(&wire.Fenced{}, &wire.Fenced{Key: a.name, Watermark: first.Watermark}, nil)
	}
	want := &wire.Txn{Version: o.Version}
	for _, op := range o.Ops {
		want.Results = append(want.Results, wire.TxnResult{Op: opName(op.Kind), Key: op.Key, Version: op.Version, Deleted: op.Deleted, Watermark: op.Watermark})
	}
	return a.unlike(&wire.Txn{}, want, nil)
}

func (a *asked) differsFromGrant(o *fsmpb.Outcome) string {
	var got wire.Acquired
	want := &wire.Acquired{
		Name: o.Name, Holder: o.Holder, Token: o.Token, TTLMS: o.TtlMs, PreviousToken: o.PreviousToken,
		OldestToken: o.OldestToken, Slots: o.Slots, Take: o.Take, Metadata: metadataOf(o.Metadata),
	}
	if json.Unmarshal(a.Answer, &got) == nil && got.WaitedMS > uint64(a.Took().Milliseconds()) {
		return fmt.Sprintf("it waited for %d ms, and took %v in all", got.WaitedMS, a.Took())
	}
	want.WaitedMS = got.WaitedMS
	return within(&got.ExpiresInMS, o.ExpiresInMs, a.unlike(&got, want, &got.ExpiresInMS))
}

// unlike reads an answer into got and compares it with want, but for expires.
func (a *asked) unlike(got, want any, expires *uint64) string {
	d := json.NewDecoder(bytes.NewReader(a.Answer))
	d.DisallowUnknownFields()
	if err := d.Decode(got); err != nil {
		return fmt.Sprintf("the answer %q cannot be read: %v", a.Answer, err)
	}
	var kept uint64
	if expires != nil {
		kept, *expires = *expires, 0
		defer func() { *expires = kept }()
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Sprintf("got %s, want %+v", bytes.TrimSpace(a.Answer), want)
	}
	return ""
}

// within adds to a difference that more time was told than there was (P7).
func within(got *uint64, most uint64, difference string) string {
	if difference == "" && *got > most {
		return fmt.Sprintf("it is told %d ms, and has %d", *got, most)
	}
	return difference
}

func metadataOf(pairs []*fsmpb.Pair) map[string]string {
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		m[p.Key] = p.Value
	}
	return m
}
