package main

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

// What an operation was.
const (
	kindAcquire = "acquire"
	kindRenew   = "renew"
	kindRelease = "release"
	kindCancel  = "cancel"
	kindPut     = "put"
	kindDelete  = "delete"
	kindRepeat  = "repeat" // a decided answer to a request that had one already; Of names it
	kindFinal   = "final"  // a key as it was read at the end
)

// How it ended.
const (
	endOK      = "ok"
	endRefused = "refused"
	endNone    = "none"    // surely not applied
	endUnknown = "unknown" // perhaps applied
)

// op is one operation: all exchanges with one Idempotency-Key, whoever sent them.
type op struct {
	ID       int // of an exchange
	Kind     string
	Of       int
	Name     string // of the lease
	Key      string // of the store
	Value    string
	Token    uint64 // got by acquire, given by the others
	Slots    uint64
	Version  uint64
	Released bool
	Until    int64 // what acquire and renew promise, on the recorder's clock
	Start    int64 // of the first exchange
	End      int64 // of the first decided answer, or of the last without
	Result   string
	Code     string // of the refusal
}

// operations makes of a history what the checks of this package look at.
func operations(h *check.History) []op {
	var ops []op
	byKey := make(map[string][]*check.Exchange)
	for _, x := range h.Exchanges {
		path, query, _ := strings.Cut(x.Path, "?")
		switch {
		case x.Method == http.MethodGet:
			if x.Client == finalClient && path == "/v1/kv" && strings.Contains(query, "values") {
				ops = append(ops, finals(x)...)
			}
		case path == "/v1/renew":
			ops = append(ops, renewals(x)...)
		case x.Key != "":
			id := x.Method + " " + path + " " + x.Key
			byKey[id] = append(byKey[id], x)
		}
	}
	for _, attempts := range byKey {
		ops = append(ops, fold(attempts)...)
	}
	slices.SortFunc(ops, func(a, b op) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.ID, b.ID)) })
	return ops
}

// fold makes one operation of its attempts, and a repetition of each further
// answer that tells an outcome.
func fold(attempts []*check.Exchange) []op {
	end := func(x *check.Exchange) int64 { return cmp.Or(x.End, 1<<62) }
	slices.SortFunc(attempts, func(a, b *check.Exchange) int { return cmp.Compare(end(a), end(b)) })
	var ops []op
	first := attempts[0].Start
	for _, x := range attempts {
		first = min(first, x.Start)
	}
	for _, x := range attempts {
		o, ok := read(x)
		if !ok {
			return nil
		}
		if o.Result != endOK && o.Result != endRefused {
			continue
		}
		if len(ops) > 0 {
			o.Kind, o.Of = kindRepeat, ops[0].ID
			ops[0].Until = max(ops[0].Until, o.Until)
		} else {
			o.Start = first
		}
		ops = append(ops, o)
	}
	if len(ops) > 0 {
		return ops
	}
	o, _ := read(attempts[len(attempts)-1])
	o.Start = first
	for _, x := range attempts {
		if r, _ := read(x); r.Result == endUnknown {
			o.Result = endUnknown
		}
	}
	return []op{o}
}

// read understands one exchange; false: it is of no kind that is looked at.
func read(x *check.Exchange) (op, bool) {
	o := op{ID: x.ID, Start: x.Start, End: x.End, Token: number(x.Header, wire.HeaderFencingToken), Slots: 1}
	path, _, _ := strings.Cut(x.Path, "?")
	if key, ok := strings.CutPrefix(path, "/v1/kv/"); ok {
		o.Key = unescaped(key)
		o.Name, _, _ = strings.Cut(o.Key, "/") // as the load has it
		switch x.Method {
		case http.MethodPut:
			o.Kind, o.Value = kindPut, string(x.Body)
		case http.MethodDelete:
			o.Kind = kindDelete
		default:
			return o, false
		}
	} else if lease, ok := strings.CutPrefix(path, "/v1/leases/"); ok {
		i := strings.LastIndexByte(lease, '/')
		o.Name, o.Kind = unescaped(lease[:max(i, 0)]), lease[i+1:]
		var asked struct {
			Token uint64 `json:"token"`
			Slots uint64 `json:"slots"`
		}
		json.Unmarshal(x.Body, &asked) // of cancel it is empty
		o.Token, o.Slots = asked.Token, max(asked.Slots, 1)
	} else {
		return o, false
	}
	o.result(x)
	return o, true
}

