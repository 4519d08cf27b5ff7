package main

import (
	"bufio"
	"fmt"
	"strings"

	"fencepost/cluster"
	"fencepost/fsm/fsmpb"
)

// What a line shows of what has no bound but the entry's size.
const (
	shownBytes = 32 // of a value
	shownItems = 4  // renewals, operations
)

func writeInfoText(w *bufio.Writer, i cluster.LogInfo, entries uint64) error {
	fmt.Fprintf(w, "node %s (%s) of cluster %s\n", i.Node, i.ID, i.ClusterID)
	if i.First == 0 {
		fmt.Fprint(w, "the log is empty")
	} else {
		fmt.Fprintf(w, "entries %d to %d, %d of them in the journal", i.First, i.Last, i.FromJournal)
	}
	if i.Abandoned > 0 {
		fmt.Fprintf(w, "; %d more that a leader's snapshot replaced", i.Abandoned)
	}
	fmt.Fprintf(w, "\nterm %d", i.CurrentTerm)
	if i.VotedFor != "" {
		fmt.Fprintf(w, ", last vote for %s in term %d", i.VotedFor, i.VotedInTerm)
	}
	if i.Snapshot.Index > 0 {
		fmt.Fprintf(w, ", newest snapshot at %d, of term %d", i.Snapshot.Index, i.Snapshot.Term)
	}
	fmt.Fprintf(w, "\ncommitted up to %d for certain", i.Committed)
	if i.Last > i.Committed {
		fmt.Fprint(w, "; what follows may have been committed or not: compare it with the other nodes")
	}
	_, err := fmt.Fprintln(w)
	if entries != 0 {
		_, err = fmt.Fprintf(w, "\n%8s %5s  %-13s %s\n", "INDEX", "TERM", "KIND", "WHAT")
	}
	return err
}

