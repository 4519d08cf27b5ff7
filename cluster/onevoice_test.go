package cluster

import (
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

type nullFSM struct{}

func (nullFSM) Apply(*raft.Log) any                 { return nil }
func (nullFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, io.EOF }
func (nullFSM) Restore(io.ReadCloser) error         { return nil }

type lateVote struct {
	transport
	hold chan struct{} // F's granted vote is delivered after this; nil: at once
}

func (l lateVote) RequestVote(id raft.ServerID, to raft.ServerAddress, a *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	err := l.transport.RequestVote(id, to, a, r)
	if l.hold != nil {
		<-l.hold
	}
	return err
}

// attacked makes one real Raft on a real NetworkTransport; N and F are scripted.
func attacked(t *testing.T, hold chan struct{}) (r *raft.Raft, o *overlap, n *raft.NetworkTransport, lAddr raft.ServerAddress) {
	mk := func() *raft.NetworkTransport {
		tr, err := raft.NewTCPTransportWithConfig("127.0.0.1:0", nil, &raft.NetworkTransportConfig{MaxPool: 3, Timeout: time.Second, MaxRPCsInFlight: 1, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tr.Close() })
		return tr
	}
	lt, nt, ft := mk(), mk(), mk()
	for _, p := range []*raft.NetworkTransport{nt, ft} {
		go func() {
			for rpc := range p.Consumer() {
				switch c := rpc.Command.(type) {
				case *raft.AppendEntriesRequest:
					rpc.Respond(&raft.AppendEntriesResponse{Term: c.Term, Success: true, LastLog: c.PrevLogEntry + uint64(len(c.Entries))}, nil)
				case *raft.RequestVoteRequest:
					rpc.Respond(&raft.RequestVoteResponse{Term: c.Term, Granted: true}, nil)
				case *raft.RequestPreVoteRequest:
					rpc.Respond(&raft.RequestPreVoteResponse{Term: c.Term, Granted: true}, nil)
				}
			}
		}()
	}
	store := raft.NewInmemStore()
	o = newOverlap(store, store, func([]*raft.Log) bool { return true }, func(why string) { t.Error(why) })
	logs, _ := raft.NewLogCache(128, o)
	c := raft.DefaultConfig()
	c.LocalID, c.Logger = "L", hclog.NewNullLogger()
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = time.Second, time.Second, time.Second
	snaps := raft.NewInmemSnapshotStore()
	conf := raft.Configuration{Servers: []raft.Server{{ID: "L", Address: lt.LocalAddr()}, {ID: "N", Address: nt.LocalAddr()}, {ID: "F", Address: ft.LocalAddr()}}}
	if err := raft.BootstrapCluster(c, logs, store, snaps, lt, conf); err != nil {
		t.Fatal(err)
	}
	var at atomic.Pointer[raft.Raft]
	var trans transport = lateVote{lt, hold}
	v := newOneVoice(trans, o.quiet(func() bool { r := at.Load(); return r != nil && r.State() == raft.Follower }))
	t.Cleanup(func() { v.Close() })
	trans = v
	r, err := raft.NewRaft(c, nullFSM{}, logs, o, snaps, told{trans, o.committable})
	at.Store(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Shutdown().Error() })
	return r, o, nt, lt.LocalAddr()
}

func await10(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 5000 {
		if ok() {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatal("never: " + what)
}

func header(n *raft.NetworkTransport) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte("N"), Addr: n.EncodePeer("N", n.LocalAddr())}
}

// An old leader's loop, idle when the new leader's heartbeat raises the term, stamps the
// next command with the NEW term; the new leader's own entry there counts as a duplicate.
func TestP9_AHeartbeatDoesNotRaiseTheTermUnderALeader(t *testing.T) {
	r, o, n, l := attacked(t, nil)
	await10(t, "L leads", func() bool { return r.State() == raft.Leader && r.Barrier(time.Second).Error() == nil })
	old := r.CurrentTerm()
	o.lead(old)
	base := r.LastIndex()
	var prev raft.Log
	o.GetLog(base, &prev)
	var resp raft.AppendEntriesResponse
	if err := n.AppendEntries("L", l, &raft.AppendEntriesRequest{RPCHeader: header(n), Term: old + 1}, &resp); err != nil {
		t.Logf("the heartbeat is refused: %v", err)
	}
	f := r.Apply([]byte("never committed"), time.Second)
	await10(t, "the command is dispatched, or refused", func() bool { return r.LastIndex() > base || f.Error() != nil })
	var got raft.Log
	o.GetLog(base+1, &got)
	t.Logf("L led term %d; its log at %d: term %d %v %q", old, base+1, got.Term, got.Type, got.Data)
	// What N, elected in old+1, has at base+1 and base+2.
	req := &raft.AppendEntriesRequest{RPCHeader: header(n), Term: old + 1, PrevLogEntry: base, PrevLogTerm: prev.Term, LeaderCommitIndex: base + 1,
		Entries: []*raft.Log{{Index: base + 1, Term: old + 1, Type: raft.LogCommand, Data: []byte("answered by N")}}}
	if err := n.AppendEntries("L", l, req, &resp); err != nil {
		t.Fatal(err)
	}
	got = raft.Log{}
	o.GetLog(base+1, &got)
	if resp.Success && string(got.Data) != "answered by N" {
		t.Errorf("DIVERGED: L acknowledged N's entry %d of term %d, and has and applies %q instead", base+1, old+1, got.Data)
	}
}

// A candidate whose granted vote is on the way when a later leader's heartbeat raises the
// term leads in a term in which nobody voted for it.
func TestP1_ALateVoteMakesNoSecondLeaderOfATerm(t *testing.T) {
	hold := make(chan struct{})
	r, _, n, l := attacked(t, hold)
	await10(t, "L is a candidate past its pre-vote", func() bool { return r.State() == raft.Candidate && r.CurrentTerm() >= 2 })
	asked := r.CurrentTerm()
	time.Sleep(100 * time.Millisecond)
	var resp raft.AppendEntriesResponse
	if err := n.AppendEntries("L", l, &raft.AppendEntriesRequest{RPCHeader: header(n), Term: asked + 1}, &resp); err != nil {
		t.Logf("the heartbeat is refused: %v", err)
	}
	close(hold)
	time.Sleep(200 * time.Millisecond)
	if r.State() == raft.Leader && r.CurrentTerm() == asked+1 {
		t.Errorf("TWO LEADERS: L stood in term %d and leads term %d, which is N's", asked, asked+1)
	}
	t.Logf("L stood in %d; now %v in %d", asked, r.State(), r.CurrentTerm())
}
