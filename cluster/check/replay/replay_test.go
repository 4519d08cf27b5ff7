package replay

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
	"fencepost/fsm/model"
)

func TestASoundRunPasses(t *testing.T) {
	for seed := range uint64(3) {
		h, log := soundRun(t, seed, 8, 150)
		h = written(t, h)
		for _, v := range append(Judge(h, log), Agreement(map[string][]check.Entry{"a": log, "b": log[100:]})) {
			if v.Note == "none" || v.Note == "" {
				t.Errorf("seed %d: %s: had nothing to look at", seed, v.Name)
			}
			for _, f := range v.Findings[:min(3, len(v.Findings))] {
				t.Errorf("seed %d: %s: %s", seed, v.Name, f)
			}
		}
	}
}

// written is a history after it was written and read again.
func written(t *testing.T, h *check.History) *check.History {
	t.Helper()
	var b bytes.Buffer
	if err := h.Write(&b); err != nil {
		t.Fatal(err)
	}
	again, err := check.ReadHistory(&b)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// run is a history and its log, to be spoiled.
type run struct {
	t *testing.T
	*check.History
	log []check.Entry
}

// copied is the run anew, as far as the faults change it.
func (r *run) copied(t *testing.T) *run {
	c := &run{t, new(check.History), slices.Clone(r.log)}
	for _, x := range r.Exchanges {
		y := *x
		y.Told = maps.Clone(x.Told)
		c.Exchanges = append(c.Exchanges, &y)
	}
	for _, s := range r.Streams {
		y := *s
		y.Events = slices.Clone(s.Events)
		c.Streams = append(c.Streams, &y)
	}
	for i, e := range c.log {
		if e.Command != nil {
			c.log[i].Command = proto.CloneOf(e.Command)
		}
	}
	return c
}

// last is the last exchange that is as wanted.
func (r *run) last(want func(a *asked) bool) *asked {
	r.t.Helper()
	for i := len(r.Exchanges) - 1; i >= 0; i-- {
		if a := read(r.Exchanges[i]); want(a) {
			return a
		}
	}
	r.t.Fatal("the run has no such exchange")
	return nil
}

// done is a mutation of this kind that was done, under a key sent once.
func (r *run) done(of call) *asked {
	r.t.Helper()
	times := map[string]int{}
	for _, x := range r.Exchanges {
		times[x.Key]++
	}
	return r.last(func(a *asked) bool {
		return a.call == of && a.Status == http.StatusOK && a.Key != "" && times[a.Key] == 1 && !strings.Contains(string(a.Answer), `"released":false`)
	})
}

// tell changes a field of an answer.
func (a *asked) tell(t *testing.T, field string, value any) {
	t.Helper()
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(a.Answer, &fields); err != nil || fields[field] == nil {
		t.Fatalf("answer %s has no %s: %v", a.Answer, field, err)
	}
	fields[field], _ = json.Marshal(value)
	a.Answer, _ = json.Marshal(fields)
}

func (r *run) entry(index uint64) *check.Entry {
	r.t.Helper()
	for i := range r.log {
		if r.log[i].Index == index {
			return &r.log[i]
		}
	}
	r.t.Fatalf("no entry %d", index)
	return nil
}

func (r *run) add(c *fsmpb.Command) {
	last := r.log[len(r.log)-1]
	r.log = append(r.log, check.Entry{Index: last.Index + 1, Term: last.Term, Command: c})
}

// repeated is an answer that rests on an entry which is not the first of its key.
func (r *run) repeated(of call) *asked {
	r.t.Helper()
	entries := map[string][]uint64{}
	for _, e := range r.log {
		if e.Command != nil {
			q, _ := clientRequest(e.Command)
			entries[q.GetKey()] = append(entries[q.GetKey()], e.Index)
		}
	}
	return r.last(func(a *asked) bool {
		own := entries[a.Key]
		return a.call == of && a.Status == http.StatusOK && a.Key != "" && len(own) > 1 && slices.Contains(own[1:], a.Index)
	})
}

// stream is one that has some events.
func (r *run) stream() *check.Stream {
	r.t.Helper()
	for _, s := range r.Streams {
		if len(s.Events) > 20 && s.Kind == "" {
			return s
		}
	}
	r.t.Fatal("no stream has events")
	return nil
}

func TestPlantedFaultsAreFound(t *testing.T) {
	h, log := soundRun(t, 7, 8, 120)
	sound := &run{t, h, log}
	for _, fault := range []struct {
		name, verdict string
		plant         func(r *run)
	}{
		{"an acknowledged write is lost", "P9 what", func(r *run) { r.entry(r.done(callPut).Index).Command = nil }},
		{"an acknowledged lease is lost", "P9 what", func(r *run) {
			r.entry(r.done(callAcquire).Index).Command = &fsmpb.Command{Op: &fsmpb.Command_Tick{Tick: &fsmpb.Tick{}}}
		}},
		{"another value was written", "P9 what", func(r *run) {
			r.entry(r.done(callPut).Index).Command.GetWrite().Ops[0].Value = []byte("another")
		}},
		{"the log ends early", "P9 what", func(r *run) { r.log = r.log[:len(r.log)/2] }},
		{"another renewal", "P9 what", func(r *run) { r.entry(r.done(callRenew).Index).Command.GetRenew().Renewals[0].TtlMs++ }},
		{"a version", "P10 an answer", func(r *run) { r.done(callPut).tell(t, "version", 3) }},
		{"too much time", "P10 an answer", func(r *run) { r.done(callRenew).tell(t, "expires_in_ms", 100_000) }},
		{"too much waiting", "P10 an answer", func(r *run) { r.done(callAcquire).tell(t, "waited_ms", 100_000) }},
		{"a release that released nothing", "P10 an answer", func(r *run) { r.done(callRelease).tell(t, "released", false) }},
		{"a txn's watermark", "P10 an answer", func(r *run) { r.done(callTxn).tell(t, "results", []int{}) }},
		{"a refusal of what was done", "P10 an answer", func(r *run) {
			a := r.done(callPut)
			a.Status, a.Answer = 412, []byte(`{"status":412,"code":"stale_token"}`)
		}},
		{"another reason", "P10 an answer", func(r *run) {
			r.last(func(a *asked) bool {
				return a.Status == 412 && a.Client != "repeater" && strings.Contains(string(a.Answer), `"reason"`)
			}).tell(t, "reason", "wrong_lease")
		}},
		{"a batch's result", "P10 an answer", func(r *run) {
			r.last(func(a *asked) bool { return a.call == callRenewMany && a.Status == 200 }).tell(t, "results", []int{})
		}},
		{"a repetition is another lease", "P11", func(r *run) { r.repeated(callAcquire).tell(t, "token", 1) }},
		{"a repetition is another write", "P11", func(r *run) { r.repeated(callPut).tell(t, "version", r.repeated(callPut).Index) }},
		{"a stale value", "P9 a read", func(r *run) {
			r.last(func(a *asked) bool { return a.call == callGetKey && a.Status == 200 }).Answer = []byte("another")
		}},
		{"a stale lease", "P9 a read", func(r *run) {
			r.last(func(a *asked) bool { return a.call == callGetLease && a.Status == 200 }).tell(t, "last_token", 1)
		}},
		{"a short list", "P9 a read", func(r *run) {
			r.last(func(a *asked) bool { return a.call == callListLeases && a.Status == 200 }).tell(t, "next", "zz")
		}},
		{"a read of the past", "P9 the order", func(r *run) {
			a := r.Exchanges[len(r.Exchanges)-1]
			b := r.last(func(a *asked) bool { return a.isRead() && !a.stale() && a.Index < 100 })
			b.Start, b.End = a.End+1, a.End+2
		}},
		{"a late entry for an early answer", "P9 the order", func(r *run) {
			a, last := r.done(callPut), r.Exchanges[len(r.Exchanges)-1]
			a.Start, a.End = last.End+1, last.End+2
		}},
		{"503, and an entry", "P10 refused", func(r *run) { r.done(callPut).Status = 503 }},
		{"nothing sent, and an entry", "P10 refused", func(r *run) { a := r.done(callRelease); a.Status, a.End, a.Unsent = 0, 0, true }},
		{"a renewal is refused and done", "P10 refused", func(r *run) {
			a := r.last(func(a *asked) bool { return a.call == callRenew && a.Status == 200 })
			a.Status = 429
			for _, x := range r.Exchanges {
				if b := read(x); b.call == callRenew && b.ID != a.ID && bytes.Equal(a.Body, b.Body) {
					b.Unsent = true
				}
			}
		}},
		{"one request, two entries", "P10 refused", func(r *run) { r.add(proto.CloneOf(r.entry(r.done(callPut).Index).Command)) }},
		{"a request of nobody", "P10 every", func(r *run) {
			r.add(&fsmpb.Command{Op: &fsmpb.Command_Release{Release: &fsmpb.Release{Name: "a", Token: 5, Request: &fsmpb.Request{Key: "who", Path: "POST /v1/leases/a/release"}}}})
		}},
		{"a request of nobody, without a key", "P10 every", func(r *run) {
			r.add(&fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{Name: "a", Holder: "who", TtlMs: 77, Request: &fsmpb.Request{Key: "made", Path: "POST /v1/leases/a/acquire", ServerMade: true}}}})
		}},
		{"a renewal of nobody", "P10 every", func(r *run) {
			r.add(&fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: &fsmpb.Renew{Renewals: []*fsmpb.Renewal{{Name: "a", Token: 5, TtlMs: 77}}}}})
		}},
		{"entries out of order", "P1", func(r *run) { r.log[100], r.log[101] = r.log[101], r.log[100] }},
		{"one token for two", "P2", func(r *run) {
			a := r.done(callAcquire)
			b := r.last(func(b *asked) bool { return b.call == callAcquire && b.Status == 200 && b.Key != a.Key })
			var of struct{ Token uint64 }
			_ = json.Unmarshal(b.Answer, &of)
			a.tell(t, "token", of.Token)
		}},
		{"a watermark falls", "P5", func(r *run) {
			r.last(func(a *asked) bool { return a.call == callGetKey && a.Status == 200 }).Told["Fencing-Watermark"] = "1"
		}},
		{"the cluster clock runs ahead", "P7", func(r *run) {
			for i := range r.log[:len(r.log)/2] {
				if c := r.log[i].Command; c.GetAdvance() != nil && i > 100 {
					c.NowMs += 3000
				}
			}
		}},
		{"a lease is cancelled by the cluster", "P7", func(r *run) {
			a := r.last(func(a *asked) bool {
				return a.call == callAcquire && a.Status == 200 && a.Key != "" && r.entry(a.Index).Command.GetAcquire().GetRequest().GetKey() == a.Key
			})
			next := r.entry(a.Index + 1)
			for next.Command == nil {
				next = r.entry(next.Index + 1)
			}
			next.Command = &fsmpb.Command{NowMs: next.Command.NowMs, Term: 1, Op: &fsmpb.Command_Cancel{
				Cancel: &fsmpb.Cancel{Name: a.name, Attempt: 9, Request: r.entry(a.Index).Command.GetAcquire().Request},
			}}
		}},
		{"an event is missed", "P13", func(r *run) { s := r.stream(); s.Events = append(s.Events[:5:5], s.Events[6:]...) }},
		{"the last event is missed", "P13", func(r *run) { s := r.stream(); s.Events = s.Events[:len(s.Events)-1] }},
		{"an event comes twice", "P13", func(r *run) { s := r.stream(); s.Events = append(s.Events[:5:5], s.Events[4:]...) }},
		{"events change places", "P13", func(r *run) { s := r.stream(); s.Events[4], s.Events[5] = s.Events[5], s.Events[4] }},
		{"an event tells another token", "P13", func(r *run) {
			e := &r.stream().Events[6]
			e.Data = bytes.Replace(e.Data, []byte(`token":`), []byte(`token":1`), 1)
		}},
		{"an event without its id", "P13", func(r *run) { e := &r.stream().Events[6]; e.Last = !e.Last }},
		{"a watcher goes on too late", "P13", func(r *run) {
			for i, s := range r.Streams[1:] {
				if s.Watcher == "w0" && len(s.Events) > 3 && i > 5 {
					s.From, s.Events = indexOf(t, s.Events[2])+1, nil
					s.Reached = s.From - 1
					return
				}
			}
		}},
		{"a position beyond the log", "P13", func(r *run) { r.stream().Reached += 1_000_000 }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			r := sound.copied(t)
			fault.plant(r)
			found := []string{}
			for _, v := range Judge(r.History, r.log) {
				if len(v.Findings) > 0 {
					found = append(found, v.Name+": "+v.Findings[0])
				}
				if len(v.Findings) > 0 && strings.HasPrefix(v.Name, fault.verdict) {
					return
				}
			}
			t.Errorf("%s did not find it; found: %q", fault.verdict, found)
		})
	}
}

