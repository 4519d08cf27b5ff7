package main

import (
	"cmp"
	"fmt"
	"slices"

	"fencepost/cluster/check"
)

// nothingLost compares what was read at the end with what was acknowledged (P9).
// A write whose outcome is unknown may be there or not; anything else may not
// surprise.
func nothingLost(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "P9 every acknowledged write is there"}
	final := make(map[string]op)
	last := make(map[string]op)      // newest acknowledged write of each key
	tried := make(map[string]bool)   // key and value that were acknowledged or unknown
	refused := make(map[string]int)  // key and value that were refused, or surely not applied
	deleted := make(map[string]bool) // or perhaps: such a key may be gone
	pair := func(o op) string { return o.Key + "\x00" + o.Value }
	for _, o := range ops {
		switch {
		case o.Kind == kindFinal:
			final[o.Key] = o
		case o.Kind == kindDelete:
			deleted[o.Key] = deleted[o.Key] || o.Result != endNone
		case o.Kind != kindPut:
		case o.Result == endOK:
			tried[pair(o)] = true
			if o.Version > last[o.Key].Version {
				last[o.Key] = o
			}
		case o.Result == endUnknown:
			tried[pair(o)] = true
		default:
			refused[pair(o)] = o.ID
		}
	}
	for key, w := range last {
		f, ok := final[key]
		switch {
		case !ok && deleted[key]:
		case !ok:
			find(v, "%s, written by operation %d, is not there", key, w.ID)
		case f.Version < w.Version:
			find(v, "%s has version %d, but operation %d wrote version %d", key, f.Version, w.ID, w.Version)
		case f.Version == w.Version && f.Value != w.Value:
			find(v, "%s has %q at version %d, but operation %d wrote %q", key, f.Value, f.Version, w.ID, w.Value)
		case f.Version > w.Version && f.Value == w.Value:
			find(v, "%s has version %d, but operation %d, which wrote that value, was told version %d", key, f.Version, w.ID, w.Version)
		}
	}
	for key, f := range final {
		if id := refused[pair(f)]; id != 0 {
			find(v, "%s has the value of operation %d, which was not accepted", key, id)
		} else if !tried[pair(f)] {
			find(v, "%s has %q, which nobody wrote", key, f.Value)
		}
	}
	if len(last) == 0 {
		find(v, "nothing was written")
	}
	v.Note = fmt.Sprintf("%d keys", len(last))
	return v
}

func versionsRise(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "versions of a key rise"}
	puts := filter(ops, func(o op) bool { return o.Kind == kindPut && o.Result == endOK })
	keys := groups(puts, func(o op) string { return o.Key })
	for _, list := range keys {
		inversions(v, list, "version", func(o op) uint64 { return o.Version })
	}
	if len(keys) == 0 {
		find(v, "nothing was written")
	}
	v.Note = fmt.Sprintf("%d writes", len(puts))
	return v
}

// staleRefused: a write that began after a newer token of its lease was told is
// refused by the fence (P4).
func staleRefused(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "P4 no stale write was accepted"}
	grants := groups(granted(ops), func(o op) string { return o.Name })
	for _, list := range grants {
		slices.SortFunc(list, func(a, b op) int { return cmp.Compare(a.End, b.End) })
		for i := range list[1:] { // the newest token told until then
			list[i+1].Token = max(list[i+1].Token, list[i].Token)
		}
	}
	refused := 0
	for _, o := range ops {
		list := grants[o.Name]
		if o.Kind != kindPut && o.Kind != kindDelete || len(list) == 0 || list[0].Slots > 1 {
			continue
		}
		i, _ := slices.BinarySearchFunc(list, o.Start, func(g op, at int64) int { return cmp.Compare(g.End, at) })
		if i == 0 || list[i-1].Token <= o.Token {
			continue
		}
		switch {
		case o.Result == endOK:
			find(v, "operation %d wrote %s with token %d, though %d had been told before it was sent", o.ID, o.Key, o.Token, list[i-1].Token)
		case o.Result == endRefused && o.Code != "stale_token":
			find(v, "operation %d, with the superseded token %d, was refused as %s", o.ID, o.Token, o.Code)
		case o.Result == endRefused:
			refused++
		}
	}
	if refused == 0 {
		find(v, "no stale write was tried and answered")
	}
	v.Note = fmt.Sprintf("%d refused", refused)
	return v
}

// answeredOnce compares repeated requests with what they were told first (P11).
// An acquire whose lease has ended since is answered with lease_lost, and the
// same token. A renewal is not remembered: its repetition is another one.
func answeredOnce(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "P11 a repeated request tells the same"}
	byID := make(map[int]op)
	for _, o := range ops {
		if o.Kind != kindRepeat && o.Kind != kindFinal {
			byID[o.ID] = o
		}
	}
	compared := 0
	for _, o := range ops {
		if o.Kind != kindRepeat {
			continue
		}
		of, ok := byID[o.Of]
		if !ok {
			find(v, "exchange %d repeats %d, which was not answered", o.ID, o.Of)
			continue
		}
		compared++
		lost := (of.Kind == kindAcquire || of.Kind == kindRenew) && o.Code == "lease_lost"
		switch {
		case of.Result == endRefused && o.Result == endOK:
			find(v, "exchange %d was acknowledged, though %d, the same request, had been refused as %s", o.ID, of.ID, of.Code)
		case of.Result == endRefused:
		case o.Result == endRefused && !lost:
			find(v, "exchange %d repeats %d, which was acknowledged, and was refused as %s", o.ID, of.ID, o.Code)
		case of.Kind == kindAcquire && o.Token != of.Token:
			find(v, "exchange %d repeats %d and got token %d, first it was %d", o.ID, of.ID, o.Token, of.Token)
		case of.Kind == kindPut && o.Version != of.Version:
			find(v, "exchange %d repeats %d and got version %d, first it was %d", o.ID, of.ID, o.Version, of.Version)
		case of.Kind == kindRelease && o.Released != of.Released:
			find(v, "exchange %d repeats %d and got released %t, first it was %t", o.ID, of.ID, o.Released, of.Released)
		}
	}
	if compared == 0 {
		find(v, "no repetition was answered")
	}
	v.Note = fmt.Sprintf("%d repetitions", compared)
	return v
}
