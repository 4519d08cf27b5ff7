// Package replay is the judge of a run that goes through its log.
package replay

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"fencepost/cluster/check"
	"fencepost/fsm/fsmpb"
	"fencepost/fsm/model"
)

// Surplus is the check of what was surely not taken, of which a run may have none.
const Surplus = "P10 refused left no entry"

// replay is a run being judged by its log.
type replay struct {
	m       *model.Machine
	asked   []*asked
	reads   []*asked            // by index
	at      map[uint64][]*asked // decided answers, and 400 and 403 that may be, by index
	own     map[requestID][]attempt
	unkeyed map[requestID][]attempt // by what they want; of keys that the server made
	events  []model.Event           // of all entries so far
	last    uint64                  // index of the entry before

	requests *requests
	promises *promises
	honoured *honoured
	pace     *pace
	tenure   *tenure

	kept, answers, once, reading, realTime, phantom, surplus, jump check.Verdict
}

// An attempt is an entry of a client's request.
type attempt struct {
	index uint64
	id    model.ID
	wants string
	code  fsmpb.Code
}

// Judge goes through the complete committed log, from its first entry on, and
// compares every answer with what its entry decided, and every read with the state
// at its index. What clients may count on beyond single answers is judged beside.
// Every verdict is named after its promise. It takes linear time, but for sorting.
func Judge(h *check.History, entries []check.Entry) []*check.Verdict {
	r := newReplay(h)
	read := 0
	for _, e := range entries {
		for ; read < len(r.reads) && r.reads[read].Index < e.Index; read++ {
			r.judgeRead(r.reads[read])
		}
		if e.Command != nil {
			r.apply(e)
		} else {
			r.notDecided(e.Index, "is one of Raft's own")
		}
		delete(r.at, e.Index)
		r.last = e.Index
	}
	last := r.m.Index
	if n := len(entries); n > 0 {
		last = entries[n-1].Index
	}
	for _, a := range r.reads[read:] {
		if a.Index > last {
			r.reading.Find("%v: the log ends at %d", a, last)
		} else {
			r.judgeRead(a)
		}
	}
	for index := range r.at {
		r.notDecided(index, "is not in the log")
	}
	slices.Sort(r.kept.Findings)
	return r.verdicts(h)
}

func newReplay(h *check.History) *replay {
	seen := newVisibility(h)
	r := &replay{
		m: model.New(), at: map[uint64][]*asked{}, own: map[requestID][]attempt{}, unkeyed: map[requestID][]attempt{},
		requests: newRequests(), promises: newPromises(), honoured: newHonoured(seen),
		pace: newPace(seen, h.Drift), tenure: newTenure(seen, h.Punctual),
		kept:     check.Verdict{Name: "P9 what was acknowledged is in the log"},
		answers:  check.Verdict{Name: "P10 an answer is what its entry decided"},
		once:     check.Verdict{Name: "P11 a repetition tells the first outcome"},
		reading:  check.Verdict{Name: "P9 a read tells the state at its index"},
		realTime: check.Verdict{Name: "P9 the order of the log is that of real time"},
		phantom:  check.Verdict{Name: "P10 every entry was asked for"},
		surplus:  check.Verdict{Name: Surplus},
		jump:     check.Verdict{Name: "P1 a restore passes every token"},
	}
	for _, x := range h.Exchanges {
		a := read(x)
		r.asked = append(r.asked, a)
		r.requests.ask(a)
		switch {
		case a.isRead():
			r.reads = append(r.reads, a)
		case a.decided(), a.decidable() && (a.Status == 400 || a.Status == 403):
			r.at[a.Index] = append(r.at[a.Index], a)
		}
	}
	slices.SortStableFunc(r.reads, func(a, b *asked) int { return cmp.Compare(a.Index, b.Index) })
	return r
}