func writeEntryText(w *bufio.Writer, e *cluster.LogEntry) error {
	kind, what := e.Type, ""
	switch {
	case e.Err != nil:
		what = fmt.Sprintf("CANNOT BE DECODED: %v (%s)", e.Err, shortBytes(e.Data))
	case e.Command != nil:
		kind, what = summary(e.Command)
	default:
		var s []string
		for _, m := range e.Servers {
			role := "nonvoter"
			if m.Voter {
				role = "voter"
			}
			s = append(s, fmt.Sprintf("%s=%s (%s)", m.ID, m.Addr, role))
		}
		what = strings.Join(s, ", ")
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%8d %5d  %-13s %s", e.Index, e.Term, kind, what), " "))
	return err
}

// fields are "name=value" of what is set.
type fields []string

func (f *fields) add(when bool, format string, args ...any) {
	if when {
		*f = append(*f, fmt.Sprintf(format, args...))
	}
}

func (f *fields) text(name, value string) { f.add(value != "", "%s=%q", name, value) }

func (f *fields) request(principal string, r *fsmpb.Request) {
	f.text("principal", principal)
	if r == nil {
		return
	}
	made := ""
	if r.ServerMade {
		made = " (made by the server)"
	}
	f.add(r.Key != "", "key=%s%s", r.Key, made)
}

// summary is what a person wants to know of a command.
func summary(c *fsmpb.Command) (kind, what string) {
	var f fields
	switch op := c.Op.(type) {
	case *fsmpb.Command_Acquire:
		kind = "acquire"
		f.acquire(op.Acquire)
	case *fsmpb.Command_Renew:
		kind = "renew"
		f.renew(op.Renew.Renewals)
	case *fsmpb.Command_Release:
		kind = "release"
		f.add(true, "%s token=%d", op.Release.Name, op.Release.Token)
		f.request(op.Release.Principal, op.Release.Request)
	case *fsmpb.Command_Cancel:
		kind = "cancel"
		f.add(true, "%s", op.Cancel.Name)
		f.add(op.Cancel.Attempt > 0, "attempt=%d", op.Cancel.Attempt)
		f.request(op.Cancel.Principal, op.Cancel.Request)
	case *fsmpb.Command_Advance:
		kind = "advance"
	case *fsmpb.Command_Write:
		kind = "write"
		f.write(op.Write)
	case *fsmpb.Command_SetNode:
		kind = "set_node"
		n := op.SetNode.Node
		f.add(true, "%s id=%s raft=%s http=%s voter=%t", n.GetName(), n.GetId(), n.GetRaftAddr(), n.GetHttpAddr(), n.GetVoter())
		f.add(op.SetNode.ClusterId != "", "cluster=%s", op.SetNode.ClusterId)
	case *fsmpb.Command_RemoveNode:
		kind = "remove_node"
		f.add(true, "%s id=%s", op.RemoveNode.Name, op.RemoveNode.Id)
	case *fsmpb.Command_RestoreBegin:
		kind = "restore_begin"
		f.add(true, "id=%s backup_index=%d ttl=%s", op.RestoreBegin.Id, op.RestoreBegin.BackupIndex, duration(op.RestoreBegin.TtlMs))
	case *fsmpb.Command_RestoreChunk:
		kind = "restore_chunk"
		f.add(true, "id=%s %d keys after %d", op.RestoreChunk.Id, len(op.RestoreChunk.Keys), op.RestoreChunk.First)
	case *fsmpb.Command_RestoreCommit:
		kind = "restore_commit"
		r := op.RestoreCommit
		f.add(true, "id=%s keys=%d checksum=%016x base=%d backup_index=%d", r.Id, r.Keys, r.Checksum, r.Base, r.BackupIndex)
		f.add(r.Above > 0, "above=%d", r.Above)
	case *fsmpb.Command_Tick:
		kind = "tick"
		f.add(op.Tick.DigestIndex > 0, "digest=%016x at=%d", op.Tick.Digest, op.Tick.DigestIndex)
	}
	f.add(c.NowMs > 0, "now=%s", duration(c.NowMs))
	return kind, strings.Join(f, " ")
}

func (f *fields) acquire(a *fsmpb.Acquire) {
	f.add(true, "%s", a.Name)
	f.text("holder", a.Holder)
	f.add(true, "ttl=%s", duration(a.TtlMs))
	f.add(a.WaitMs > 0, "wait=%s", duration(a.WaitMs))
	f.add(a.Slots > 1, "slots=%d take=%d", a.Slots, max(a.Take, 1))
	f.add(a.GraceMs > 0, "grace=%s", duration(a.GraceMs))
	for _, p := range a.Metadata {
		f.add(true, "%q:%q", p.Key, p.Value)
	}
	f.request(a.Principal, a.Request)
}

func (f *fields) renew(renewals []*fsmpb.Renewal) {
	for _, r := range renewals[:min(shownItems, len(renewals))] {
		f.add(true, "%s token=%d", r.Name, r.Token)
		f.add(r.TtlMs > 0, "ttl=%s", duration(r.TtlMs))
		f.text("principal", r.Principal)
	}
	f.add(len(renewals) > shownItems, "and %d more", len(renewals)-shownItems)
}

func (f *fields) write(w *fsmpb.Write) {
	for _, op := range w.Ops[:min(shownItems, len(w.Ops))] {
		f.add(true, "%s %s", strings.ToLower(strings.TrimPrefix(op.Kind.String(), "KIND_")), op.Key)
		f.add(op.Kind == fsmpb.WriteOp_KIND_PUT, "%s", shortBytes(op.Value))
		f.text("type", op.ContentType)
		f.add(op.IfVersion != nil, "if_version=%d", op.GetIfVersion())
	}
	f.add(len(w.Ops) > shownItems, "and %d more", len(w.Ops)-shownItems)
	f.add(true, "token=%d", w.Token)
	f.add(w.Guard == fsmpb.Guard_GUARD_HELD, "guard=held")
	f.add(w.Lease != "", "lease=%s", w.Lease)
	f.request(w.Principal, w.Request)
}

// shortBytes is how many there are, and how they begin.
func shortBytes(b []byte) string {
	more := ""
	if len(b) > shownBytes {
		more = "..."
	}
	return fmt.Sprintf("%d bytes %q%s", len(b), b[:min(len(b), shownBytes)], more)
}
