package httpapi

import (
	"runtime"
	"strconv"
	"testing"

	"fencepost/fsm"
)

// start sends a request that waits, and returns once the lease has so many
// waiters; the answer comes later.
func (a *api) start(waiters int, name, body string, headers ...string) <-chan *answer {
	a.t.Helper()
	done := make(chan *answer, 1)
	go func() { done <- a.do("POST", "/v1/leases/"+name+"/acquire", body, headers...) }()
	for {
		n := 0
		_, _ = a.node.Read(a.t.Context(), true, func(s *fsm.State) { n = s.QueueLength(name) })
		if n >= waiters || a.t.Failed() {
			return done
		}
		runtime.Gosched()
	}
}

// P12: a release grants the lease to the one that waits first, in its own entry.
func TestP12_WaitersAreAnsweredInOrder(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("l")
	first := a.start(1, "l", `{"holder":"w1","wait_ms":60000,"ttl_ms":5000}`)
	second := a.start(2, "l", `{"holder":"w2","wait_ms":60000}`)
	a.do("GET", "/v1/leases/l", "").is(200, "").has("queue_length", 2)
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"w3"}`).is(409, "lease_held").has("queue_length", 2, "holder", "h")

	freed := a.do("POST", "/v1/leases/l/release", `{"token":`+token10(token)+`}`).is(200, "").has("released", true)
	got := (<-first).is(200, "").has("holder", "w1", "ttl_ms", 5000, "expires_in_ms", 5000, "previous_token", token)
	if index := freed.header.Get("Fencepost-Index"); token10(got.number("token")) != index {
		t.Errorf("token %d was granted by another entry than the release's, %s", got.number("token"), index)
	}
	a.node.pass(5000)
	(<-second).is(200, "").has("holder", "w2", "previous_token", got.number("token"))
}

func TestAWaitEnds(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("l")
	waits := a.start(1, "l", `{"holder":"w","wait_ms":1000}`)
	a.node.pass(1000)
	(<-waits).is(409, "lease_held").has("holder", "h", "token", token, "expires_in_ms", 9000, "queue_length", 0)
}

func TestAWaitIsCancelled(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("l")
	waits := a.start(1, "l", `{"holder":"w","wait_ms":1000}`, "Idempotency-Key", "k1")
	a.do("POST", "/v1/leases/l/cancel", "", "Idempotency-Key", "k1").is(200, "").has("cancelled", true)
	(<-waits).is(409, "cancelled")
	// Twice comes to the same, with and without a document.
	a.do("POST", "/v1/leases/l/cancel", "{}", "Idempotency-Key", "k1").is(200, "").has("cancelled", true)
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"w","wait_ms":1000}`, "Idempotency-Key", "k1").is(409, "cancelled")

	// One that overtakes its acquire.
	a.do("POST", "/v1/leases/l/cancel", "", "Idempotency-Key", "k2").is(200, "").has("cancelled", true)
	a.do("POST", "/v1/leases/l/release", `{"token":`+token10(token)+`}`).is(200, "").has("released", true)
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"w"}`, "Idempotency-Key", "k2").is(409, "cancelled")

	// And one after the grant.
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"w"}`, "Idempotency-Key", "k3").is(200, "")
	a.do("POST", "/v1/leases/l/cancel", "", "Idempotency-Key", "k3").is(200, "").has("cancelled", true)
	a.do("GET", "/v1/leases/l", "").is(200, "").has("held", false)
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"w"}`, "Idempotency-Key", "k3").is(409, "cancelled")

	a.invalid("Idempotency-Key", "POST", "/v1/leases/l/cancel", "")
	a.do("POST", "/v1/leases/l/cancel", `{"token":1}`, "Idempotency-Key", "k3").is(400, "invalid_request").has("field", "token")
}

// P3: readers beside each other, and a writer alone.
func TestP3_ASharedLease(t *testing.T) {
	a := newAPI(t)
	r1 := a.do("POST", "/v1/leases/l/acquire", `{"holder":"r1","slots":3}`).is(200, "").has("slots", 3, "take", 1).number("token")
	r2 := a.do("POST", "/v1/leases/l/acquire", `{"holder":"r2","slots":3}`).is(200, "").has("oldest_token", r1, "previous_token", r1).number("token")
	a.do("GET", "/v1/leases/l", "").is(200, "").has("slots", 3, "free", 1, "held", true, "holder", "r1")
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"x"}`).is(409, "slots_differ").has("slots", 3)
	writer := a.start(1, "l", `{"holder":"w","slots":3,"take":3,"wait_ms":60000}`)
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"r3","slots":3}`).is(409, "lease_held").has("queue_length", 1)
	for _, token := range []uint64{r1, r2} {
		a.do("POST", "/v1/leases/l/release", `{"token":`+token10(token)+`}`).is(200, "").has("released", true)
	}
	w := (<-writer).is(200, "").has("take", 3)
	w.has("oldest_token", w.number("token"))
	a.do("GET", "/v1/leases/l", "").is(200, "").has("free", 0)
	// Beside others a write must be held.
	a.do("PUT", "/v1/kv/k", "v", "Fencing-Token", token10(w.number("token"))).is(400, "invalid_request").has("field", "Fencing-Guard")
	a.do("PUT", "/v1/kv/k", "v", "Fencing-Token", token10(w.number("token")), "Fencing-Guard", "held").is(200, "").has("watermark", w.number("token"))
}

func TestAGrace(t *testing.T) {
	a := newAPI(t)
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"h","ttl_ms":1000,"grace_ms":5000}`).is(200, "")
	a.node.pass(2000)
	a.do("GET", "/v1/leases/l", "").is(200, "").has("held", false, "grace_ms", 4000, "free", 0)
	refused := a.do("POST", "/v1/leases/l/acquire", `{"holder":"w"}`).is(409, "lease_held").has("grace_ms", 4000)
	if _, ok := refused.body["holder"]; ok {
		t.Errorf("a grace has no holder: %s", refused.raw)
	}
	waits := a.start(1, "l", `{"holder":"w","wait_ms":60000}`)
	a.node.pass(4000)
	(<-waits).is(200, "").has("holder", "w")
}

// A repetition that another answer would be wrong for: the key is looked up
// before anything is refused, and how long it waits may differ.
func TestP11_AWaitIsRepeated(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("l")
	waits := a.start(1, "l", `{"holder":"w","wait_ms":60000}`, "Idempotency-Key", "k1")
	other := a.start(1, "l", `{"holder":"w","wait_ms":50000}`, "Idempotency-Key", "k1")
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"v","wait_ms":60000}`, "Idempotency-Key", "k1").is(422, "key_reused")
	a.do("POST", "/v1/leases/l/release", `{"token":`+token10(token)+`}`).is(200, "")
	got := (<-waits).is(200, "").number("token")
	(<-other).is(200, "").has("token", got)
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"w"}`, "Idempotency-Key", "k1").is(200, "").has("token", got)
	a.do("POST", "/v1/leases/l/release", `{"token":`+strconv.FormatUint(got, 10)+`}`).is(200, "")
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"w"}`, "Idempotency-Key", "k1").is(409, "lease_lost").has("token", got, "reason", "released")
}
