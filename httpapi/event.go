package httpapi

import (
	"strconv"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// eventKinds is a set of what a watch may be narrowed to; 0: everything.
type eventKinds uint8

const (
	leaseEvents eventKinds = 1 << iota
	keyEvents
	refusals
)

func eventKindsOf(name string) (eventKinds, bool) {
	switch name {
	case wire.WatchLease:
		return leaseEvents, true
	case wire.WatchKV:
		return keyEvents, true
	case wire.WatchRefusal:
		return refusals, true
	}
	return 0, false
}

// kindsOf an event is the set that it is in. What concerns everything, such as
// a restore, is in all.
func kindsOf(k fsm.EventKind) eventKinds {
	switch k {
	case fsm.EventGranted, fsm.EventRenewed, fsm.EventQueued, fsm.EventDequeued, fsm.EventReleased, fsm.EventExpired:
		return leaseEvents
	case fsm.EventPut, fsm.EventDeleted, fsm.EventFenced:
		return keyEvents
	case fsm.EventRefused:
		return refusals
	}
	return leaseEvents | keyEvents | refusals
}

// appendEvent writes one event of a stream. The last one of its entry carries
// the id, so that a resume repeats an entry whole or not at all.
func appendEvent(b []byte, e *fsm.Event, last bool) []byte {
	b = append(append(append(b, "event: "...), e.Kind...), "\ndata: "...)
	b = appendEventDocument(b, e)
	if last {
		b = strconv.AppendUint(append(b, "\nid: "...), e.Index, 10)
	}
	return append(b, "\n\n"...)
}

// appendPosition writes a line that moves the reader on without an event.
func appendPosition(b []byte, index uint64) []byte {
	return append(strconv.AppendUint(append(b, "id: "...), index, 10), "\n\n"...)
}

// appendCompacted writes the last event of a watch that was overtaken.
func appendCompacted(b []byte, reached, oldest uint64) []byte {
	b = append(b, "event: "+wire.EventCompacted+"\ndata: {"...)
	b = appendText(b, "code", string(wire.CodeCompacted))
	b = appendUint(b, "reached", reached)
	b = appendUint(b, "oldest", oldest)
	return append(b, "}\n\n"...)
}

// appendEventDocument writes the fields that are of use for the kind; they are
// listed at wire.Event.
func appendEventDocument(b []byte, e *fsm.Event) []byte {
	b = append(b, '{')
	b = appendUint(b, "index", e.Index)
	b = appendText(b, "kind", string(e.Kind))
	switch kindsOf(e.Kind) {
	case leaseEvents:
		b = appendText(b, "name", e.Name)
		b = appendLeaseEvent(b, e)
	case keyEvents:
		b = appendText(b, "key", e.Name)
		b = appendParties(b, e)
		b = appendUint(b, "watermark", e.Watermark)
		b = appendVersion(b, e)
	case refusals:
		b = appendText(b, "key", e.Name)
		b = appendText(b, "holder", e.Holder)
		b = appendText(b, "principal", e.Principal)
		b = appendUint(b, "token", e.Token)
		b = appendUint(b, "watermark", e.Watermark)
		b = appendText(b, "reason", refusalOf(e.Reason))
	}
	return append(b, '}')
}

func appendLeaseEvent(b []byte, e *fsm.Event) []byte {
	switch e.Kind {
	case fsm.EventGranted:
		b = appendParties(b, e)
		b = appendUint(b, "ticket", e.Ticket)
		b = appendUint(b, "slots", e.Slots)
		b = appendUint(b, "take", e.Take)
		b = appendUint(b, "ttl_ms", e.TTLMS)
		b = appendMetadata(b, e.Metadata)
	case fsm.EventRenewed:
		b = appendText(b, "holder", e.Holder)
		b = appendUint(b, "token", e.Token)
		return appendUint(b, "ttl_ms", e.TTLMS)
	case fsm.EventQueued, fsm.EventDequeued:
		b = appendText(b, "holder", e.Holder)
		b = appendUint(b, "ticket", e.Ticket)
		if reason := reasonOf(e.Reason); reason != "" {
			b = appendText(b, "reason", reason)
		}
	case fsm.EventExpired:
		b = appendParties(b, e)
		b = appendUint(b, "grace_ms", e.GraceMS)
	default:
		b = appendParties(b, e)
	}
	return appendUint(b, "queue_length", uint64(max(0, e.QueueLength)))
}

// appendParties writes who has it after the entry, and who had it before.
func appendParties(b []byte, e *fsm.Event) []byte {
	b = appendText(b, "holder", e.Holder)
	b = appendUint(b, "token", e.Token)
	b = appendText(b, "previous_holder", e.PreviousHolder)
	return appendUint(b, "previous_token", e.PreviousToken)
}

func appendVersion(b []byte, e *fsm.Event) []byte {
	switch {
	case e.Kind == fsm.EventPut: // by definition
		return appendUint(b, "version", e.Index)
	case e.Kind == fsm.EventFenced && e.Version != 0:
		return appendUint(b, "version", e.Version)
	}
	return b
}

// refusalOf is why a write was refused: a reason, or the code that needs none.
func refusalOf(r fsmpb.Reason) string {
	if r == fsmpb.Reason_REASON_NONE {
		return string(wire.CodeTokenNotIssued)
	}
	return reasonOf(r)
}
