package main

import (
	"cmp"
	"fmt"
	"slices"

	"fencepost/cluster/check"
)

// find adds a finding to a verdict.
func find(v *check.Verdict, format string, args ...any) {
	v.Findings = append(v.Findings, fmt.Sprintf(format, args...))
}

// answers are the checks that need nothing but what clients saw, with token and
// version order taken at the cluster's word. Each is named after the promise that
// it tests.
func answers(ops []op) []*check.Verdict {
	return []*check.Verdict{
		acknowledged(ops),
		orderPerName(ops),
		orderOverAll(ops),
		uniqueTokens(ops),
		oneHolder(ops),
		holdersNotFenced(ops),
		nothingLost(ops),
		versionsRise(ops),
		staleRefused(ops),
		answeredOnce(ops),
	}
}

// acknowledged demands that there is something to judge.
func acknowledged(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "load was served"}
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
			find(v, "no %s was acknowledged", kind)
		}
	}
	v.Note = fmt.Sprintf("%d acquisitions, %d writes, %d releases, %d renewals acknowledged; %d refused, %d not taken, %d unknown",
		counts[kindAcquire], counts[kindPut], counts[kindRelease], counts[kindRenew], other[endRefused], other[endNone], other[endUnknown])
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
func inversions(v *check.Verdict, ops []op, what string, number func(op) uint64) {
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
			find(v, "operation %d got %s %d, though operation %d had got %d before it was sent", o.ID, what, number(o), newest.ID, number(newest))
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

func orderPerName(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "P1 tokens of a lease rise"}
	named := groups(granted(ops), func(o op) string { return o.Name })
	for _, list := range named {
		inversions(v, list, "token", tokenOf)
	}
	v.Note = fmt.Sprintf("%d leases", len(named))
	return v
}

func orderOverAll(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "P1 tokens of all leases rise"}
	all := granted(ops)
	inversions(v, all, "token", tokenOf)
	v.Note = fmt.Sprintf("%d tokens", len(all))
	return v
}

// uniqueTokens also counts versions: both are the index of the entry that made
// them.
func uniqueTokens(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "P2 one entry, one grant"}
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
			find(v, "operation %d was acknowledged without a number", o.ID)
			continue
		}
		if before, ok := seen[index]; ok {
			find(v, "operations %d and %d both got %d", before.ID, o.ID, index)
		}
		seen[index] = o
	}
	v.Note = fmt.Sprintf("%d entries", len(seen))
	return v
}
