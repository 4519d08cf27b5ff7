package replay

import (
	"strings"
	"testing"
	"time"

	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
)

// paced judges answers that came every 100 ms, each of an entry of its own, for whose
// clock and term a function is asked.
func paced(drift float64, of func(at time.Duration) (clock time.Duration, term uint64)) []string {
	h := new(check.History)
	for i := range 60 {
		sent := int64(time.Duration(i+1) * 100 * time.Millisecond)
		h.Exchanges = append(h.Exchanges, &check.Exchange{
			ID: i + 1, Client: "c", Start: sent, End: sent + int64(5*time.Millisecond), Method: "PUT", Path: "/v1/kv/a", Status: 200, Index: uint64(i + 1),
		})
	}
	p := newPace(newVisibility(h), drift)
	for _, x := range h.Exchanges {
		clock, term := of(time.Duration(x.Start))
		p.see(read(x), check.Entry{Index: x.Index, Term: term, Command: &fsmpb.Command{Term: term}}, uint64(clock.Milliseconds()))
	}
	return p.verdict().Findings
}

func TestP8_TheClockGoesWithRealTime(t *testing.T) {
	for name, c := range map[string]struct {
		drift float64
		clock func(at time.Duration) (time.Duration, uint64)
		want  string // "": nothing is found
	}{
		"as time goes":     {0, func(at time.Duration) (time.Duration, uint64) { return at, 1 }, ""},
		"within the drift": {0.05, func(at time.Duration) (time.Duration, uint64) { return at * 96 / 100, 1 }, ""},
		"a little slow":    {0.05, func(at time.Duration) (time.Duration, uint64) { return at * 94 / 100, 1 }, "fallen behind"},
		"a little fast":    {0.05, func(at time.Duration) (time.Duration, uint64) { return at * 106 / 100, 1 }, "ahead of"},
		"still between leaders": {0, func(at time.Duration) (time.Duration, uint64) {
			return min(at, 2*time.Second) + max(0, at-4*time.Second), 1 + uint64(max(0, min(at, 4*time.Second)-2*time.Second)/(100*time.Millisecond))
		}, ""},
		"a leader's uptime": {0, func(at time.Duration) (time.Duration, uint64) {
			return at + at/(3*time.Second)*time.Minute, 1 + uint64(at/(3*time.Second))
		}, "ahead of"},
		"it stands still": {0, func(at time.Duration) (time.Duration, uint64) { return min(at, 3*time.Second), 1 }, "fallen behind"},
	} {
		if found := strings.Join(paced(c.drift, c.clock), "; "); (c.want == "") != (found == "") || !strings.Contains(found, c.want) {
			t.Errorf("%s: %q, want %q", name, found, c.want)
		}
	}
}

// What waits, or came to no end, says nothing about when its entry was stamped.
func TestP8_AnAcquireMayHaveWaited(t *testing.T) {
	for call, want := range map[string]bool{"renew": true, "release": true, "acquire": false, "cancel": false} {
		a := read(&check.Exchange{Start: 1, End: 2, Method: "POST", Path: "/v1/leases/a/" + call, Body: []byte("{}"), Status: 200, Index: 1})
		if got := a.stamped(); got != want {
			t.Errorf("%s: %v", call, got)
		}
	}
}
