package fsm

import (
	"fmt"
	"strings"
	"time"

	"fencepost/fsm/fsmpb"
)

// printer collects name=value words, leaving out what is zero.
type printer struct{ words []string }

func (p *printer) word(w string) { p.words = append(p.words, w) }

func (p *printer) str(name, v string) {
	if v != "" {
		p.word(name + "=" + v)
	}
}

func (p *printer) num(name string, v uint64) {
	if v != 0 {
		p.word(fmt.Sprintf("%s=%d", name, v))
	}
}

func (p *printer) ms(name string, v uint64) {
	if v != 0 {
		p.word(fmt.Sprintf("%s=%v", name, time.Duration(v)*time.Millisecond))
	}
}

// not prints a number that is neither zero nor the usual one.
func (p *printer) not(usual uint64, name string, v uint64) {
	if v != usual {
		p.num(name, v)
	}
}

func (p *printer) String() string { return strings.Join(p.words, " ") }

func codeName(c fsmpb.Code) string {
	return strings.ToLower(strings.TrimPrefix(c.String(), "CODE_"))
}

func reasonName(r fsmpb.Reason) string {
	if r == fsmpb.Reason_REASON_NONE {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(r.String(), "REASON_"))
}

// printOutcome prints the outcome of a command, and below it those of its parts.
func printOutcome(c *fsmpb.Command, o *fsmpb.Outcome) []string {
	lines := []string{fmt.Sprintf("%d: %s", o.Index, outcomeWords(o))}
	if c.GetRelease() != nil && o.Code == fsmpb.Code_CODE_OK {
		lines[0] += fmt.Sprintf(" released=%v", o.Released)
	}
	if c.GetCancel() != nil && o.Code == fsmpb.Code_CODE_OK {
		lines[0] += fmt.Sprintf(" cancelled=%v", o.Cancelled)
	}
	for _, one := range o.Renewals {
		lines = append(lines, "  "+outcomeWords(one))
	}
	for _, op := range o.Ops {
		p := &printer{}
		p.word("  " + strings.ToLower(strings.TrimPrefix(op.Kind.String(), "KIND_")))
		p.word(op.Key)
		p.num("version", op.Version)
		p.num("watermark", op.Watermark)
		if op.Kind == fsmpb.WriteOp_KIND_DELETE {
			p.word(fmt.Sprintf("deleted=%v", op.Deleted))
		}
		lines = append(lines, p.String())
	}
	return lines
}

func outcomeWords(o *fsmpb.Outcome) string {
	p := &printer{}
	p.word(codeName(o.Code))
	p.str("reason", reasonName(o.Reason))
	p.str("field", o.Field)
	p.str("name", o.Name)
	p.str("holder", o.Holder)
	p.num("token", o.Token)
	p.num("ticket", o.Ticket)
	p.num("last", o.LastToken)
	p.num("previous", o.PreviousToken)
	p.not(o.Token, "oldest", o.OldestToken)
	p.not(1, "slots", o.Slots)
	p.not(1, "take", o.Take)
	p.ms("ttl", o.TtlMs)
	p.ms("left", o.ExpiresInMs)
	p.ms("grace", o.GraceMs)
	p.num("queue", o.QueueLength)
	p.not(1, "attempt", o.Attempt)
	for _, m := range o.Metadata {
		p.str("meta", m.Key+":"+m.Value)
	}
	p.num("watermark", o.Watermark)
	p.num("version", o.Version)
	p.num("op", uint64(o.OpIndex))
	p.str("key", o.Key)
	return p.String()
}

func printEvent(e Event) string {
	p := &printer{}
	p.word(string(e.Kind))
	p.word(e.Name)
	p.num("token", e.Token)
	p.num("ticket", e.Ticket)
	p.str("holder", e.Holder)
	p.num("previous", e.PreviousToken)
	p.str("from", e.PreviousHolder)
	p.not(1, "slots", e.Slots)
	p.not(1, "take", e.Take)
	p.num("watermark", e.Watermark)
	p.str("reason", reasonName(e.Reason))
	p.ms("grace", e.GraceMS)
	p.num("queue", uint64(e.QueueLength))
	if e.Decided != nil {
		key, _, _ := strings.Cut(e.Decided.RequestKey, "\x00")
		p.word("decides " + key + ": " + codeName(e.Decided.Outcome.Code))
	}
	return p.String()
}

