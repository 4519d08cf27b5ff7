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
	p.num("last", o.LastToken)
	p.num("previous", o.PreviousToken)
	p.ms("ttl", o.TtlMs)
	p.ms("left", o.ExpiresInMs)
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
	p.str("holder", e.Holder)
	p.num("previous", e.PreviousToken)
	p.str("from", e.PreviousHolder)
	p.num("watermark", e.Watermark)
	p.str("reason", reasonName(e.Reason))
	return p.String()
}

func printLease(s *State, name string) string {
	l, ok := s.Lease(name)
	if !ok {
		return name + ": not on record"
	}
	p := &printer{}
	if l.Live {
		p.word(name + ": live")
	} else {
		p.word(name + ": " + reasonName(l.Ended))
	}
	p.str("holder", l.Holder)
	p.str("principal", l.Principal)
	p.num("token", l.Token)
	p.num("previous", l.Previous)
	p.ms("ttl", l.TTLMS)
	p.ms("left", l.ExpiresInMS(s.ClockMS()))
	p.ms("gone-at", l.GoneMS)
	p.num("renewals", l.Renewals)
	return p.String()
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
