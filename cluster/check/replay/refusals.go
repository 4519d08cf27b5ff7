package replay

import (
	"fmt"
	"net/http"

	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// differsFromRefusal compares an answer with an outcome that is one.
func (a *asked) differsFromRefusal(o *fsmpb.Outcome) string {
	if o.Code == fsmpb.Code_CODE_QUEUED {
		return "the entry queued it, which is no answer"
	}
	want := refusal(o, a.call)
	var got wire.Problem
	if difference := a.unlike(&got, &got, nil); difference != "" || a.Status == http.StatusOK {
		return fmt.Sprintf("got %s, want %+v", a.Answer, want)
	}
	if status, _ := want.Code.HTTP(); a.Status != status || got.Status != status {
		return fmt.Sprintf("got status %d and %d, want %d: %v", a.Status, got.Status, status, o)
	}
	for _, time := range [...]struct{ got, most *uint64 }{{got.ExpiresInMS, want.ExpiresInMS}, {got.GraceMS, want.GraceMS}} {
		if time.got != nil && time.most != nil {
			if *time.got > *time.most {
				return fmt.Sprintf("it is told %d ms, and there are %d", *time.got, *time.most)
			}
			*time.got = *time.most
		}
	}
	if got.WaitedMS != nil && *got.WaitedMS > uint64(a.Took().Milliseconds()) {
		return fmt.Sprintf("it waited for %d ms, and took %v in all", *got.WaitedMS, a.Took())
	}
	return problemsDiffer(&got, want)
}

// problemsDiffer compares what is the contract of two problems.
func problemsDiffer(got, want *wire.Problem) string {
	same := func(a, b *uint64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	sameText := func(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	sameInt := func(a, b *int) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	for _, field := range [...]struct {
		name string
		same bool
	}{
		{"code", got.Code == want.Code},
		{"reason", got.Reason == want.Reason},
		{"field", got.Field == want.Field},
		{"holder", sameText(got.Holder, want.Holder)},
		{"token", got.Token == want.Token},
		{"last_token", same(got.LastToken, want.LastToken)},
		{"expires_in_ms", same(got.ExpiresInMS, want.ExpiresInMS)},
		{"queue_length", same(got.QueueLength, want.QueueLength)},
		{"grace_ms", same(got.GraceMS, want.GraceMS)},
		{"slots", got.Slots == want.Slots},
		{"watermark", same(got.Watermark, want.Watermark)},
		{"version", same(got.Version, want.Version)},
		{"op_index", sameInt(got.OpIndex, want.OpIndex)},
	} {
		if !field.same {
			return fmt.Sprintf("another %s: got %+v, want %+v", field.name, *got, *want)
		}
	}
	return ""
}

// refusal is the problem that the contract has for an outcome.
func refusal(o *fsmpb.Outcome, of call) *wire.Problem {
	p := &wire.Problem{Code: refusalCode(o.Code), Reason: reasonOf(o.Reason)}
	switch o.Code {
	case fsmpb.Code_CODE_INVALID_REQUEST:
		if p.Field = o.Field; o.Field == "guard" && of != callTxn {
			p.Field = wire.HeaderFencingGuard
		}
	case fsmpb.Code_CODE_LEASE_HELD:
		p.QueueLength = &o.QueueLength
		if o.GraceMs > 0 {
			p.GraceMS = &o.GraceMs
		} else if o.Token > 0 {
			p.Holder, p.Token, p.ExpiresInMS = &o.Holder, o.Token, &o.ExpiresInMs
		}
	case fsmpb.Code_CODE_SLOTS_DIFFER:
		p.Slots = o.Slots
	case fsmpb.Code_CODE_LEASE_LOST:
		p.Token, p.LastToken = o.Token, &o.LastToken
	case fsmpb.Code_CODE_STALE_TOKEN, fsmpb.Code_CODE_TOKEN_NOT_ISSUED:
		p.Token, p.Watermark = o.Token, &o.Watermark
	case fsmpb.Code_CODE_VERSION_MISMATCH:
		p.Version = &o.Version
	}
	switch o.Code {
	case fsmpb.Code_CODE_STALE_TOKEN, fsmpb.Code_CODE_TOKEN_NOT_ISSUED, fsmpb.Code_CODE_VERSION_MISMATCH:
		if i := int(o.OpIndex); of == callTxn {
			p.OpIndex = &i
		}
	}
	return p
}

func refusalCode(c fsmpb.Code) wire.Code {
	switch c {
	case fsmpb.Code_CODE_INVALID_REQUEST:
		return wire.CodeInvalidRequest
	case fsmpb.Code_CODE_FORBIDDEN:
		return wire.CodeForbidden
	case fsmpb.Code_CODE_LEASE_HELD:
		return wire.CodeLeaseHeld
	case fsmpb.Code_CODE_LEASE_LOST:
		return wire.CodeLeaseLost
	case fsmpb.Code_CODE_STALE_TOKEN:
		return wire.CodeStaleToken
	case fsmpb.Code_CODE_VERSION_MISMATCH:
		return wire.CodeVersionMismatch
	case fsmpb.Code_CODE_TOKEN_NOT_ISSUED:
		return wire.CodeTokenNotIssued
	case fsmpb.Code_CODE_KEY_REUSED:
		return wire.CodeKeyReused
	case fsmpb.Code_CODE_NOT_FOUND:
		return wire.CodeNotFound
	case fsmpb.Code_CODE_CANCELLED:
		return wire.CodeCancelled
	case fsmpb.Code_CODE_SLOTS_DIFFER:
		return wire.CodeSlotsDiffer
	}
	return wire.CodeInternal
}

// reasonOf is what the contract calls a reason.
func reasonOf(r fsmpb.Reason) string {
	switch r {
	case fsmpb.Reason_REASON_EXPIRED:
		return "expired"
	case fsmpb.Reason_REASON_RELEASED:
		return "released"
	case fsmpb.Reason_REASON_SUPERSEDED:
		return "superseded"
	case fsmpb.Reason_REASON_RESTORED:
		return "restored"
	case fsmpb.Reason_REASON_ENDED:
		return "ended"
	case fsmpb.Reason_REASON_BELOW_WATERMARK:
		return "below_watermark"
	case fsmpb.Reason_REASON_NEWER_ISSUED:
		return "newer_issued"
	case fsmpb.Reason_REASON_NOT_ON_RECORD:
		return "not_on_record"
	case fsmpb.Reason_REASON_WRONG_LEASE:
		return "wrong_lease"
	case fsmpb.Reason_REASON_NOT_HELD:
		return "not_held"
	case fsmpb.Reason_REASON_TIMEOUT:
		return "timeout"
	case fsmpb.Reason_REASON_CANCELLED:
		return "cancelled"
	}
	return ""
}

// differsFromRenewals compares the answer to one renewal, or to a batch.
func (a *asked) differsFromRenewals(os []*fsmpb.Outcome) string {
	if a.call == callRenew {
		return a.differs(os[0])
	}
	if a.Status != http.StatusOK {
		return "a batch that an entry has decided is answered 200"
	}
	var got, want wire.RenewedMany
	if difference := a.unlike(&got, &got, nil); difference != "" || len(got.Results) != len(os) {
		return fmt.Sprintf("%d results for %d renewals %s", len(got.Results), len(os), difference)
	}
	for i, o := range os {
		result := wire.RenewResult{Name: a.renewals[i].Name, Token: a.renewals[i].Token}
		if o.Code != fsmpb.Code_CODE_OK {
			result.Code, result.Reason = refusalCode(o.Code), reasonOf(o.Reason)
		} else if told := got.Results[i].ExpiresInMS; told > o.ExpiresInMs {
			return fmt.Sprintf("renewal %d is told %d ms, and has %d", i, told, o.ExpiresInMs)
		} else {
			result.ExpiresInMS = told
		}
		if want.Results = append(want.Results, result); got.Results[i] != result {
			return fmt.Sprintf("renewal %d: got %+v, want %+v", i, got.Results[i], result)
		}
	}
	return ""
}
