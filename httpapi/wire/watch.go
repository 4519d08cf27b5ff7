package wire

// ContentTypeEvents is the media type of a watch.
const ContentTypeEvents = "text/event-stream"

// HeaderLastEventID resumes a watch after the index that it names.
const HeaderLastEventID = "Last-Event-ID"

// What a watch may be narrowed to.
const (
	WatchLease   = "lease"   // what happens to leases and their queues
	WatchKV      = "kv"      // what happens to guarded keys
	WatchRefusal = "refusal" // guarded writes that an entry refused
)

// Kinds of events, which are also their names on the stream.
const (
	EventGranted  = "granted"
	EventRenewed  = "renewed" // only if the watch asks for renewals
	EventQueued   = "queued"
	EventDequeued = "dequeued" // a waiter left without a grant
	EventReleased = "released"
	EventExpired  = "expired"
	EventPut      = "put"
	EventDeleted  = "deleted"
	EventFenced   = "fenced"
	EventRefused  = "refused"
	EventRestored = "restored" // the contents were replaced by a backup's: list again
	// EventCompacted is not of an entry: it ends a watch that was too slow. Its
	// document is a Compacted.
	EventCompacted = "compacted"
)

// Event is one thing that an entry did, or refused to do. "Previous" is before
// the entry, the rest after it. A document has the fields that its kind has a
// use for, also at zero:
//
//   - granted: all of leases but GraceMS. Token is the new one, Previous what is
//     on record from before; Ticket is 0 if it had not waited.
//   - renewed: Holder, Token, TTLMS.
//   - queued, dequeued: Holder (who waits), Ticket, QueueLength.
//   - released, expired: Previous is whose lease ended; Holder and Token are ""
//     and 0, since its slots are nobody's. QueueLength, and GraceMS of expired.
//   - put, deleted, fenced: Holder and Token of the writer, Previous of the one
//     that wrote the value before, Watermark; Version of put is the value's.
//   - refused: Key, Token and Principal of the write, Holder of the token if it
//     is on record, Watermark of the key, Reason as in the answer, or
//     token_not_issued.
//   - restored: nothing else. All keys are those of a backup, all leases are over:
//     list again. It comes whatever kind or prefix was asked for.
type Event struct {
	Index          uint64 `json:"index"`
	Kind           string `json:"kind"`
	Name           string `json:"name,omitempty"` // of the lease
	Key            string `json:"key,omitempty"`  // put, deleted, fenced, refused
	Holder         string `json:"holder,omitempty"`
	Token          uint64 `json:"token,omitempty"`
	PreviousHolder string `json:"previous_holder,omitempty"`
	PreviousToken  uint64 `json:"previous_token,omitempty"`

	Ticket      uint64            `json:"ticket,omitempty"`
	Slots       uint64            `json:"slots,omitempty"`
	Take        uint64            `json:"take,omitempty"`
	TTLMS       uint64            `json:"ttl_ms,omitempty"`
	GraceMS     uint64            `json:"grace_ms,omitempty"` // nobody is granted the name for so long
	QueueLength uint64            `json:"queue_length,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`

	Watermark uint64 `json:"watermark,omitempty"`
	Version   uint64 `json:"version,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Principal string `json:"principal,omitempty"`
}

// Compacted is what a watch ends with that was overtaken: list again, and watch
// from there.
type Compacted struct {
	Code    Code   `json:"code"`    // CodeCompacted
	Reached uint64 `json:"reached"` // the index up to which nothing was missed
	Oldest  uint64 `json:"oldest"`  // the first index that can be watched from
}
