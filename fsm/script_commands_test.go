package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"fencepost/fsm/fsmpb"
)

// A scriptRun is the state that a script works on, and the leader's side of it.
//
//	acquire NAME holder= ttl= [wait= slots= take= grace= principal= meta=k:v key= server]
//	cancel NAME key= [attempt= principal= server]     of the acquire that had that key
//	renew NAME token= [ttl= principal=]     or "renew" and lines NAME token= …
//	release NAME token= [principal= key=]
//	put|delete|fence|check KEY token= [value= type= guard=held lease= if-version= principal= key= server]
//	txn token= [as above]                   and lines put|delete|fence|check KEY [value= type= if-version=]
//	advance, tick [own], set-node NAME id= cluster= [raft= http= version= understands= voter], remove-node NAME id=
//	backup         takes one, which later restores are of
//	restore-begin ID ttl=, restore-chunk ID, restore-commit ID [above= since= key=]    with all keys of the backup
//	clock +5s      the leader's reading moves; the next entry carries it; clock -5s moves it back
//	term 2         Raft's term from here on
//	skip 5         Raft uses five indexes for itself
//	snapshot       goes on with a state restored from a snapshot of this one
//	show renewed   prints renewed events from here on
//	lease NAME, waiters NAME, key KEY, state, totals, requests    print
//
// Any command that makes an entry takes read-term=, the term of its reading,
// where that is not the entry's. as=A names the token that the entry granted,
// or the version that a write made; a number may then be A, or A+1.
// "next" is the index of the entry itself.
type scriptRun struct {
	t          *testing.T
	where      string
	s          *State
	nowMS      uint64
	term       uint64
	next       uint64
	names      map[string]uint64 // by as=
	shown      map[EventKind]bool
	backup     *Backup
	backupKeys []*fsmpb.KeyRecord
	// applied is told of every entry; nil: nobody asks.
	applied func(index, term uint64, c *fsmpb.Command, o *fsmpb.Outcome)
}

func newScriptRun(t *testing.T) *scriptRun {
	return &scriptRun{t: t, s: New(), term: 1, next: 1, names: map[string]uint64{}, shown: map[EventKind]bool{}}
}

// command runs one command and returns what it prints.
func (r *scriptRun) command(line string, below []string) []string {
	l := r.parse(line)
	if lines, ok := r.look(l); ok {
		r.allUsed(l)
		return lines
	}
	c := r.entry(l, below)
	c.NowMs, c.Term = r.nowMS, r.term
	if l.has("read-term") {
		c.Term = l.num("read-term")
	}
	as := l.arg("as")
	r.allUsed(l)
	// As in life: an entry is its bytes.
	b, err := Encode(c)
	if err != nil {
		l.fail("%v", err)
	}
	if c, err = Decode(b); err != nil {
		l.fail("%v", err)
	}
	o, events, err := r.s.Apply(r.next, r.term, c)
	if err != nil {
		l.fail("%v", err)
	}
	if r.applied != nil {
		r.applied(r.next, r.term, c, o)
	}
	r.next = r.s.Index() + 1 // a restore moves it
	if as != "" {
		r.names[as] = named(c, o, events)
	}
	out := printOutcome(c, o)
	for _, e := range events {
		if e.Kind != EventRenewed || r.shown[e.Kind] {
			out = append(out, "  "+printEvent(e))
		}
	}
	return out
}

// named is the number that as= gives a name to.
func named(c *fsmpb.Command, o *fsmpb.Outcome, events []Event) uint64 {
	if c.GetWrite() != nil {
		return o.Version
	}
	for _, e := range events {
		if e.Kind == EventGranted {
			return e.Token
		}
	}
	return o.Token
}

func (r *scriptRun) allUsed(l *scriptLine) {
	for name := range l.args {
		if !l.used[name] {
			l.fail("unknown argument %q", name)
		}
	}
}

// entry is the command that a line of a script stands for.
func (r *scriptRun) entry(l *scriptLine, below []string) *fsmpb.Command {
	principal := l.arg("principal")
	switch l.verb {
	case "acquire":
		a := &fsmpb.Acquire{
			Name: l.name, Holder: l.arg("holder"), Principal: principal, TtlMs: l.ms("ttl"), Request: l.request(nil),
			WaitMs: l.ms("wait"), Slots: l.num("slots"), Take: l.num("take"), GraceMs: l.ms("grace"),
		}
		if k, v, ok := strings.Cut(l.arg("meta"), ":"); ok {
			a.Metadata = []*fsmpb.Pair{{Key: k, Value: v}}
		}
		return &fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: a}}
	case "renew":
		c := &fsmpb.Renew{}
		lines := []*scriptLine{l}
		if l.name == "" {
			lines = nil
			for _, b := range below {
				lines = append(lines, r.parse("renew "+b))
			}
		}
		for _, m := range lines {
			c.Renewals = append(c.Renewals, &fsmpb.Renewal{
				Name: m.name, Token: m.num("token"), TtlMs: m.ms("ttl"), Principal: m.arg("principal"),
			})
			if m != l {
				r.allUsed(m)
			}
		}
		return &fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: c}}
	case "release":
		return &fsmpb.Command{Op: &fsmpb.Command_Release{Release: &fsmpb.Release{
			Name: l.name, Token: l.num("token"), Principal: principal, Request: l.request(nil),
		}}}
	case "cancel":
		return &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{
			Name: l.name, Principal: principal, Request: l.request(nil), Attempt: l.num("attempt"),
		}}}
	case "put", "delete", "fence", "check", "txn":
		return r.write(l, below, principal)
	case "advance":
		return &fsmpb.Command{Op: &fsmpb.Command_Advance{Advance: &fsmpb.Advance{}}}
	case "tick":
		c := &fsmpb.Tick{}
		if l.name == "own" { // as a leader's
			c.Digest, c.DigestIndex, c.DigestVersion = r.s.Digest(), r.s.Index(), DigestVersion
		}
		return &fsmpb.Command{Op: &fsmpb.Command_Tick{Tick: c}}
	case "set-node":
		return &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{
			ClusterId: l.arg("cluster"), Node: &fsmpb.Node{
				Name: l.name, Id: l.arg("id"), RaftAddr: l.arg("raft"), HttpAddr: l.arg("http"),
				Voter: l.has("voter"), Version: l.arg("version"), Understands: uint32(l.num("understands")),
			},
		}}}
	case "remove-node":
		return &fsmpb.Command{Op: &fsmpb.Command_RemoveNode{RemoveNode: &fsmpb.RemoveNode{Name: l.name, Id: l.arg("id")}}}
	}
	if c := r.restoring(l); c != nil {
		return c
	}
	l.fail("unknown command %q", l.verb)
	return nil
}

