package main

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	"fencepost/cluster/check"
)

// A holdingTime is the time for which a holder may be sure of a lease: from the answer
// on that told it, to what it was promised last, or until it began to give it back.
type holdingTime struct {
	grant op
	from  int64
	to    int64
}

// rounding is what a lease may lose because the cluster clock counts milliseconds.
const rounding = int64(time.Millisecond)

// holdings are those of leases with one slot.
func holdings(ops []op) map[uint64]*holdingTime {
	held := make(map[uint64]*holdingTime)
	for _, o := range granted(ops) {
		if o.Slots == 1 {
			held[o.Token] = &holdingTime{o, o.End, o.Until - rounding}
		}
	}
	for _, o := range ops {
		if h := held[o.Token]; h != nil && o.Kind == kindRenew && o.Result == endOK {
			h.to = max(h.to, o.Until-rounding)
		}
	}
	for _, o := range ops {
		if h := held[o.Token]; h != nil && o.Kind == kindRelease && o.Result != endNone {
			h.to = min(h.to, o.Start)
		}
		if o.Kind == kindCancel {
			// Of which lease its path says; of which acquire, only its key: all that
			// are held then may be meant.
			for _, h := range held {
				if h.grant.Name == o.Name && h.grant.Start < o.Start {
					h.to = min(h.to, o.Start)
				}
			}
		}
	}
	for token, h := range held {
		if h.to <= h.from {
			delete(held, token) // it was over when its holder heard of it
		}
	}
	return held
}

// oneHolder: no lease is told to a second holder while the first may be sure of it.
func oneHolder(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "P3, P7 one holder at a time"}
	names := make(map[string][]*holdingTime)
	all := holdings(ops)
	for _, h := range all {
		names[h.grant.Name] = append(names[h.grant.Name], h)
	}
	for name, list := range names {
		slices.SortFunc(list, func(a, b *holdingTime) int { return cmp.Compare(a.from, b.from) })
		last := list[0]
		for _, h := range list[1:] {
			if h.from < last.to {
				find(v, "exchange %d got %s while %d held it for another %s", h.grant.ID, name, last.grant.ID, time.Duration(last.to-h.from))
			}
			if h.to > last.to {
				last = h
			}
		}
	}
	v.Note = fmt.Sprintf("%d holdings", len(all))
	return v
}

// holdersNotFenced looks for holders that were refused in the time they were
// promised.
func holdersNotFenced(ops []op) *check.Verdict {
	v := &check.Verdict{Name: "P7 no live holder is refused"}
	all := holdings(ops)
	looked := 0
	for _, o := range ops {
		h := all[o.Token]
		if h == nil || o.Kind != kindPut && o.Kind != kindDelete && o.Kind != kindRenew || o.Name != h.grant.Name || o.End == 0 || o.End >= h.to {
			continue
		}
		looked++
		if o.Result == endRefused {
			find(v, "exchange %d, a %s by the holder %d, was refused as %s, %s before its lease could end", o.ID, o.Kind, h.grant.ID, o.Code, time.Duration(h.to-o.End))
		}
	}
	if looked == 0 {
		find(v, "no holder wrote")
	}
	v.Note = fmt.Sprintf("%d requests by live holders", looked)
	return v
}

func decoded(s string) string {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return "not base64: " + s
	}
	return string(b)
}
