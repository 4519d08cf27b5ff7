package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"fencepost/cluster/check"
)

func put(start, end int64, status int) *check.Exchange {
	return &check.Exchange{Method: "PUT", Path: "/v1/kv/a/k", Key: "r", Start: start * ms, End: end * ms, Status: status}
}

// What had been sent before the fault says nothing of service after it, nor do
// reads and refusals.
func TestOutagesCountWhatBeganAfterTheFault(t *testing.T) {
	h := &check.History{Exchanges: []*check.Exchange{
		put(90, 105, 200), // sent before
		{Method: "GET", Path: "/v1/kv/a/k", Start: 101 * ms, End: 102 * ms, Status: 200},
		put(110, 0, 0),
		put(111, 112, 412),
		put(120, 700, 200),
		put(300, 400, 200), // began later, and was answered first
	}}
	got := outages(h, []hit{{At: 100 * ms}, {At: 250 * ms}, {At: 500 * ms}})
	if len(got) != 2 || got[0] != 150*time.Millisecond || got[1] != 300*time.Millisecond {
		t.Errorf("got %v, want 150ms of the second hit, 300ms of the first, and none of the third", got)
	}
}

// A leader that is cut off may serve for a moment: the gap comes after that.
func TestGapsAreBetweenAcknowledgements(t *testing.T) {
	h := &check.History{Exchanges: []*check.Exchange{
		put(90, 95, 200), put(100, 110, 200), put(115, 0, 0), put(120, 710, 200), put(715, 720, 200), put(725, 730, 200), put(3000, 3001, 200),
	}}
	if got := gaps(h, []hit{{At: 100 * ms, Healed: 715 * ms}}); len(got) != 1 || got[0] != 600*time.Millisecond {
		t.Errorf("got %v, want 600ms", got)
	}
	// Service that comes back only after the heal counts to where it does.
	if got := gaps(h, []hit{{At: 735 * ms, Healed: 800 * ms}}); len(got) != 1 || got[0] != 2266*time.Millisecond {
		t.Errorf("got %v, want 2.266s", got)
	}
}

func TestServedDemandsServiceAfterEachHit(t *testing.T) {
	h := &check.History{Exchanges: []*check.Exchange{put(200, 400, 200)}}
	for _, tt := range []struct {
		what   string
		hits   []hit
		bound  time.Duration
		failed bool
	}{
		{"served in time", []hit{{At: 100 * ms}}, time.Second, false},
		{"no bound", []hit{{At: 100 * ms}}, 0, false},
		{"too late", []hit{{At: 100 * ms}}, 300 * time.Millisecond, true},
		{"never", []hit{{At: 100 * ms}, {At: 300 * ms}}, 0, true},
	} {
		if got := len(served(h, tt.hits, tt.bound).Findings) > 0; got != tt.failed {
			t.Errorf("%s: failed %t, want %t", tt.what, got, tt.failed)
		}
	}
}

func TestARunWithoutAFaultFails(t *testing.T) {
	for _, tt := range []struct {
		what   string
		hits   []hit
		failed bool
	}{
		{"no hit", nil, true},
		{"one that nothing shows", []hit{{What: "kill n1"}, {What: "cut n2", Missed: "no packet was dropped"}}, true},
		{"a hit", []hit{{What: "kill n1"}}, false},
	} {
		if got := len(landed(tt.hits).Findings) > 0; got != tt.failed {
			t.Errorf("%s: failed %t, want %t", tt.what, got, tt.failed)
		}
	}
}

func TestSpread(t *testing.T) {
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(i+1)*time.Millisecond)
	}
	if got, want := spreadOf(all), (spread{101 * time.Millisecond, 198 * time.Millisecond, 200 * time.Millisecond}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := spreadOf(all[:1]); got.p99 != time.Millisecond || got.median != time.Millisecond {
		t.Errorf("of one: got %v", got)
	}
	if got := spreadOf(nil); got != (spread{}) {
		t.Errorf("of none: got %v", got)
	}
}

// fakeAttack lands, or not, as it is told.
type fakeAttack struct {
	land1, heal error
	healed      int
}

func (a *fakeAttack) land(_ context.Context, c *cluster) (*landing, error) {
	if a.land1 != nil {
		return nil, a.land1
	}
	return &landing{at: c.recorder.Now(), what: "fake", heal: func(ctx context.Context) (string, error) {
		a.healed++
		return "seen", errors.Join(a.heal, ctx.Err())
	}}, nil
}

