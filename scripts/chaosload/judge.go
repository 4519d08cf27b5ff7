package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// verdict is what one check found. No finding is a pass, but a check that had
// nothing to look at has not passed: it says so as a finding.
type verdict struct {
	Name     string
	Findings []string
	Note     string
}

// maxShown is how many findings are printed of each check.
const maxShown = 3

func (v *verdict) Failed() bool { return len(v.Findings) > 0 }

func (v *verdict) Text() string {
	if !v.Failed() {
		return v.Note
	}
	s := strings.Join(v.Findings[:min(maxShown, len(v.Findings))], "; ")
	if more := len(v.Findings) - maxShown; more > 0 {
		s += fmt.Sprintf("; and %d more", more)
	}
	return s
}

func (v *verdict) find(format string, args ...any) {
	v.Findings = append(v.Findings, fmt.Sprintf(format, args...))
}

// judge makes all checks; each is named after the promise that it tests.
func judge(ops []op, kills []kill, outage time.Duration) []*verdict {
	return []*verdict{
		acknowledged(ops, kills),
		orderPerName(ops),
		orderOverAll(ops),
		uniqueTokens(ops),
		oneHolder(ops),
		holdersNotFenced(ops),
		nothingLost(ops),
		versionsRise(ops),
		staleRefused(ops),
		answeredOnce(ops),
		killsHit(kills),
		outages(ops, kills, outage),
	}
}

// acknowledged demands that there is something to judge: before, between and
// after the kills.
func acknowledged(ops []op, kills []kill) *verdict {
	v := &verdict{Name: "load was served"}
	counts := make(map[string]int)
	other := make(map[string]int)
	for _, o := range ops {
		if o.Result == endOK {
			counts[o.Kind]++
		} else {
			other[o.Result]++
		}
	}
	for _, kind := range []string{kindAcquire, kindPut, kindRelease, kindRepeat, kindFinal} {
		if counts[kind] == 0 {
			v.find("no %s was acknowledged", kind)
		}
	}
	for i, k := range kills {
		until := int64(1<<63 - 1)
		if i+1 < len(kills) {
			until = kills[i+1].At
		}
		if !slices.ContainsFunc(ops, func(o op) bool {
			return o.Result == endOK && o.Kind == kindPut && o.Start >= k.At && o.End < until
		}) {
			v.find("no write was acknowledged after kill %d and before the next", i+1)
		}
	}
	v.Note = fmt.Sprintf("%d acquisitions, %d writes, %d releases acknowledged; %d refused, %d not taken, %d unknown",
		counts[kindAcquire], counts[kindPut], counts[kindRelease], other[endRefused], other[endNone], other[endUnknown])
	return v
}

// granted are the acknowledged acquisitions.
func granted(ops []op) []op {
	return filter(ops, func(o op) bool { return o.Kind == kindAcquire && o.Result == endOK })
}

func filter(ops []op, keep func(op) bool) []op {
	var out []op
	for _, o := range ops {
		if keep(o) {
			out = append(out, o)
		}
	}
	return out
}

// inversions finds operations whose number is not above that of one that had
// returned before they were sent.
func inversions(v *verdict, ops []op, what string, number func(op) uint64) {
	byStart, byEnd := slices.Clone(ops), slices.Clone(ops)
	slices.SortFunc(byStart, func(a, b op) int { return cmp.Compare(a.Start, b.Start) })
	slices.SortFunc(byEnd, func(a, b op) int { return cmp.Compare(a.End, b.End) })
	var newest op // of those that returned before
	next := 0
	for _, o := range byStart {
		for ; next < len(byEnd) && byEnd[next].End < o.Start; next++ {
			if number(byEnd[next]) > number(newest) {
				newest = byEnd[next]
			}
		}
		if newest.ID != 0 && number(o) <= number(newest) {
			v.find("operation %d got %s %d, though operation %d had got %d before it was sent", o.ID, what, number(o), newest.ID, number(newest))
		}
	}
}

func tokenOf(o op) uint64 { return o.Token }

func groups(ops []op, by func(op) string) map[string][]op {
	m := make(map[string][]op)
	for _, o := range ops {
		m[by(o)] = append(m[by(o)], o)
	}
	return m
}

func orderPerName(ops []op) *verdict {
	v := &verdict{Name: "P1 tokens of a lease rise"}
	named := groups(granted(ops), func(o op) string { return o.Name })
	for _, list := range named {
		inversions(v, list, "token", tokenOf)
	}
	v.Note = fmt.Sprintf("%d leases", len(named))
	return v
}

func orderOverAll(ops []op) *verdict {
	v := &verdict{Name: "P1 tokens of all leases rise"}
	all := granted(ops)
	inversions(v, all, "token", tokenOf)
	v.Note = fmt.Sprintf("%d tokens", len(all))
	return v
}

