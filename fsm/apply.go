package fsm

import (
	"fmt"

	"fencepost/fsm/fsmpb"
)

// EventKind says what happened to a lease or key.
type EventKind string

const (
	EventGranted  EventKind = "granted"
	EventRenewed  EventKind = "renewed"
	EventQueued   EventKind = "queued"
	EventDequeued EventKind = "dequeued" // without a grant: its wait is over, or cancelled
	EventReleased EventKind = "released"
	EventExpired  EventKind = "expired"
	EventPut      EventKind = "put"
	EventDeleted  EventKind = "deleted"
	EventFenced   EventKind = "fenced"
	EventRefused  EventKind = "refused"
	EventRestored EventKind = "restored" // everything: the keys are a backup's, all leases are over
)

// An Event is one thing that an entry did to a lease or key, or, for refused,
// kept from being done.
type Event struct {
	Kind           EventKind
	Index          uint64
	Name           string // of the lease, or the key
	Holder         string // who holds, waits or writes now
	Principal      string // who was refused
	Token          uint64
	PreviousToken  uint64 // before: of the name, or that wrote the value
	PreviousHolder string
	Watermark      uint64
	Reason         fsmpb.Reason
	Version        uint64 // of a key's value afterwards; 0: it has none
	// Of leases.
	Ticket      uint64 // of the waiter; granted: 0 if it did not wait
	Slots, Take uint64 // of the grant, or asked for
	TTLMS       uint64 // granted, renewed
	Metadata    []*fsmpb.Pair
	GraceMS     uint64 // expired: how long nobody is granted the name
	QueueLength int    // how many wait for the name now
	// Decided is set if the event decided the request of a waiter.
	Decided *Decision
}

// A Decision is the outcome of a request that had waited, made by an entry that
// is not its own.
type Decision struct {
	RequestKey string // as RequestKey gives it
	Outcome    *fsmpb.Outcome
	acquire    *fsmpb.Acquire
}

// Cancel is the command that ends what the request was granted.
func (d *Decision) Cancel() *fsmpb.Cancel {
	return &fsmpb.Cancel{Name: d.acquire.Name, Principal: d.acquire.Principal, Request: d.acquire.Request}
}

// Apply applies one committed entry. index is its public index (see
// PublicIndex), term its Raft term. The events are valid until the next Apply.
// An entry may jump (see Jump): Index then tells where it is.
//
// An error means that this replica must stop: the entry cannot be understood,
// or the state is broken. A refusal is an ordinary outcome.
func (s *State) Apply(index, term uint64, c *fsmpb.Command) (*fsmpb.Outcome, []Event, error) {
	if index <= s.index {
		return nil, nil, fmt.Errorf("apply entry %d: entry %d has been applied already", index, s.index)
	}
	s.index = index
	s.events = s.events[:0]
	if c.Term == term && c.NowMs <= maxClockMS {
		s.clockMS = max(s.clockMS, c.NowMs)
	}
	var o *fsmpb.Outcome
	switch op := c.Op.(type) {
	case *fsmpb.Command_Acquire:
		o = s.acquire(op.Acquire)
	case *fsmpb.Command_Renew:
		o = s.renew(op.Renew)
	case *fsmpb.Command_Release:
		o = s.release(op.Release)
	case *fsmpb.Command_Cancel:
		o = s.cancel(op.Cancel)
	case *fsmpb.Command_Advance:
		o = s.advance()
	case *fsmpb.Command_Write:
		o = s.write(op.Write)
	case *fsmpb.Command_SetNode:
		o = s.setNode(op.SetNode)
	case *fsmpb.Command_RemoveNode:
		o = s.removeNode(op.RemoveNode)
	case *fsmpb.Command_RestoreBegin:
		o = s.restoreBegin(op.RestoreBegin)
	case *fsmpb.Command_RestoreChunk:
		o = s.restoreChunk(op.RestoreChunk)
	case *fsmpb.Command_RestoreCommit:
		o = s.restoreCommit(op.RestoreCommit)
	case *fsmpb.Command_Tick:
		o = &fsmpb.Outcome{}
	default:
		return nil, nil, fmt.Errorf("apply entry %d: unknown command %T", index, c.Op)
	}
	if o.Index == 0 { // a repetition carries the index of the entry that decided
		o.Index = s.index
	}
	s.settle()
	s.raiseFloor()
	return o, s.events, nil
}

// PublicIndex is the index that the world sees of an entry with this Raft index.
func (s *State) PublicIndex(raftIndex uint64) uint64 { return s.base + raftIndex }

func (s *State) event(e Event) {
	e.Index = s.index
	s.events = append(s.events, e)
}