func (r *scriptRun) restoring(l *scriptLine) *fsmpb.Command {
	if r.backup == nil {
		return nil
	}
	h := r.backup.Header
	switch l.verb {
	case "restore-begin":
		return &fsmpb.Command{Op: &fsmpb.Command_RestoreBegin{RestoreBegin: &fsmpb.RestoreBegin{
			Id: l.name, BackupIndex: h.Index, TtlMs: l.ms("ttl"),
		}}}
	case "restore-chunk":
		return &fsmpb.Command{Op: &fsmpb.Command_RestoreChunk{RestoreChunk: &fsmpb.RestoreChunk{
			Id: l.name, First: l.num("first"), Keys: r.backupKeys[l.num("first"):],
		}}}
	case "restore-commit":
		return &fsmpb.Command{Op: &fsmpb.Command_RestoreCommit{RestoreCommit: &fsmpb.RestoreCommit{
			Id: l.name, Keys: h.Keys, Checksum: r.backup.Checksum, Base: r.s.Base(), BackupIndex: h.Index,
			SinceMs: l.ms("since"), Above: l.num("above"), Request: l.request(nil),
		}}}
	}
	return nil
}

func (r *scriptRun) write(l *scriptLine, below []string, principal string) *fsmpb.Command {
	w := &fsmpb.Write{Token: l.num("token"), Principal: principal, Lease: l.arg("lease"), Request: l.request(below)}
	switch guard := l.arg("guard"); guard {
	case "", "latest":
	case "held":
		w.Guard = fsmpb.Guard_GUARD_HELD
	default:
		l.fail("unknown guard %q", guard)
	}
	lines := []*scriptLine{l}
	if l.verb == "txn" {
		lines = nil
		for _, b := range below {
			lines = append(lines, r.parse(b))
		}
	}
	for _, m := range lines {
		kind, ok := fsmpb.WriteOp_Kind_value["KIND_"+strings.ToUpper(m.verb)]
		if !ok {
			l.fail("unknown operation %q", m.verb)
		}
		op := &fsmpb.WriteOp{Kind: fsmpb.WriteOp_Kind(kind), Key: m.name, Value: []byte(m.arg("value")), ContentType: m.arg("type")}
		if m.has("if-version") {
			version := m.num("if-version")
			op.IfVersion = &version
		}
		w.Ops = append(w.Ops, op)
		if m != l {
			r.allUsed(m)
		}
	}
	return &fsmpb.Command{Op: &fsmpb.Command_Write{Write: w}}
}

// look runs the commands that make no entry.
func (r *scriptRun) look(l *scriptLine) (lines []string, ok bool) {
	switch l.verb {
	case "clock":
		r.nowMS += parseMS(l, l.name) // a negative one wraps, and so subtracts
	case "term":
		r.term = parseNum(l, l.name)
	case "skip":
		r.next += parseNum(l, l.name)
	case "snapshot":
		var b bytes.Buffer
		if _, err := r.s.Snapshot().WriteTo(&b); err != nil {
			l.fail("%v", err)
		}
		restored, err := ReadSnapshot(&b)
		if err != nil {
			l.fail("%v", err)
		}
		if got, want := restored.Digest(), r.s.Digest(); got != want {
			l.fail("restored state has digest %x, want %x", got, want)
		}
		r.s = restored
	case "backup":
		var b bytes.Buffer
		if _, err := r.s.Snapshot().WriteBackup(&b, r.s.ClusterID(), 7); err != nil {
			l.fail("%v", err)
		}
		r.backupKeys = nil
		var err error
		if r.backup, err = ReadBackup(&b, func(k *fsmpb.KeyRecord) error { r.backupKeys = append(r.backupKeys, k); return nil }); err != nil {
			l.fail("%v", err)
		}
	case "show":
		r.shown[EventKind(l.name)] = true
	case "lease":
		return printLease(r.s, l.name), true
	case "waiters":
		return printWaiters(r.s, l.name), true
	case "key":
		return []string{printKey(r.s, l.name)}, true
	case "state":
		return []string{printState(r.s)}, true
	case "totals":
		return []string{fmt.Sprintf("%+v", r.s.Totals())}, true
	case "requests":
		return printRequests(r.s), true
	default:
		return nil, false
	}
	return nil, true
}
