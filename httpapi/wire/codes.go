package wire

import "net/http"

// Code is the contract of a problem: what programs branch on.
type Code string

const (
	CodeInvalidRequest  Code = "invalid_request"
	CodeUnauthenticated Code = "unauthenticated"
	CodeForbidden       Code = "forbidden"
	CodeNotFound        Code = "not_found"
	CodeMethod          Code = "method_not_allowed"
	CodeLeaseHeld       Code = "lease_held"
	CodeLeaseLost       Code = "lease_lost"
	CodeCancelled       Code = "cancelled"
	CodeSlotsDiffer     Code = "slots_differ"
	CodeQueueFull       Code = "queue_full"
	CodeNameInUse       Code = "name_in_use"   // a healthy member has the joining node's name
	CodeOtherCluster    Code = "other_cluster" // a backup, unless it is forced
	CodeRemoved         Code = "removed"       // the node that asks was a member, and is none any more
	CodeWrongCluster    Code = "wrong_cluster"
	CodeLosesQuorum     Code = "would_lose_quorum"
	CodeNotEligible     Code = "not_eligible" // it cannot lead now
	CodeStaleToken      Code = "stale_token"
	CodeVersionMismatch Code = "version_mismatch"
	CodeTooLarge        Code = "too_large"
	CodeTokenNotIssued  Code = "token_not_issued"
	CodeKeyReused       Code = "key_reused"
	CodeTokenRequired   Code = "token_required"
	CodeQuotaReached    Code = "quota_reached"
	CodeTooManyRequests Code = "too_many_requests"
	CodeCompacted       Code = "compacted" // events that were asked for are not kept any more
	CodeInternal        Code = "internal"
	CodeNoLeader        Code = "no_leader"
	CodeShuttingDown    Code = "shutting_down"
	CodeOverloaded      Code = "overloaded"
	CodeNotReady        Code = "not_ready" // of /readyz; of the rest: a member runs a version that is too old for it
	CodeNotLive         Code = "not_live"  // of /livez only
	CodeOutcomeUnknown  Code = "outcome_unknown"
)

// Reasons of CodeLeaseLost.
const (
	ReasonExpired    = "expired"
	ReasonReleased   = "released"
	ReasonSuperseded = "superseded"
	ReasonRestored   = "restored"
	ReasonEnded      = "ended" // no longer on record
)

// Reasons of CodeStaleToken.
const (
	ReasonBelowWatermark = "below_watermark"
	ReasonNewerIssued    = "newer_issued"
	ReasonNotOnRecord    = "not_on_record"
	ReasonWrongLease     = "wrong_lease"
	ReasonNotHeld        = "not_held"
)

// Reasons for which a waiter leaves the queue without a grant.
const (
	ReasonTimeout   = "timeout"
	ReasonCancelled = "cancelled"
)

// HTTP is the one table from code to status and title. The 503s and the 429 say
// that nothing was accepted, 504 that it may have been (P10). A code that it
// does not know is an internal error.
func (c Code) HTTP() (status int, title string) {
	switch c {
	case CodeInvalidRequest:
		return http.StatusBadRequest, "The request is not valid"
	case CodeUnauthenticated:
		return http.StatusUnauthorized, "Who is asking is not known"
	case CodeForbidden:
		return http.StatusForbidden, "The caller may not do this"
	case CodeNotFound:
		return http.StatusNotFound, "There is no such thing"
	case CodeMethod:
		return http.StatusMethodNotAllowed, "The method does not apply here"
	case CodeLeaseHeld:
		return http.StatusConflict, "Somebody holds the lease"
	case CodeLeaseLost:
		return http.StatusConflict, "The token no longer holds the lease"
	case CodeCancelled:
		return http.StatusConflict, "The acquire was cancelled"
	case CodeSlotsDiffer:
		return http.StatusConflict, "The live lease has other slots"
	case CodeQueueFull:
		return http.StatusTooManyRequests, "Too many wait already"
	case CodeNameInUse:
		return http.StatusConflict, "A healthy member has this name"
	case CodeOtherCluster:
		return http.StatusConflict, "The backup is another cluster's"
	case CodeRemoved:
		return http.StatusConflict, "The node was removed from the cluster"
	case CodeWrongCluster:
		return http.StatusConflict, "The node is of another cluster"
	case CodeLosesQuorum:
		return http.StatusConflict, "The rest could not form a majority of live nodes"
	case CodeNotEligible:
		return http.StatusConflict, "The node cannot lead now"
	case CodeStaleToken:
		return http.StatusPreconditionFailed, "The fence refused the token"
	case CodeVersionMismatch:
		return http.StatusPreconditionFailed, "The key has another version"
	case CodeTooLarge:
		return http.StatusRequestEntityTooLarge, "The request is too large"
	case CodeTokenNotIssued:
		return http.StatusUnprocessableEntity, "The token was never issued"
	case CodeKeyReused:
		return http.StatusUnprocessableEntity, "The Idempotency-Key belongs to another request"
	case CodeTokenRequired:
		return http.StatusPreconditionRequired, "A write needs a token"
	case CodeCompacted:
		return http.StatusGone, "Some events are not kept any more"
	case CodeTooManyRequests:
		return http.StatusTooManyRequests, "There are too many of these at once"
	case CodeQuotaReached:
		return http.StatusTooManyRequests, "There is no room for more"
	case CodeNoLeader:
		return http.StatusServiceUnavailable, "No leader can be reached"
	case CodeShuttingDown:
		return http.StatusServiceUnavailable, "The node is shutting down"
	case CodeOverloaded:
		return http.StatusServiceUnavailable, "The node has too much to do"
	case CodeNotReady:
		return http.StatusServiceUnavailable, "The node cannot serve"
	case CodeNotLive:
		return http.StatusServiceUnavailable, "The process should be restarted"
	case CodeOutcomeUnknown:
		return http.StatusGatewayTimeout, "The outcome is unknown: it may have happened"
	}
	return http.StatusInternalServerError, "Something went wrong inside"
}
