package replay

import (
	"encoding/json"
	"net/http"
	"time"

	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
	"fencepost/fsm/model"
	"fencepost/httpapi/wire"
)

// honoured is P7: a lease whose time was acknowledged lasts until then, whoever
// leads, unless its holder or client ends it.
type honoured struct {
	seen  *visibility
	ended map[uint64]ending // by token
}

// rounding is what a lease may lose because the cluster clock counts milliseconds.
const rounding = time.Millisecond

// An ending is the first entry that treats a lease as over though nobody released it.
type ending struct {
	index uint64
	how   string
}

func newHonoured(seen *visibility) *honoured {
	return &honoured{seen: seen, ended: map[uint64]ending{}}
}

func (p *honoured) end(token, index uint64, how string) {
	if _, ok := p.ended[token]; !ok {
		p.ended[token] = ending{index, how}
	}
}

// see notes what an entry takes for over.
func (p *honoured) see(e check.Entry, o *fsmpb.Outcome, events []model.Event) {
	for _, ev := range events {
		switch {
		case ev.Kind == model.Expired:
			p.end(ev.PreviousToken, e.Index, "ended as expired")
		case ev.Kind == model.Released && e.Command.GetCancel().GetAttempt() > 0:
			p.end(ev.PreviousToken, e.Index, "cancelled by the cluster")
		}
	}
	for _, o := range append([]*fsmpb.Outcome{o}, o.Renewals...) {
		if o.Code == fsmpb.Code_CODE_LEASE_LOST && o.Reason == fsmpb.Reason_REASON_EXPIRED {
			p.end(o.Token, e.Index, "refused as expired")
		}
	}
}

// judge compares what was promised with when the end could first be seen. Until then
// it may not have been committed, so that is in the cluster's favour.
func (p *honoured) judge(all []*asked, drift float64) *check.Verdict {
	v := &check.Verdict{Name: "P7 no early end"}
	promised := 0
	for _, a := range all {
		for token, left := range a.promises() {
			promised++
			end, ok := p.ended[token]
			if !ok {
				continue
			}
			until := a.Start + int64(float64(left)*(1-drift)) - int64(rounding)
			if first, ok := p.seen.of(end.index); ok && first.at < until {
				v.Find("%v: token %d was promised until %v, and %s at %v by entry %d, as %s saw",
					a, token, time.Duration(until), end.how, time.Duration(first.at), end.index, first.by)
			}
		}
	}
	v.Count("%d acknowledged leases and renewals", promised)
	return v
}

// promises are the leases that an answer acknowledges, with how long they last from
// the sending of the request.
func (a *asked) promises() map[uint64]time.Duration {
	if a.Status != http.StatusOK || !a.decided() {
		return nil
	}
	ms := func(n uint64) time.Duration { return time.Duration(n) * time.Millisecond }
	switch a.call {
	case callAcquire:
		var got wire.Acquired
		if json.Unmarshal(a.Answer, &got) == nil {
			return map[uint64]time.Duration{got.Token: ms(got.ExpiresInMS + got.WaitedMS)}
		}
	case callRenew:
		var got wire.Renewed
		if json.Unmarshal(a.Answer, &got) == nil {
			return map[uint64]time.Duration{got.Token: ms(got.ExpiresInMS)}
		}
	case callRenewMany:
		var got wire.RenewedMany
		if json.Unmarshal(a.Answer, &got) == nil {
			all := make(map[uint64]time.Duration, len(got.Results))
			for _, r := range got.Results {
				if r.Code == "" {
					all[r.Token] = ms(r.ExpiresInMS)
				}
			}
			return all
		}
	}
	return nil
}
