package replay

import (
	"encoding/json"
	"net/http"
	"strconv"

	"fencepost/cluster/check"
	"fencepost/fsm/model"
	"fencepost/httpapi/wire"
)

// promises are those that can be judged by what happened, entry by entry, whoever
// says so: the model's own events, and what clients were told of tokens.
type promises struct {
	order, grants, holders, queue, watermarks check.Verdict

	index, token   uint64 // of the last entry; the newest token
	granted        int
	entries        int
	slots, used    map[string]uint64
	takes          map[uint64]uint64 // by token
	queues         map[string][]uint64
	marks          map[string]uint64
	marked, waited int
	restores       []uint64 // indexes at which the keys became a backup's
}

func newPromises() *promises {
	return &promises{
		order:      check.Verdict{Name: "P1 order"},
		grants:     check.Verdict{Name: "P2 one entry, one grant"},
		holders:    check.Verdict{Name: "P3 one holder"},
		watermarks: check.Verdict{Name: "P5 watermarks never fall"},
		queue:      check.Verdict{Name: "P12 first come, first served"},
		slots:      map[string]uint64{}, used: map[string]uint64{}, takes: map[uint64]uint64{},
		queues: map[string][]uint64{}, marks: map[string]uint64{},
	}
}

func (p *promises) verdicts() []*check.Verdict {
	p.order.Count("%d entries with a command", p.entries)
	p.grants.Count("%d grants", p.granted)
	p.holders.Count("%d grants", p.granted)
	p.watermarks.Count("%d writes and fences", p.marked)
	p.queue.Count("%d waiters", p.waited)
	return []*check.Verdict{&p.order, &p.grants, &p.holders, &p.watermarks, &p.queue}
}

func (p *promises) see(e check.Entry, events []model.Event) {
	if e.Index <= p.index {
		p.order.Find("entry %d comes after entry %d", e.Index, p.index)
	}
	p.index = e.Index
	p.entries++
	grants := 0
	for _, ev := range events {
		switch ev.Kind {
		case model.Granted:
			if grants++; grants > 1 {
				p.grants.Find("entry %d grants %d leases", e.Index, grants)
			}
			p.grant(e, ev)
		case model.Released, model.Expired:
			p.used[ev.Name] -= p.takes[ev.PreviousToken]
			delete(p.takes, ev.PreviousToken)
		case model.Restored:
			p.restored(ev.Index)
		case model.Queued:
			p.waited++
			p.queues[ev.Name] = append(p.queues[ev.Name], ev.Ticket)
		case model.Dequeued:
			p.leave(ev)
		case model.Put, model.Deleted, model.Fenced:
			p.marked++
			if was := p.marks[ev.Name]; ev.Watermark < was {
				p.watermarks.Find("entry %d lowers the watermark of %s from %d to %d", e.Index, ev.Name, was, ev.Watermark)
			}
			p.marks[ev.Name] = ev.Watermark
		}
	}
}

// restored is P1 and P5 over a restore: its index is above all that was told.
func (p *promises) restored(index uint64) {
	p.restores = append(p.restores, index)
	if index <= p.token {
		p.order.Find("a restore at %d, after token %d", index, p.token)
	}
	for key, mark := range p.marks {
		if mark > index {
			p.watermarks.Find("a restore at %d, where the watermark of %s was %d", index, key, mark)
		}
	}
	p.marks = map[string]uint64{}
}

func (p *promises) grant(e check.Entry, ev model.Event) {
	p.granted++
	if ev.Token <= p.token || ev.Token != e.Index {
		p.order.Find("entry %d grants token %d after token %d", e.Index, ev.Token, p.token)
	}
	p.token = ev.Token
	if p.used[ev.Name] == 0 {
		p.slots[ev.Name] = ev.Slots
	}
	p.takes[ev.Token] = ev.Take
	if p.used[ev.Name] += ev.Take; p.used[ev.Name] > p.slots[ev.Name] {
		p.holders.Find("entry %d: %d slots of %s are taken, which has %d", e.Index, p.used[ev.Name], ev.Name, p.slots[ev.Name])
	}
	waiting := p.queues[ev.Name]
	switch {
	case ev.Ticket == 0 && len(waiting) > 0:
		p.queue.Find("entry %d grants %s past %d who wait", e.Index, ev.Name, len(waiting))
	case ev.Ticket != 0 && (len(waiting) == 0 || waiting[0] != ev.Ticket):
		p.queue.Find("entry %d grants %s to ticket %d, and tickets %v wait", e.Index, ev.Name, ev.Ticket, waiting)
	}
	if ev.Ticket != 0 {
		p.leave(ev)
	}
}

// leave takes a ticket out of its queue.
func (p *promises) leave(ev model.Event) {
	waiting := p.queues[ev.Name]
	for i, ticket := range waiting {
		if ticket == ev.Ticket {
			p.queues[ev.Name] = append(waiting[:i:i], waiting[i+1:]...)
			return
		}
	}
	p.queue.Find("entry %d: ticket %d of %s is not in its queue", ev.Index, ev.Ticket, ev.Name)
}

// tokens looks at the answers alone: no token is above the index at which it is
// told, each is told to one request only, and the watermark that reads tell of a key
// rises with the index.
func (p *promises) tokens(all, reads []*asked) {
	told := map[uint64]*asked{}
	for _, a := range all {
		if a.call != callAcquire || a.Status != http.StatusOK {
			continue
		}
		var got wire.Acquired
		if json.Unmarshal(a.Answer, &got) != nil {
			continue
		}
		if got.Token > a.Index {
			p.order.Find("%v, token %d, which is above its index", a, got.Token)
		}
		if was := told[got.Token]; was == nil {
			told[got.Token] = a
		} else if was.id() != a.id() || a.key == "" {
			p.grants.Find("token %d was told to two requests: %v, and %v", got.Token, was, a)
		}
	}
	marks, restores := map[string]uint64{}, p.restores
	for _, a := range reads { // by index
		for ; len(restores) > 0 && restores[0] <= a.Index; restores = restores[1:] {
			marks = map[string]uint64{}
		}
		mark, err := strconv.ParseUint(a.Told[wire.HeaderWatermark], 10, 64)
		if a.call != callGetKey || err != nil {
			continue
		}
		if mark < marks[a.name] {
			p.watermarks.Find("%v: watermark %d, after one of %d", a, mark, marks[a.name])
		}
		marks[a.name] = mark
	}
}