func indexOf(t *testing.T, e check.StreamedEvent) uint64 {
	var of struct{ Index uint64 }
	if err := json.Unmarshal(e.Data, &of); err != nil {
		t.Fatal(err)
	}
	return of.Index
}

// TestPromisesOfEvents: the model keeps these, so what breaks them is made up.
func TestPromisesOfEvents(t *testing.T) {
	grant := func(token, ticket, slots, take uint64) model.Event {
		return model.Event{Kind: model.Granted, Name: "a", Token: token, Ticket: ticket, Slots: slots, Take: take}
	}
	queued := func(ticket uint64) model.Event { return model.Event{Kind: model.Queued, Name: "a", Ticket: ticket} }
	put := func(mark uint64) model.Event { return model.Event{Kind: model.Put, Name: "k", Watermark: mark} }
	ended := func(token uint64) model.Event {
		return model.Event{Kind: model.Expired, Name: "a", PreviousToken: token}
	}
	for _, c := range []struct {
		verdict string // "": sound
		entries [][]model.Event
	}{
		{"", [][]model.Event{{grant(1, 0, 1, 1)}, {queued(2)}, {ended(1), grant(3, 2, 1, 1)}, {put(3)}, {put(3)}}},
		{"", [][]model.Event{{grant(1, 0, 3, 1)}, {grant(2, 0, 3, 2)}, {ended(1)}, {grant(4, 0, 3, 1)}}},
		{"P1", [][]model.Event{{grant(1, 0, 1, 1), ended(1)}, {grant(1, 0, 1, 1)}}},
		{"P2", [][]model.Event{{grant(1, 0, 2, 1), grant(1, 0, 2, 1)}}},
		{"P3", [][]model.Event{{grant(1, 0, 1, 1)}, {grant(2, 0, 1, 1)}}},
		{"P3", [][]model.Event{{grant(1, 0, 3, 2)}, {grant(2, 0, 3, 2)}}},
		{"P5", [][]model.Event{{put(5)}, {put(4)}}},
		{"P12", [][]model.Event{{queued(1)}, {queued(2)}, {grant(3, 2, 1, 1)}}},
		{"P12", [][]model.Event{{queued(1)}, {grant(2, 0, 1, 1)}}},
	} {
		p := newPromises()
		for i, events := range c.entries {
			p.see(check.Entry{Index: uint64(i + 1), Term: 1}, events)
		}
		for _, v := range p.verdicts() {
			if want := c.verdict != "" && strings.HasPrefix(v.Name, c.verdict+" "); want && len(v.Findings) == 0 || c.verdict == "" && len(v.Findings) > 0 {
				t.Errorf("%s of %v: findings %q, wanted some: %v", v.Name, c.entries, v.Findings, want)
			}
		}
	}
}

func TestAgreementOfLogs(t *testing.T) {
	tick := func(now uint64) *fsmpb.Command {
		return &fsmpb.Command{NowMs: now, Op: &fsmpb.Command_Tick{Tick: &fsmpb.Tick{}}}
	}
	a := []check.Entry{{Index: 1, Term: 1, Command: nil}, {Index: 2, Term: 1, Command: tick(1)}, {Index: 3, Term: 2, Command: tick(2)}}
	for _, c := range []struct {
		name  string
		b     []check.Entry
		found bool
	}{
		{"the same, from later on", a[1:], false},
		{"another term", []check.Entry{{Index: 3, Term: 1, Command: tick(2)}}, true},
		{"another command", []check.Entry{{Index: 2, Term: 1, Command: tick(5)}}, true},
		{"none in place of one", []check.Entry{{Index: 2, Term: 1, Command: nil}}, true},
		{"nothing in common", []check.Entry{{Index: 4, Term: 2, Command: tick(2)}}, true},
	} {
		if v := Agreement(map[string][]check.Entry{"a": a, "b": c.b}); len(v.Findings) > 0 != c.found {
			t.Errorf("%s: %q", c.name, v.Findings)
		}
	}
}
