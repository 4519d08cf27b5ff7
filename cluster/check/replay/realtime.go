package replay

import (
	"cmp"
	"encoding/json"
	"slices"

	"fencepost/cluster/check"
)

// judgeRealTime checks that the order of the log is one of real time. An entry that
// decided an answer was proposed after everything that had been answered by then, by
// any node, so it comes later. A read has seen at least all entries whose answers,
// or effects on another such read, had come by then. With the answers themselves
// this makes the history linearizable, and the log is the proof.
func (r *replay) judgeRealTime() {
	byStart, byEnd := []*asked{}, []*asked{}
	for _, a := range r.asked {
		if a.End == 0 || a.Index == 0 {
			continue
		}
		byEnd = append(byEnd, a)
		if a.decided() || a.isRead() && !a.stale() {
			byStart = append(byStart, a)
		}
	}
	slices.SortFunc(byStart, func(a, b *asked) int { return cmp.Compare(a.Start, b.Start) })
	slices.SortFunc(byEnd, func(a, b *asked) int { return cmp.Compare(a.End, b.End) })
	var seen, linear *asked // with the highest index of all, and of those that are linearizable
	ended := 0
	for _, a := range byStart {
		for ; ended < len(byEnd) && byEnd[ended].End < a.Start; ended++ {
			b := byEnd[ended]
			if seen == nil || b.Index > seen.Index {
				seen = b
			}
			if (b.decided() || b.isRead() && !b.stale()) && (linear == nil || b.Index > linear.Index) {
				linear = b
			}
		}
		switch {
		case a.decided() && seen != nil && a.Index <= seen.Index:
			r.realTime.Find("%v was sent after there was an answer at index %d: %v", a, seen.Index, seen)
		case !a.decided() && linear != nil && a.Index < linear.Index:
			r.realTime.Find("%v was sent after there was an answer at index %d: %v", a, linear.Index, linear)
		}
	}
	r.realTime.Count("%d exchanges", len(byStart))
}

// visibility is by when entries have been seen to be committed.
type visibility struct {
	seen []sighting // by index, and so by time, too
}

// A sighting: at this time somebody knew that this index is committed.
type sighting struct {
	index uint64
	at    int64
	by    string
}

func newVisibility(h *check.History) *visibility {
	var all []sighting
	for _, x := range h.Exchanges {
		if x.End != 0 && x.Index != 0 {
			all = append(all, sighting{x.Index, x.End, x.Client})
		}
	}
	for _, s := range h.Streams {
		for _, e := range s.Events {
			var of struct{ Index uint64 }
			if json.Unmarshal(e.Data, &of) == nil && of.Index != 0 {
				all = append(all, sighting{of.Index, e.At, s.Watcher})
			}
		}
	}
	slices.SortFunc(all, func(a, b sighting) int { return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.at, b.at)) })
	for i := len(all) - 2; i >= 0; i-- {
		if all[i+1].at < all[i].at {
			all[i].at, all[i].by = all[i+1].at, all[i+1].by
		}
	}
	return &visibility{all}
}

// of an index is the first sighting of it or of a later one; ok: there is one.
func (v *visibility) of(index uint64) (first sighting, ok bool) {
	i, _ := slices.BinarySearchFunc(v.seen, index, func(s sighting, index uint64) int { return cmp.Compare(s.index, index) })
	if i == len(v.seen) {
		return sighting{}, false
	}
	return v.seen[i], true
}
