package model

import "fencepost/fsm/fsmpb"

// A Kind says what happened to a lease or key.
type Kind string

const (
	Granted  Kind = "granted"
	Renewed  Kind = "renewed"
	Queued   Kind = "queued"
	Dequeued Kind = "dequeued" // without a grant
	Released Kind = "released"
	Expired  Kind = "expired"
	Put      Kind = "put"
	Deleted  Kind = "deleted"
	Fenced   Kind = "fenced"
	Refused  Kind = "refused"
	Restored Kind = "restored"
)

// An Event is one thing that an entry did to a lease or key, or, for refused, kept
// from being done. Its fields are those of the event of package fsm.
type Event struct {
	Kind           Kind
	Index          uint64
	Name           string // of the lease, or the key
	Holder         string // who holds, waits or writes now
	Principal      string // who was refused
	Token          uint64
	PreviousToken  uint64
	PreviousHolder string
	Watermark      uint64
	Reason         fsmpb.Reason
	Version        uint64
	Ticket         uint64
	Slots, Take    uint64
	TTLMS          uint64
	Metadata       []*fsmpb.Pair
	GraceMS        uint64
	QueueLength    int
	Decided        *Decision
}

// A Decision is the outcome that an entry decided for a request that had waited.
type Decision struct {
	ID      ID
	Outcome *fsmpb.Outcome
}
