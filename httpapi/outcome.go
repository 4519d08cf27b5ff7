package httpapi

import (
	"strconv"
	"time"

	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// codeOf is the contract's name of what an entry decided; "" for done.
func codeOf(c fsmpb.Code) wire.Code {
	switch c {
	case fsmpb.Code_CODE_OK:
		return ""
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

// reasonOf is the contract's name of a reason; "" for none.
func reasonOf(r fsmpb.Reason) string {
	switch r {
	case fsmpb.Reason_REASON_EXPIRED:
		return wire.ReasonExpired
	case fsmpb.Reason_REASON_RELEASED:
		return wire.ReasonReleased
	case fsmpb.Reason_REASON_SUPERSEDED:
		return wire.ReasonSuperseded
	case fsmpb.Reason_REASON_RESTORED:
		return wire.ReasonRestored
	case fsmpb.Reason_REASON_ENDED:
		return wire.ReasonEnded
	case fsmpb.Reason_REASON_BELOW_WATERMARK:
		return wire.ReasonBelowWatermark
	case fsmpb.Reason_REASON_NEWER_ISSUED:
		return wire.ReasonNewerIssued
	case fsmpb.Reason_REASON_NOT_ON_RECORD:
		return wire.ReasonNotOnRecord
	case fsmpb.Reason_REASON_WRONG_LEASE:
		return wire.ReasonWrongLease
	case fsmpb.Reason_REASON_NOT_HELD:
		return wire.ReasonNotHeld
	case fsmpb.Reason_REASON_TIMEOUT:
		return wire.ReasonTimeout
	case fsmpb.Reason_REASON_CANCELLED:
		return wire.ReasonCancelled
	}
	return ""
}

// done says whether an entry did what was asked, and answers the refusal if not.
// waited is the reply's; ofTxn says that the refused operation has a number.
func (x *exchange) done(o *fsmpb.Outcome, waited time.Duration, ofTxn bool) bool {
	code := codeOf(o.Code)
	if code == "" {
		return true
	}
	p := &wire.Problem{Code: code, Reason: reasonOf(o.Reason)}
	switch code {
	case wire.CodeInvalidRequest:
		p.Field = o.Field
		p.Detail = o.Field + " was refused by the state machine"
		if o.Field == "guard" { // which depends on the lease, and so only the state knows
			if !ofTxn {
				p.Field = wire.HeaderFencingGuard
			}
			p.Detail = p.Field + " must be held, since the token's lease has more than one slot"
		}
	case wire.CodeLeaseHeld:
		p.QueueLength, p.WaitedMS = new(o.QueueLength), new(milliseconds(waited))
		switch {
		case o.GraceMs > 0:
			p.GraceMS = new(o.GraceMs)
			p.Detail = "nobody holds it, but whoever did may still be at work: its grace goes on for " + strconv.FormatUint(o.GraceMs, 10) + " ms"
		case o.Token > 0:
			p.Holder, p.Token, p.ExpiresInMS = new(o.Holder), o.Token, new(o.ExpiresInMs)
			p.Detail = "the first holder's time ends in " + strconv.FormatUint(o.ExpiresInMs, 10) + " ms, unless it is renewed"
		default:
			p.Detail = "others wait for it and come first"
		}
	case wire.CodeSlotsDiffer:
		p.Slots = o.Slots
		p.Detail = "the live lease has " + strconv.FormatUint(o.Slots, 10) + " slots"
	case wire.CodeCancelled:
		p.Detail = "the request was cancelled, or its client was gone for too long while it waited"
		if o.Reason == fsmpb.Reason_REASON_RESTORED {
			p.Detail = "a backup was restored, or the cluster recovered: all waits from before are over; ask again, under a new key"
		}
	case wire.CodeLeaseLost:
		p.Token, p.LastToken = o.Token, new(o.LastToken)
		p.Detail = lostDetail(p.Reason)
	case wire.CodeStaleToken:
		p.Token, p.Watermark = o.Token, new(o.Watermark)
		p.Detail = staleDetail(p.Reason)
	case wire.CodeTokenNotIssued:
		p.Token, p.Watermark = o.Token, new(o.Watermark)
		p.Detail = "no entry that granted a lease has this number; no watermark was moved"
	case wire.CodeVersionMismatch:
		p.Version = new(o.Version)
		p.Detail = "it has version " + strconv.FormatUint(o.Version, 10) + " (0: no value)"
	}
	if ofTxn && (code == wire.CodeStaleToken || code == wire.CodeTokenNotIssued || code == wire.CodeVersionMismatch) {
		p.OpIndex = new(int(o.OpIndex))
	}
	x.problem(p)
	return false
}

func lostDetail(reason string) string {
	switch reason {
	case wire.ReasonExpired:
		return "its time was up"
	case wire.ReasonReleased:
		return "it was released"
	case wire.ReasonSuperseded:
		return "it was granted again since"
	case wire.ReasonRestored:
		return "a backup was restored since"
	}
	return "it is not on record"
}

func staleDetail(reason string) string {
	switch reason {
	case wire.ReasonBelowWatermark:
		return "a newer token has touched the key"
	case wire.ReasonNewerIssued:
		return "the lease has been granted to a newer token"
	case wire.ReasonWrongLease:
		return "the token is another lease's"
	case wire.ReasonNotHeld:
		return "the token's lease is no longer held"
	}
	return "superseded, ended too long ago, or never a token"
}