// uniqueTokens also counts versions: both are the index of the entry that made
// them.
func uniqueTokens(ops []op) *verdict {
	v := &verdict{Name: "P2 one entry, one grant"}
	seen := make(map[uint64]op)
	for _, o := range ops {
		if o.Result != endOK || o.Kind != kindAcquire && o.Kind != kindPut {
			continue
		}
		index := o.Token
		if o.Kind == kindPut {
			index = o.Version
		}
		if index == 0 {
			v.find("operation %d was acknowledged without a number", o.ID)
			continue
		}
		if before, ok := seen[index]; ok {
			v.find("operations %d and %d both got %d", before.ID, o.ID, index)
		}
		seen[index] = o
	}
	v.Note = fmt.Sprintf("%d entries", len(seen))
	return v
}

// oneHolder compares the times for which holders may be sure: from their answer
// to their release, or to the end that they were promised.
func oneHolder(ops []op) *verdict {
	v := &verdict{Name: "P3, P7 one holder at a time"}
	released := make(map[uint64]int64)
	for _, o := range ops {
		if o.Kind == kindRelease {
			released[o.Token] = o.Start
		}
	}
	intervals := 0
	for _, list := range groups(granted(ops), func(o op) string { return o.Name }) {
		slices.SortFunc(list, func(a, b op) int { return cmp.Compare(a.End, b.End) })
		var last op
		lastEnd := int64(0)
		for _, o := range list {
			end := o.Start + int64(o.TTLMS)*int64(time.Millisecond)
			if at, ok := released[o.Token]; ok {
				end = min(end, at)
			}
			if end <= o.End {
				continue // it was over when its holder heard of it
			}
			intervals++
			if last.ID != 0 && o.End < lastEnd && o.Token != last.Token {
				v.find("operation %d got %s while %d held it for another %s", o.ID, o.Name, last.ID, time.Duration(lastEnd-o.End))
			}
			if end > lastEnd {
				last, lastEnd = o, end
			}
		}
	}
	v.Note = fmt.Sprintf("%d holdings", intervals)
	return v
}

// holdersNotFenced looks for holders that were refused in the time they were
// promised.
func holdersNotFenced(ops []op) *verdict {
	v := &verdict{Name: "P7 no live holder is refused"}
	by := make(map[uint64]op)
	for _, o := range granted(ops) {
		by[o.Token] = o
	}
	looked := 0
	for _, o := range ops {
		a, ok := by[o.Token]
		if o.Kind != kindPut || !ok || o.End >= a.Start+int64(a.TTLMS)*int64(time.Millisecond) {
			continue
		}
		looked++
		if o.Result == endRefused {
			v.find("operation %d, a write by the holder %d, was refused: %s", o.ID, a.ID, o.Text)
		}
	}
	if looked == 0 {
		v.find("no holder wrote")
	}
	v.Note = fmt.Sprintf("%d writes by live holders", looked)
	return v
}

// outages measures from each kill to the first success of an operation that
// began after it.
func outages(ops []op, kills []kill, bound time.Duration) *verdict {
	v := &verdict{Name: "time without service"}
	var all []time.Duration
	for i, k := range kills {
		first := int64(-1)
		for _, o := range ops {
			if o.Result == endOK && o.Kind != kindFinal && o.Start > k.At && (first < 0 || o.End < first) {
				first = o.End
			}
		}
		if first < 0 {
			v.find("nothing succeeded after kill %d", i+1)
			continue
		}
		d := time.Duration(first - k.At)
		if d >= bound {
			v.find("%s after kill %d, the bound is %s", d.Round(time.Millisecond), i+1, bound)
		}
		all = append(all, d)
	}
	if len(all) == 0 {
		v.find("nothing was killed")
		return v
	}
	slices.Sort(all)
	v.Note = fmt.Sprintf("median %s, max %s of %d kills",
		all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond), len(all))
	return v
}

// killsHit demands that each kill ended a leader, and that another took over.
func killsHit(kills []kill) *verdict {
	v := &verdict{Name: "every kill hit the leader"}
	for i, k := range kills {
		switch {
		case !k.Gone:
			v.find("kill %d: %s is still there", i+1, k.Node)
		case k.NewLeader == "" || k.NewLeader == k.Node:
			v.find("kill %d: nobody took over from %s", i+1, k.Node)
		case k.NewTerm <= k.Term:
			v.find("kill %d: %s led in term %d, and %s leads in term %d, which is not higher", i+1, k.Node, k.Term, k.NewLeader, k.NewTerm)
		}
	}
	if len(kills) == 0 {
		v.find("nothing was killed")
	}
	v.Note = fmt.Sprintf("%d kills", len(kills))
	return v
}
