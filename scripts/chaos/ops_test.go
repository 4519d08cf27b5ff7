package main

import (
	"reflect"
	"testing"

	"fencepost/cluster/check"
)

// All attempts of a request are one operation, that began with the first of them.
func TestAttemptsBecomeOneOperation(t *testing.T) {
	acquire := func(id int, key string, start, end int64, status int, answered map[string]any) *check.Exchange {
		x := &check.Exchange{ID: id, Client: "w", Method: "POST", Path: "/v1/leases/a%20b/acquire", Key: key, Start: start * ms, End: end * ms, Status: status,
			Body: answer(map[string]any{"holder": "w", "slots": 3})}
		if answered != nil {
			x.Answer = answer(answered)
		}
		return x
	}
	granted := map[string]any{"token": 7, "expires_in_ms": 1000, "waited_ms": 20}
	noLeader := map[string]any{"code": "no_leader"}
	for _, tt := range []struct {
		what string
		in   []*check.Exchange
		want []op
	}{
		{"lost, then answered", []*check.Exchange{acquire(1, "k", 10, 0, 0, nil), acquire(2, "k", 30, 40, 200, granted)}, []op{
			{ID: 2, Kind: kindAcquire, Name: "a b", Token: 7, Slots: 3, Until: 1050 * ms, Start: 10 * ms, End: 40 * ms, Result: endOK},
		}},
		{"answered twice", []*check.Exchange{acquire(1, "k", 10, 20, 200, granted), acquire(2, "k", 30, 40, 200, granted)}, []op{
			{ID: 1, Kind: kindAcquire, Name: "a b", Token: 7, Slots: 3, Until: 1050 * ms, Start: 10 * ms, End: 20 * ms, Result: endOK},
			{ID: 2, Kind: kindRepeat, Of: 1, Name: "a b", Token: 7, Slots: 3, Until: 1050 * ms, Start: 30 * ms, End: 40 * ms, Result: endOK},
		}},
		{"lost, then not taken", []*check.Exchange{acquire(1, "k", 10, 0, 0, nil), acquire(2, "k", 30, 40, 503, noLeader)}, []op{
			{ID: 1, Kind: kindAcquire, Name: "a b", Slots: 3, Start: 10 * ms, Result: endUnknown},
		}},
		{"not taken", []*check.Exchange{acquire(1, "k", 10, 20, 503, noLeader)}, []op{
			{ID: 1, Kind: kindAcquire, Name: "a b", Slots: 3, Start: 10 * ms, End: 20 * ms, Result: endNone, Code: "no_leader"},
		}},
		{"refused", []*check.Exchange{acquire(1, "k", 10, 20, 409, map[string]any{"code": "lease_held", "token": 5})}, []op{
			{ID: 1, Kind: kindAcquire, Name: "a b", Slots: 3, Start: 10 * ms, End: 20 * ms, Result: endRefused, Code: "lease_held"},
		}},
		{"two requests", []*check.Exchange{acquire(1, "k", 10, 20, 409, map[string]any{"code": "lease_held"}), acquire(2, "l", 30, 0, 0, nil)}, []op{
			{ID: 1, Kind: kindAcquire, Name: "a b", Slots: 3, Start: 10 * ms, End: 20 * ms, Result: endRefused, Code: "lease_held"},
			{ID: 2, Kind: kindAcquire, Name: "a b", Slots: 3, Start: 30 * ms, Result: endUnknown},
		}},
	} {
		if got := operations(&check.History{Exchanges: tt.in}); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got\n%+v\nwant\n%+v", tt.what, got, tt.want)
		}
	}
}

func TestOtherRequestsBecomeOperations(t *testing.T) {
	h := &check.History{Exchanges: []*check.Exchange{
		{ID: 1, Method: "PUT", Path: "/v1/kv/a/k", Key: "p", Start: ms, End: 2 * ms, Status: 200, Header: map[string]string{"Fencing-Token": "7"}, Body: []byte("v"), Answer: answer(map[string]any{"version": 9})},
		{ID: 2, Method: "POST", Path: "/v1/renew", Key: "q", Start: 3 * ms, End: 4 * ms, Status: 200, Answer: answer(map[string]any{"results": []map[string]any{
			{"name": "a", "token": 7, "expires_in_ms": 100}, {"name": "b", "token": 8, "code": "lease_lost"},
		}})},
		{ID: 3, Method: "POST", Path: "/v1/leases/a/release", Key: "r", Start: 5 * ms, End: 6 * ms, Status: 200, Body: answer(map[string]any{"token": 7}), Answer: answer(map[string]any{"released": true})},
		{ID: 4, Client: finalClient, Method: "GET", Path: "/v1/kv?values=true", Start: 7 * ms, End: 8 * ms, Status: 200, Answer: answer(map[string]any{"keys": []map[string]any{
			{"key": "a/k", "value_base64": "dg==", "version": 9, "token": 7},
		}})},
		{ID: 5, Client: "w", Method: "GET", Path: "/v1/kv/a/k", Start: 9 * ms, End: 10 * ms, Status: 200},
	}}
	want := []op{
		{ID: 1, Kind: kindPut, Name: "a", Key: "a/k", Value: "v", Token: 7, Slots: 1, Version: 9, Start: ms, End: 2 * ms, Result: endOK},
		{ID: 2, Kind: kindRenew, Name: "a", Token: 7, Slots: 1, Until: 103 * ms, Start: 3 * ms, End: 4 * ms, Result: endOK},
		{ID: 2, Kind: kindRenew, Name: "b", Token: 8, Slots: 1, Start: 3 * ms, End: 4 * ms, Result: endRefused, Code: "lease_lost"},
		{ID: 3, Kind: kindRelease, Name: "a", Token: 7, Slots: 1, Released: true, Start: 5 * ms, End: 6 * ms, Result: endOK},
		{ID: 4, Kind: kindFinal, Key: "a/k", Value: "v", Version: 9, Token: 7, Start: 7 * ms, End: 8 * ms, Result: endOK},
	}
	if got := operations(h); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}
