package cluster

import (
	"slices"

	"fencepost/fsm"
)

// bytesPerEvent is what an event may take on the average, beside its fixed
// part: a ring of n events holds at most n times as many bytes of names,
// holders and metadata.
const bytesPerEvent = 1 << 10

// An Entry is an entry of the log, by its public index, with the events that it
// brought. All watchers share it, and nobody may change it.
type Entry struct {
	Index  uint64
	Events []fsm.Event // at least one
}

// ring keeps the newest entries, whole, up to a number of events and of bytes.
// The newest one stays however large it is: an entry's size has its own limits.
// Who uses it sees to locking.
type ring struct {
	maxEvents, maxBytes int

	entries []Entry // those from head on are kept, in the order of their indexes
	head    int
	events  int
	bytes   int
	oldest  uint64 // every entry from here on is kept, or had no events
}

func newRing(maxEvents int) ring {
	return ring{maxEvents: maxEvents, maxBytes: maxEvents * bytesPerEvent, oldest: 1}
}

func (r *ring) push(e Entry) {
	r.entries = append(r.entries, e)
	r.events += len(e.Events)
	r.bytes += weight(e.Events)
	for len(r.entries)-r.head > 1 && (r.events > r.maxEvents || r.bytes > r.maxBytes) {
		r.drop()
	}
}

func (r *ring) drop() {
	e := &r.entries[r.head]
	r.events -= len(e.Events)
	r.bytes -= weight(e.Events)
	r.oldest = e.Index + 1
	*e = Entry{} // for the garbage collector
	r.head++
	if kept := len(r.entries) - r.head; r.head > kept {
		// More was dropped than is left, so moving that costs each entry O(1).
		copy(r.entries, r.entries[r.head:])
		clear(r.entries[kept:])
		r.entries, r.head = r.entries[:kept], 0
	}
}

// clear forgets everything; what comes next is not before oldest.
func (r *ring) clear(oldest uint64) {
	*r = newRing(r.maxEvents)
	r.oldest = oldest
}

// from is what is kept from an index on.
func (r *ring) from(index uint64) []Entry {
	kept := r.entries[r.head:]
	at, _ := slices.BinarySearchFunc(kept, index, func(e Entry, index uint64) int {
		switch {
		case e.Index < index:
			return -1
		case e.Index > index:
			return 1
		}
		return 0
	})
	return kept[at:]
}

// weight is how many bytes of text events hold on to.
func weight(events []fsm.Event) (bytes int) {
	for i := range events {
		e := &events[i]
		bytes += len(e.Name) + len(e.Holder) + len(e.Principal) + len(e.PreviousHolder)
		for _, p := range e.Metadata {
			bytes += len(p.Key) + len(p.Value)
		}
	}
	return bytes
}

// merge appends the entries of two lists in the order of their indexes, until
// into is full. An index that both have becomes one entry.
func merge(into, a, b []Entry) []Entry {
	for len(into) < cap(into) && (len(a) > 0 || len(b) > 0) {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Index < b[0].Index:
			into, a = append(into, a[0]), a[1:]
		case len(a) == 0 || b[0].Index < a[0].Index:
			into, b = append(into, b[0]), b[1:]
		default:
			both := Entry{a[0].Index, slices.Concat(a[0].Events, b[0].Events)}
			into, a, b = append(into, both), a[1:], b[1:]
		}
	}
	return into
}
