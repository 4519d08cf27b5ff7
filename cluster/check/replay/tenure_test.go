package replay

import (
	"strings"
	"testing"
	"time"

	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
	"fencepost/fsm/model"
)

// tenured judges a log in which somebody waits for a lease of a second, which is
// followed, in another term, by a command at a cluster time, seen at a time.
func tenured(c *fsmpb.Command, clock, at time.Duration) string {
	wait := &fsmpb.Request{Key: "w", Path: "p"}
	log := []check.Entry{
		{Index: 1, Term: 1, Command: &fsmpb.Command{Term: 1, Op: &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{Name: "a", Holder: "h", TtlMs: 1000}}}},
		{Index: 2, Term: 1, Command: &fsmpb.Command{Term: 1, Op: &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{Name: "a", Holder: "w", TtlMs: 1000, WaitMs: 60_000, Request: wait}}}},
		{Index: 3, Term: 2, Command: &fsmpb.Command{Term: 2, Op: &fsmpb.Command_Tick{Tick: &fsmpb.Tick{}}}},
		{Index: 4, Term: 2, Command: c},
	}
	c.Term, c.NowMs = 2, uint64(clock.Milliseconds())
	h := &check.History{Punctual: 3 * time.Second, Exchanges: []*check.Exchange{
		{Client: "c", Start: int64(time.Second), End: int64(time.Second) + 1, Method: "PUT", Path: "/v1/kv/a", Status: 412, Index: 2},
		{Client: "c", Start: int64(at), End: int64(at) + 1, Method: "GET", Path: "/v1/kv/a", Status: 404, Index: 4},
	}}
	all := newTenure(newVisibility(h), h.Punctual)
	m := model.New()
	for _, e := range log {
		_, events := m.Apply(e.Index, e.Term, e.Command)
		var decided []*asked
		if e.Index == 2 {
			decided = []*asked{read(h.Exchanges[0])}
		}
		all.see(e, m, events, decided)
	}
	var found []string
	for _, v := range all.verdicts() {
		for _, f := range v.Findings {
			found = append(found, v.Name+": "+f)
		}
	}
	return strings.Join(found, "; ")
}

func TestP12_ANewLeaderGivesNobodyUp(t *testing.T) {
	leaders := func(attempt uint64) *fsmpb.Command {
		return &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: "a", Request: &fsmpb.Request{Key: "w", Path: "p"}, Attempt: attempt}}}
	}
	if found := tenured(leaders(1), 0, 3*time.Second); !strings.Contains(found, "P12 a new leader gives nobody up: entry 4") {
		t.Errorf("two seconds after its term began: %q", found)
	}
	if found := tenured(leaders(1), 0, 7*time.Second); found != "" {
		t.Errorf("six seconds after: %q", found)
	}
	if found := tenured(leaders(0), 0, 3*time.Second); found != "" {
		t.Errorf("a client's: %q", found)
	}
}

func TestP8_WhatIsDueIsDone(t *testing.T) {
	tick := func() *fsmpb.Command { return &fsmpb.Command{Op: &fsmpb.Command_Tick{Tick: &fsmpb.Tick{}}} }
	if found := tenured(tick(), 3*time.Second, 7*time.Second); found != "" {
		t.Errorf("two seconds late: %q", found)
	}
	if found := tenured(tick(), 5*time.Second, 7*time.Second); !strings.Contains(found, "P8 what is due is done: entry 4: something of a has been over for 4s") {
		t.Errorf("four seconds late: %q", found)
	}
}
