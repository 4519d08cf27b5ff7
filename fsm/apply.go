package fsm

import (
	"fmt"

	"fencepost/fsm/fsmpb"
)

// EventKind says what happened to a lease or key.
type EventKind string

const (
	EventGranted  EventKind = "granted"
	EventReleased EventKind = "released"
	EventExpired  EventKind = "expired"
	EventPut      EventKind = "put"
	EventDeleted  EventKind = "deleted"
	EventFenced   EventKind = "fenced"
	EventRefused  EventKind = "refused"
)

// An Event is one thing that an entry did to a lease or key, or, for refused,
// kept from being done.
type Event struct {
	Kind           EventKind
	Index          uint64
	Name           string // of the lease, or the key
	Holder         string
	Principal      string // who was refused
	Token          uint64
	PreviousToken  uint64
	PreviousHolder string
	Watermark      uint64
	Reason         fsmpb.Reason
}

// Apply applies one committed entry. index is its public index (see
// PublicIndex), term its Raft term. The events are valid until the next Apply.
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
	case *fsmpb.Command_Advance:
		o = s.advance()
	case *fsmpb.Command_Write:
		o = s.write(op.Write)
	case *fsmpb.Command_SetNode:
		o = s.setNode(op.SetNode)
	case *fsmpb.Command_RemoveNode:
		o = s.removeNode(op.RemoveNode)
	case *fsmpb.Command_Tick:
		o = &fsmpb.Outcome{}
	default:
		return nil, nil, fmt.Errorf("apply entry %d: unknown command %T", index, c.Op)
	}
	if o.Index == 0 { // a repetition carries the index of the entry that decided
		o.Index = index
	}
	s.raiseFloor()
	return o, s.events, nil
}

// PublicIndex is the index that the world sees of an entry with this Raft index.
func (s *State) PublicIndex(raftIndex uint64) uint64 { return s.base + raftIndex }

func (s *State) event(e Event) {
	e.Index = s.index
	s.events = append(s.events, e)
}
