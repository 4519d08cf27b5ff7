package main

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"fencepost/cluster/check"
)

// outages are, for each hit, the time from its beginning to the first
// acknowledgement of a mutation that began after it. Hits after which nothing was
// acknowledged are missing.
func outages(h *check.History, hits []hit) (all []time.Duration) {
	for _, one := range hits {
		first := int64(0)
		for _, x := range h.Exchanges {
			if x.Method != http.MethodGet && x.Status == http.StatusOK && x.Start > one.At && (first == 0 || x.End < first) {
				first = x.End
			}
		}
		if first > 0 {
			all = append(all, time.Duration(first-one.At))
		}
	}
	slices.Sort(all)
	return all
}

// gaps are, for each hit, the longest time without an acknowledged mutation, from
// its beginning to the first that was acknowledged after it had been healed. A
// leader that is cut off may serve for its lease, and only then is service gone.
func gaps(h *check.History, hits []hit) (all []time.Duration) {
	var ends []int64
	for _, x := range h.Exchanges {
		if x.Method != http.MethodGet && x.Status == http.StatusOK {
			ends = append(ends, x.End)
		}
	}
	slices.Sort(ends)
	for _, one := range hits {
		last, longest := one.At, int64(0)
		for i, _ := slices.BinarySearch(ends, one.At); i < len(ends); i++ {
			longest, last = max(longest, ends[i]-last), ends[i]
			if ends[i] > one.Healed {
				break
			}
		}
		all = append(all, time.Duration(longest))
	}
	slices.Sort(all)
	return all
}

// A spread is what is told of many durations.
type spread struct{ median, p99, max time.Duration }

// spreadOf takes sorted durations.
func spreadOf(sorted []time.Duration) (s spread) {
	if n := len(sorted); n > 0 {
		s = spread{sorted[n/2], sorted[(n*99+99)/100-1], sorted[n-1]}
	}
	return s
}

func (s spread) String() string {
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("median %s, p99 %s, max %s", round(s.median), round(s.p99), round(s.max))
}

// served demands that after each hit something was acknowledged, within a bound if
// there is one: 0 is none.
func served(h *check.History, hits []hit, bound time.Duration) *check.Verdict {
	v := &check.Verdict{Name: "time without service"}
	all := outages(h, hits)
	if missing := len(hits) - len(all); missing > 0 {
		find(v, "nothing that began after it was acknowledged after %d of %d hits", missing, len(hits))
	}
	for _, d := range all {
		if bound > 0 && d >= bound {
			find(v, "%s, the bound is %s", d.Round(time.Millisecond), bound)
		}
	}
	v.Note = fmt.Sprintf("%s of %d hits", spreadOf(all), len(all))
	return v
}

// landed demands that there were faults, and that each can be shown.
func landed(hits []hit) *check.Verdict {
	v := &check.Verdict{Name: "every fault landed"}
	for _, h := range hits {
		if h.Missed != "" {
			find(v, "%s: %s", h.What, h.Missed)
		}
	}
	if len(hits) == 0 {
		find(v, "there was no fault")
	}
	v.Note = fmt.Sprintf("%d hits", len(hits))
	return v
}