func (r *replay) apply(e check.Entry) {
	index := e.Index
	if e.Command.GetRestoreCommit() != nil { // its index is where it has led to
		index = r.last + 1
	}
	o, events := r.m.Apply(index, e.Term, e.Command)
	if r.m.Index != e.Index {
		r.jump.Find("entry %d, after entry %d, restores a backup; it should have index %d", e.Index, r.last, r.m.Index)
	}
	r.events = append(r.events, events...)
	r.requests.see(e, &r.phantom)
	own := r.noteAttempt(e, o)
	r.promises.see(e, events)
	r.honoured.see(e, o, events)
	var renewed map[renewal][]int
	if e.Command.GetRenew() != nil {
		renewed = positions(e.Command.GetRenew().Renewals)
	}
	r.tenure.see(e, r.m, events, r.at[e.Index])
	for _, a := range r.at[e.Index] {
		if a.stamped() && (own != nil && r.isOwn(a, e, own) || len(a.renewals) > 0 && renewed[renewalOf(a.renewals[0])] != nil) {
			r.pace.see(a, e, r.m.Clock)
		}
		switch {
		case a.renewals != nil:
			r.judgeRenewals(a, e, o, renewed)
		case a.decided():
			r.judgeDecided(a, e, own, o, events)
		case own != nil && r.isOwn(a, e, own):
			r.requests.decidedBadly(a)
			r.compare(a, o, false)
		}
	}
}

// noteAttempt keeps the entries of clients' requests; nil: it is none.
func (r *replay) noteAttempt(e check.Entry, o *fsmpb.Outcome) *attempt {
	q, ofClient := clientRequest(e.Command)
	if !ofClient {
		return nil
	}
	own := attempt{e.Index, model.ID{Path: q.GetPath(), Key: q.GetKey(), Principal: principal(e.Command)}, signature(e.Command), o.Code}
	id := entryID(e.Command, q)
	r.own[id] = append(r.own[id], own)
	if q.GetServerMade() {
		by := requestID{id.cancel, id.scope, own.wants}
		r.unkeyed[by] = append(r.unkeyed[by], own)
	}
	return &own
}

func principal(c *fsmpb.Command) string {
	switch op := c.Op.(type) {
	case *fsmpb.Command_Acquire:
		return op.Acquire.Principal
	case *fsmpb.Command_Release:
		return op.Release.Principal
	case *fsmpb.Command_Write:
		return op.Write.Principal
	case *fsmpb.Command_Cancel:
		return op.Cancel.Principal
	}
	return ""
}

// isOwn says whether an entry is of an attempt at what a asks for.
func (r *replay) isOwn(a *asked, e check.Entry, own *attempt) bool {
	if own.wants != a.wants {
		return false
	}
	q, _ := clientRequest(e.Command)
	switch {
	case q.GetKey() == "": // applied without a record, since the table is full
		return true
	case a.key == "":
		return q.ServerMade && q.Path == a.scope
	}
	return q.Key == a.key && q.Path == a.scope
}

// notDecided is for answers whose entry cannot have decided them.
func (r *replay) notDecided(index uint64, why string) {
	for _, a := range r.at[index] {
		if a.decided() {
			r.kept.Find("%v: that entry %s", a, why)
		}
	}
}

func (r *replay) verdicts(h *check.History) []*check.Verdict {
	r.noteAnswers()
	r.reading.Count("%d reads", len(r.reads))
	r.judgeRealTime()
	r.requests.judge(&r.surplus, &r.phantom)
	r.promises.tokens(r.asked, r.reads)
	all := []*check.Verdict{&r.kept, &r.answers, &r.once, &r.reading, &r.realTime, &r.surplus, &r.phantom}
	if r.jump.Count("%d restores", len(r.promises.restores)); len(r.promises.restores) > 0 {
		all = append(all, &r.jump)
	}
	all = append(all, r.promises.verdicts()...)
	all = append(append(all, r.tenure.verdicts()...), r.pace.verdict())
	return append(all, r.honoured.judge(r.asked, h.Drift), judgeStreams(h.Streams, r.events, r.m.Index))
}

// Agreement compares the logs of nodes, by their names, where they have the same
// indexes: each entry has one term and one command.
func Agreement(logs map[string][]check.Entry) *check.Verdict {
	type copy struct {
		check.Entry
		node string
	}
	v := &check.Verdict{Name: "P14 the logs agree"}
	first, compared := map[uint64]copy{}, 0
	for _, node := range slices.Sorted(maps.Keys(logs)) {
		for _, e := range logs[node] {
			was, ok := first[e.Index]
			if !ok {
				first[e.Index] = copy{e, node}
				continue
			}
			compared++
			if was.Term != e.Term || (was.Command == nil) != (e.Command == nil) || !proto.Equal(was.Command, e.Command) {
				v.Find("entry %d is %v of term %d at %s, and %v of term %d at %s", e.Index, was.Command, was.Term, was.node, e.Command, e.Term, node)
			}
		}
	}
	if v.Count("%d entries were compared", compared); compared == 0 && len(logs) > 1 {
		v.Find("no two of %d logs have an index in common", len(logs))
	}
	return v
}