// A fault is healed also if the run is interrupted, and one that did not land is
// told as that, and no error.
func TestStrikeHealsAndTellsWhatMissed(t *testing.T) {
	c := &cluster{recorder: check.NewRecorder()}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		what           string
		ctx            context.Context
		a              *fakeAttack
		failed, missed bool
		healed         int
	}{
		{"landed", t.Context(), &fakeAttack{}, false, false, 1},
		{"interrupted", over, &fakeAttack{}, true, false, 1},
		{"not landed", t.Context(), &fakeAttack{land1: errMissed}, false, true, 0},
		{"seen to have missed", t.Context(), &fakeAttack{heal: errMissed}, false, true, 1},
		{"not healed", t.Context(), &fakeAttack{heal: errors.New("no")}, true, false, 1},
		{"busy", t.Context(), &fakeAttack{land1: errBusy}, true, false, 0},
	} {
		h, err := strike(tt.ctx, c, &nemesis{id: "N0"}, tt.a)
		if (err != nil) != tt.failed || (h.Missed != "") != tt.missed || tt.a.healed != tt.healed {
			t.Errorf("%s: error %v, missed %q, healed %d times", tt.what, err, h.Missed, tt.a.healed)
		}
		if err == nil && (h.Nemesis != "N0" || h.Healed < h.At) {
			t.Errorf("%s: got %+v", tt.what, h)
		}
	}
}

func TestFirewallRulesAndCounts(t *testing.T) {
	a, b := &node{name: "n1", addr: "127.0.0.11", raft: "127.0.0.11:7101"}, &node{name: "n2", addr: "127.0.0.12", raft: "127.0.0.12:7101"}
	c := &cut{"chaos1", []link{{a, b}}}
	want := `table inet chaos1 {
  counter c0 { }
  chain in {
    type filter hook input priority 0; policy accept;
    ip saddr 127.0.0.11 ip daddr 127.0.0.12 tcp sport { 7101 } numgen random mod 100 < 20 counter name c0 drop
    ip saddr 127.0.0.11 ip daddr 127.0.0.12 tcp dport { 7101 } numgen random mod 100 < 20 counter name c0 drop
  }
}
`
	if got := c.rules(20); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	listed := "table inet chaos1 {\n\tcounter c0 {\n\t\tpackets 7 bytes 420\n\t}\n\tcounter c12 {\n\t\tpackets 0 bytes 0\n\t}\n\tchain in {\n\t}\n}\n"
	if got := counts(listed); len(got) != 2 || got[0] != 7 || got[12] != 0 {
		t.Errorf("got %v", got)
	}
}

func TestChosen(t *testing.T) {
	all := table()
	if got, err := chosen(all, ""); err != nil || len(got) != len(all) {
		t.Errorf("all: got %d, %v", len(got), err)
	}
	got, err := chosen(all, "n6, N1")
	if err != nil || len(got) != 2 || got[0].id != "N6" || got[1].id != "N1" {
		t.Errorf("two: got %v, %v", got, err)
	}
	if _, err := chosen(all, "N1,N99"); err == nil {
		t.Error("N99 was found")
	}
}

// Every row of the table can be run.
func TestTableIsWhole(t *testing.T) {
	seen := make(map[string]bool)
	for _, n := range table() {
		if seen[n.id] {
			t.Errorf("%s stands twice", n.id)
		}
		seen[n.id] = true
		if n.ci < 1 || n.release < n.ci || n.batch < 1 || n.what == "" || n.unit == "" {
			t.Errorf("%s: volumes %d and %d in batches of %d", n.id, n.ci, n.release, n.batch)
		}
		if n.make(rand.New(rand.NewPCG(1, 2))) == nil {
			t.Errorf("%s makes nothing", n.id)
		}
	}
}

func TestLedgerLine(t *testing.T) {
	s := &settings{seed: 7, commit: "abc"}
	r := &result{nemesis: &nemesis{id: "N1"}, hits: make([]hit, 2), operations: 9, outages: []time.Duration{3 * time.Millisecond, 5 * time.Millisecond}}
	if got, want := s.ledgerLine(time.Unix(0, 0), r), "1970-01-01T00:00:00Z\tabc\tN1\t7\t2\t9\tpass\t5\t5\t5\t0\t0\t0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.verdicts = []*check.Verdict{{Findings: []string{"x"}}}
	if got := s.ledgerLine(time.Unix(0, 0), r); got != "1970-01-01T00:00:00Z\tabc\tN1\t7\t2\t9\tFAIL\t5\t5\t5\t0\t0\t0\n" {
		t.Errorf("got %q", got)
	}
}

func answer(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