// result is what the answer says, if one came.
func (o *op) result(x *check.Exchange) {
	var told struct {
		Code      wire.Code `json:"code"`
		Token     uint64    `json:"token"`
		Version   uint64    `json:"version"`
		Released  bool      `json:"released"`
		ExpiresIn int64     `json:"expires_in_ms"`
		Waited    int64     `json:"waited_ms"`
	}
	json.Unmarshal(x.Answer, &told)
	o.Code = string(told.Code)
	switch {
	case x.End == 0 && x.Unsent, x.Status >= 400 && x.Status < 500 && x.Status != 409 && x.Status != 412 && x.Status != 422:
		o.Result = endNone
	case x.Status == http.StatusOK:
		o.Result = endOK
		o.Version, o.Released = told.Version, told.Released
		if o.Kind == kindAcquire || o.Kind == kindRenew {
			o.Token, o.Until = told.Token, x.Start+(told.Waited+told.ExpiresIn)*1e6
		}
	case x.Status == 409 || x.Status == 412 || x.Status == 422:
		o.Result = endRefused
		if o.Kind == kindAcquire && o.Code == string(wire.CodeLeaseLost) {
			o.Token = told.Token
		}
	case x.Status == http.StatusServiceUnavailable && notTaken(told.Code):
		o.Result = endNone
	default:
		o.Result = endUnknown
	}
}

// notTaken are the codes that say no more of a mutation than that this attempt was
// not taken.
func notTaken(code wire.Code) bool {
	switch code {
	case wire.CodeNoLeader, wire.CodeShuttingDown, wire.CodeOverloaded:
		return true
	}
	return false
}

// renewals are the parts of a renewal of several leases.
func renewals(x *check.Exchange) (ops []op) {
	var told wire.RenewedMany
	if x.Status != http.StatusOK || json.Unmarshal(x.Answer, &told) != nil {
		return nil
	}
	for _, r := range told.Results {
		o := op{ID: x.ID, Kind: kindRenew, Name: r.Name, Token: r.Token, Slots: 1, Start: x.Start, End: x.End, Result: endOK, Until: x.Start + int64(r.ExpiresInMS)*1e6}
		if r.Code != "" {
			o.Result, o.Code, o.Until = endRefused, string(r.Code), 0
		}
		ops = append(ops, o)
	}
	return ops
}

func finals(x *check.Exchange) (ops []op) {
	var told wire.Keys
	if x.Status != http.StatusOK || json.Unmarshal(x.Answer, &told) != nil {
		return nil
	}
	for _, k := range told.Keys {
		o := op{ID: x.ID, Kind: kindFinal, Key: k.Key, Version: k.Version, Token: k.Token, Start: x.Start, End: x.End, Result: endOK}
		if k.ValueBase64 != nil {
			o.Value = decoded(*k.ValueBase64)
		}
		ops = append(ops, o)
	}
	return ops
}

func number(h map[string]string, name string) uint64 {
	n, _ := strconv.ParseUint(h[name], 10, 64)
	return n
}

func unescaped(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

// isStale says whether a read was asked for as one that may be.
func isStale(x *check.Exchange) bool {
	_, query, _ := strings.Cut(x.Path, "?")
	return x.Method == http.MethodGet && (strings.Contains(query, staleQuery) || !strings.HasPrefix(x.Path, "/v1/kv") && !strings.HasPrefix(x.Path, "/v1/leases"))
}
