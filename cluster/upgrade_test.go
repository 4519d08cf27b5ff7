package cluster

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// nextVersion is a program that has a command more: its Cancel came with
// version 2.
func nextVersion() *schema {
	return &schema{newest: 2, needs: func(c *fsmpb.Command) uint32 {
		if c.GetCancel() != nil {
			return 2
		}
		return 1
	}}
}

func (n *simNode) record(t *testing.T, node *fsmpb.Node) {
	t.Helper()
	r, err := n.propose(t.Context(), time.Now(), &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{Node: node, ClusterId: "c1"}}})
	if err != nil || r.Outcome.Code != fsmpb.Code_CODE_OK {
		t.Fatal(r.Outcome, err)
	}
}

func cancelOf(name string) *fsmpb.Command {
	return &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: name, Request: &fsmpb.Request{Key: "k", Path: "p"}}}}
}

// A leader proposes a new command only when every member has announced that it
// understands it, whether it is recorded or only Raft knows of it; the rest goes on
// meanwhile. What was refused left no entry.
func TestP14_B39_NewCommandsWaitForTheLastMember(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		for _, n := range s.nodes { // the programs are replaced; each announces itself later
			n.crash()
			n.schemaAtBoot = nextVersion()
			n.restart()
		}
		l := s.leader()
		upgraded := map[string]bool{}
		for i, server := range s.servers {
			before := l.Status().Index
			_, err := l.propose(t.Context(), time.Now(), cancelOf("db"))
			var older *NotUnderstoodError
			if !errors.As(err, &older) || upgraded[older.Member] || older.Understands != 1 || older.Need != 2 || !strings.Contains(err.Error(), "upgrade") {
				t.Fatalf("%d members upgraded: %v", i, err)
			}
			if l.member.Load().raft.LastIndex() != before {
				t.Fatalf("%d members upgraded: it was refused and proposed", i)
			}
			l.mustAcquire("old/"+server.Addr, time.Hour)
			l.record(t, &fsmpb.Node{Name: server.Addr, Id: server.ID, RaftAddr: server.Addr, HttpAddr: server.Addr + ":80", Voter: true, Understands: 2})
			upgraded[server.Addr] = true
		}
		if _, err := l.propose(t.Context(), time.Now(), cancelOf("db")); err != nil {
			t.Fatalf("all members upgraded: %v", err)
		}
		// One whose record is gone and that Raft still counts may be of any version.
		last := s.servers[2]
		if _, err := l.propose(t.Context(), time.Now(), &fsmpb.Command{Op: &fsmpb.Command_RemoveNode{RemoveNode: &fsmpb.RemoveNode{Name: last.Addr, Id: last.ID}}}); err != nil {
			t.Fatal(err)
		}
		var older *NotUnderstoodError
		if _, err := l.propose(t.Context(), time.Now(), cancelOf("db")); !errors.As(err, &older) || older.Member != last.ID {
			t.Fatalf("a member without a record: %v", err)
		}
		s.sameEverywhere()
	})
}

// machineAt is a machine that has applied nothing, and what it ended with.
func machineAt() (m *machine, broken *[]string) {
	broken = new([]string)
	m = newMachine(func(uint64, []fsm.Decision) {}, func(err error) { *broken = append(*broken, err.Error()) }, NewFeed(16, 1))
	return m, broken
}

// A node that met an entry which it does not know stays before it: it applies
// nothing more, and takes no snapshot, which Raft would note as being behind that
// entry, so that a restart would skip it.
func TestP14_B39_NoSnapshotHidesAnUnknownEntry(t *testing.T) {
	m, broken := machineAt()
	if _, ok := m.Apply(command(t, 1, 1, cancelOf("db"))).(applied); !ok {
		t.Fatal("an entry of this version was not applied")
	}
	if _, err := m.Snapshot(); err != nil {
		t.Fatal(err)
	}
	before := m.state.Digest()
	m.Apply(&raft.Log{Index: 2, Term: 1, Type: raft.LogCommand, Data: []byte{0xc2, 0x3e, 0x01, 'x'}})
	if len(*broken) != 1 || !strings.Contains((*broken)[0], "entry 2") || !strings.Contains((*broken)[0], fsm.ErrUnknown.Error()) {
		t.Fatalf("it ended with %q", *broken)
	}
	if a := m.Apply(command(t, 3, 1, cancelOf("db"))); a != nil || m.state.Digest() != before {
		t.Errorf("it went on with the entry behind: %v", a)
	}
	if _, err := m.Snapshot(); err == nil {
		t.Error("it took a snapshot")
	}
}

// A snapshot of a later version ends the node with a message, whoever sent it: the
// state before it stays, and nothing is read past what is unknown.
func TestP14_B39_ASnapshotOfALaterVersionStopsTheNode(t *testing.T) {
	m, broken := machineAt()
	m.Apply(command(t, 1, 1, cancelOf("db")))
	before := m.state.Digest()
	// A frame with field 1000 of a record.
	later := append([]byte("FENCEPOST\n"), 4, 0xc2, 0x3e, 0x01, 'x')
	if err := m.Restore(readCloser{bytes.NewReader(later)}); !errors.Is(err, fsm.ErrUnknown) {
		t.Errorf("restored: %v", err)
	}
	if len(*broken) != 1 || !strings.Contains((*broken)[0], fsm.ErrUnknown.Error()) || m.state.Digest() != before {
		t.Errorf("it ended with %q, digest %x, before %x", *broken, m.state.Digest(), before)
	}
	if a := m.Apply(command(t, 2, 1, cancelOf("db"))); a != nil {
		t.Errorf("it went on: %v", a)
	}
	// One that is only damaged is Raft's to replace.
	m, broken = machineAt()
	if err := m.Restore(readCloser{bytes.NewReader(later[:8])}); !errors.Is(err, fsm.ErrBadSnapshot) || len(*broken) != 0 {
		t.Errorf("a damaged snapshot: %v; it ended with %q", err, *broken)
	}
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }
