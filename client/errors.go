package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"fencepost/httpapi/wire"
)

// What became of a call. Test with errors.Is.
var (
	ErrHeld      = errors.New("lease is held")                // somebody else holds it
	ErrLost      = errors.New("lease is lost")                // the token no longer holds it
	ErrCancelled = errors.New("acquire is cancelled")         // by Cancel, or its client was away for too long
	ErrSlots     = errors.New("slots differ")                 // the live lease has other slots
	ErrStale     = errors.New("token is stale")               // the fence refused the write (P4)
	ErrNotIssued = errors.New("token was never issued")       // refused, and no watermark moved (P6)
	ErrNotFound  = errors.New("not found")                    // no such lease, key or member
	ErrMismatch  = errors.New("version differs")              // if-version or if-absent did not hold
	ErrQuorum    = errors.New("quorum would be lost")         // a member stays, because the rest could not go on without it
	ErrCompacted = errors.New("events are not kept any more") // a watch has to start again from a list

	ErrReleased = errors.New("lease was released") // by this program, with Lease.Release
	ErrClosed   = errors.New("client is closed")   // so it keeps no lease any more

	// ErrUnavailable: no attempt was answered, and surely none was applied.
	ErrUnavailable = errors.New("unavailable")
	// ErrUnknown: no attempt was answered, and one may have been applied.
	ErrUnknown = errors.New("outcome unknown")
)

// Error is the cluster's refusal. Fields are zero where the code has no use for
// them; what each code carries is in the API's description.
type Error struct {
	Status int // of HTTP
	Code   wire.Code
	Reason string // for lease_lost and stale_token: why
	Title  string
	Detail string // for people
	Field  string // of the request, for invalid_request

	Holder      string        // that has the lease
	Token       uint64        // of the holder, or of the request that was refused
	LastToken   uint64        // newest one issued for the lease
	Watermark   uint64        // of the key
	Version     uint64        // of the key; 0: no such key
	OpIndex     *int          // which operation of a transaction; nil: none in particular
	ExpiresIn   time.Duration // of that holder
	Grace       time.Duration // left of a grace, in which nobody is granted the lease
	QueueLength uint64        // how many wait for it
	Leader      string        // URL, if the node that answered knew it
	Node        string        // that answered
	Oldest      uint64        // for compacted: the first index that can be watched from

	index uint64 // that the answer reflects; 0: not told
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Code == "" {
		fmt.Fprintf(&b, "HTTP status %d", e.Status)
	} else {
		b.WriteString(string(e.Code))
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, " (%s)", e.Reason)
	}
	switch {
	case e.Detail != "":
		b.WriteString(": " + e.Detail)
	case e.Title != "":
		b.WriteString(": " + e.Title)
	case e.Code == "":
		b.WriteString(": " + http.StatusText(e.Status))
	}
	return b.String()
}

// Is makes the sentinels of this package match the codes that they stand for.
func (e *Error) Is(target error) bool { return target != nil && target == sentinel(e.Code) }

func sentinel(code wire.Code) error {
	switch code {
	case wire.CodeLeaseHeld:
		return ErrHeld
	case wire.CodeLeaseLost:
		return ErrLost
	case wire.CodeCancelled:
		return ErrCancelled
	case wire.CodeSlotsDiffer:
		return ErrSlots
	case wire.CodeStaleToken:
		return ErrStale
	case wire.CodeTokenNotIssued:
		return ErrNotIssued
	case wire.CodeNotFound:
		return ErrNotFound
	case wire.CodeVersionMismatch:
		return ErrMismatch
	case wire.CodeLosesQuorum:
		return ErrQuorum
	case wire.CodeCompacted:
		return ErrCompacted
	}
	return nil
}

// OutcomeError says that a call was not answered before its context ended, or in
// its only attempt. It is ErrUnknown if an attempt may have been applied, else
// ErrUnavailable, and never both. It also is what ended the call, such as
// context.DeadlineExceeded.
type OutcomeError struct {
	Call     string // such as "acquire jobs/nightly"
	Unknown  bool
	Attempts int
	// Key is the Idempotency-Key of all attempts: repeat the call with
	// WithIdempotencyKey to learn, or complete, its outcome. "" for reads.
	Key string
	// Last is how the last attempt failed. It is not unwrapped: what one attempt
	// met is not the outcome of the call.
	Last  error
	cause error
}

func (e *OutcomeError) Error() string {
	what := "no answer, and nothing was changed"
	if e.Unknown {
		what = "outcome unknown: it may have happened"
	}
	s := fmt.Sprintf("%s: %s (attempts: %d", e.Call, what, e.Attempts)
	if e.Last != nil {
		s += fmt.Sprintf("; last: %v", e.Last)
	}
	return s + ")"
}

// Is matches ErrUnknown or ErrUnavailable.
func (e *OutcomeError) Is(target error) bool {
	if e.Unknown {
		return target == ErrUnknown
	}
	return target == ErrUnavailable
}

func (e *OutcomeError) Unwrap() error { return e.cause }
