package main

import "fmt"

// nothingLost compares what was read at the end with what was acknowledged (P9).
// A write whose outcome is unknown may be there or not; anything else may not
// surprise.
func nothingLost(ops []op) *verdict {
	v := &verdict{Name: "P9 every acknowledged write is there"}
	final := make(map[string]op)
	last := make(map[string]op)     // newest acknowledged write of each key
	tried := make(map[string]bool)  // key and value that were acknowledged or unknown
	refused := make(map[string]int) // key and value that were refused, or surely not applied
	pair := func(o op) string { return o.Key + "\x00" + o.Value }
	for _, o := range ops {
		switch {
		case o.Kind == kindFinal:
			final[o.Key] = o
		case o.Kind != kindPut && o.Kind != kindStalePut:
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
		case !ok:
			v.find("%s, written by operation %d, is not there", key, w.ID)
		case f.Version < w.Version:
			v.find("%s has version %d, but operation %d wrote version %d", key, f.Version, w.ID, w.Version)
		case f.Version == w.Version && f.Value != w.Value:
			v.find("%s has %q at version %d, but operation %d wrote %q", key, f.Value, f.Version, w.ID, w.Value)
		case f.Version > w.Version && f.Value == w.Value:
			v.find("%s has version %d, but operation %d, which wrote that value, was told version %d", key, f.Version, w.ID, w.Version)
		}
	}
	for key, f := range final {
		if id := refused[pair(f)]; id != 0 {
			v.find("%s has the value of operation %d, which was not accepted", key, id)
		} else if !tried[pair(f)] {
			v.find("%s has %q, which nobody wrote", key, f.Value)
		}
	}
	if len(last) == 0 {
		v.find("nothing was written")
	}
	v.Note = fmt.Sprintf("%d keys", len(last))
	return v
}

func versionsRise(ops []op) *verdict {
	v := &verdict{Name: "versions of a key rise"}
	puts := filter(ops, func(o op) bool { return o.Kind == kindPut && o.Result == endOK })
	keys := groups(puts, func(o op) string { return o.Key })
	for _, list := range keys {
		inversions(v, list, "version", func(o op) uint64 { return o.Version })
	}
	if len(keys) == 0 {
		v.find("nothing was written")
	}
	v.Note = fmt.Sprintf("%d writes", len(puts))
	return v
}

// staleRefused: a token that was superseded before the write began is refused,
// and by the fence (P4).
func staleRefused(ops []op) *verdict {
	v := &verdict{Name: "P4 no stale write was accepted"}
	refused := 0
	for _, o := range ops {
		if o.Kind != kindStalePut {
			continue
		}
		switch {
		case o.Result == endOK:
			v.find("operation %d wrote %s with the superseded token %d", o.ID, o.Key, o.Token)
		case o.Result == endRefused && o.Code != "stale_token":
			v.find("operation %d, with a superseded token, was refused as %s", o.ID, o.Code)
		case o.Result == endRefused:
			refused++
		}
	}
	if refused == 0 {
		v.find("no stale write was tried and answered")
	}
	v.Note = fmt.Sprintf("%d refused", refused)
	return v
}

// answeredOnce compares repeated requests with what they were told first (P11).
// An acquire whose lease has ended since is answered with lease_lost, and the
// same token.
func answeredOnce(ops []op) *verdict {
	v := &verdict{Name: "P11 a repeated request tells the same"}
	byID := make(map[int]op)
	for _, o := range ops {
		byID[o.ID] = o
	}
	compared := 0
	for _, o := range ops {
		if o.Kind != kindRepeat || o.Result == endNone || o.Result == endUnknown {
			continue
		}
		of, ok := byID[o.Of]
		if !ok || of.Result != endOK {
			v.find("operation %d repeats %d, which was not acknowledged", o.ID, o.Of)
			continue
		}
		compared++
		lost := of.Kind == kindAcquire && o.Code == "lease_lost"
		switch {
		case o.Result == endRefused && !lost:
			v.find("operation %d repeats %d, which was acknowledged, and was refused: %s", o.ID, of.ID, o.Text)
		case of.Kind == kindAcquire && o.Token != of.Token:
			v.find("operation %d repeats %d and got token %d, first it was %d", o.ID, of.ID, o.Token, of.Token)
		case of.Kind == kindPut && o.Version != of.Version:
			v.find("operation %d repeats %d and got version %d, first it was %d", o.ID, of.ID, o.Version, of.Version)
		case of.Kind == kindRelease && o.Released != of.Released:
			v.find("operation %d repeats %d and got released %t, first it was %t", o.ID, of.ID, o.Released, of.Released)
		}
	}
	if compared == 0 {
		v.find("no repetition was answered")
	}
	v.Note = fmt.Sprintf("%d repetitions", compared)
	return v
}