// printLease prints a name, and the holders below it where there can be several.
func printLease(s *State, name string) []string {
	l, ok := s.Lease(name)
	if !ok {
		return []string{name + ": not on record"}
	}
	p, one := &printer{}, l.former
	if l.Live() {
		p.word(name + ": live")
		one = l.Holders[0]
	} else {
		p.word(name + ": " + reasonName(l.ended))
	}
	if l.Slots == 1 {
		p.holder(s, one, l.Live())
	} else {
		p.num("slots", l.Slots)
		p.num("used", l.Used())
		p.num("last", l.LastToken)
	}
	if !l.Live() {
		p.ms("gone-at", l.goneMS)
	}
	p.ms("grace", left(l.GraceUntilMS, s.ClockMS()))
	p.num("queue", uint64(s.QueueLength(name)))
	if l.Slots == 1 {
		p.num("renewals", one.Renewals)
		return []string{p.String()}
	}
	lines := []string{p.String()}
	for _, h := range l.Holders {
		p := &printer{}
		p.holder(s, h, true)
		p.num("renewals", h.Renewals)
		lines = append(lines, "  "+p.String())
	}
	return lines
}

func (p *printer) holder(s *State, h *Holder, live bool) {
	p.str("holder", h.Holder)
	p.str("principal", h.Principal)
	p.num("token", h.Token)
	p.num("previous", h.Previous)
	p.not(1, "take", h.Take)
	p.ms("ttl", h.TTLMS)
	if h.DeadlineMS > s.ClockMS() && live {
		p.ms("left", h.DeadlineMS-s.ClockMS())
	}
}

func printWaiters(s *State, name string) (lines []string) {
	for _, w := range s.Waiters(name, 100) {
		p := &printer{}
		p.word(fmt.Sprintf("%d:", w.Ticket))
		p.str("holder", w.Acquire.Holder)
		p.not(1, "slots", w.Acquire.Slots)
		p.not(1, "take", w.Acquire.Take)
		p.word(fmt.Sprintf("left=%v", time.Duration(left(w.UntilMS, s.ClockMS()))*time.Millisecond))
		p.str("key", w.Acquire.Request.Key)
		lines = append(lines, p.String())
	}
	if lines == nil {
		return []string{"nobody waits"}
	}
	return lines
}

func printKey(s *State, key string) string {
	k, ok := s.Key(key)
	if !ok {
		return key + ": no record"
	}
	p := &printer{}
	if k.Present {
		p.word(fmt.Sprintf("%s: %q", key, k.Value))
	} else {
		p.word(key + ": no value")
	}
	p.str("type", k.ContentType)
	p.num("version", k.Version)
	p.num("token", k.Token)
	p.num("watermark", k.Watermark)
	return p.String()
}

func printState(s *State) string {
	p := &printer{}
	p.word(fmt.Sprintf("index=%d", s.Index()))
	p.word(fmt.Sprintf("clock=%v", time.Duration(s.ClockMS())*time.Millisecond))
	p.word(fmt.Sprintf("floor=%d last=%d", s.Floor(), s.LastToken()))
	p.str("cluster", s.ClusterID())
	c := s.Counts()
	p.word(fmt.Sprintf("leases=%d held=%d keys=%d records=%d requests=%d", c.Leases, c.Held, c.Keys, c.Records, c.Requests))
	p.num("waiters", uint64(c.Waiters))
	p.num("ready", uint64(s.Ready()))
	for _, n := range s.Nodes() {
		p.str("node", n.Name+"/"+n.Id)
	}
	return p.String()
}

func printRequests(s *State) (lines []string) {
	s.requests.Scan(func(_ string, r *request) bool {
		p := &printer{}
		p.word(r.id.Key + ": " + r.id.Path)
		p.str("principal", r.principal)
		p.num("attempt", r.attempt)
		p.str("outcome", codeName(r.outcome.Code))
		p.ms("gone-at", r.goneMS)
		lines = append(lines, p.String())
		return true
	})
	if lines == nil {
		return []string{"none"}
	}
	return lines
}
