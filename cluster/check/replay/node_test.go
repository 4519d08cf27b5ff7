package replay

import (
	"context"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"fencepost/cluster"
	"fencepost/cluster/check"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// node is a cluster of one without Raft: the real state machine, whose entries are
// committed at once and kept. Now and then an entry is Raft's own.
type node struct {
	began time.Time
	feed  *cluster.Feed

	mu      sync.Mutex // guards what follows
	state   *fsm.State
	log     []check.Entry
	decided map[string]cluster.Reply[*fsmpb.Outcome] // of requests that waited
	changed chan struct{}                            // closed at each entry
}

func newNode() *node {
	n := &node{
		began: time.Now(), feed: cluster.NewFeed(1<<18, 100), state: fsm.New(),
		decided: map[string]cluster.Reply[*fsmpb.Outcome]{}, changed: make(chan struct{}),
	}
	n.apply(&fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{ClusterId: "c", Node: &fsmpb.Node{Name: "n", Id: "n-id"}}}})
	return n
}

// entries are the log so far.
func (n *node) entries() []check.Entry {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]check.Entry(nil), n.log...)
}

func (n *node) apply(c *fsmpb.Command) cluster.Reply[*fsmpb.Outcome] {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.commit(c)
	n.advance()
	return r
}

// advance ends what is due. The caller has the mutex, here and below.
func (n *node) advance() {
	now := uint64(time.Since(n.began).Milliseconds())
	for next, ok := n.state.NextExpiryMS(); ok && next <= now; next, ok = n.state.NextExpiryMS() {
		n.commit(&fsmpb.Command{Op: &fsmpb.Command_Advance{Advance: &fsmpb.Advance{}}})
	}
}

func (n *node) commit(c *fsmpb.Command) cluster.Reply[*fsmpb.Outcome] {
	index := n.state.Index() + 1
	if index%50 == 3 {
		n.log = append(n.log, check.Entry{Index: index, Term: 1})
		index++
	}
	c.NowMs, c.Term = uint64(time.Since(n.began).Milliseconds()), 1
	logged := proto.CloneOf(c)
	o, events, err := n.state.Apply(index, 1, c)
	if err != nil {
		panic(err)
	}
	index = n.state.Index() // a restore jumps
	n.log = append(n.log, check.Entry{Index: index, Term: 1, Command: logged})
	for _, e := range events {
		if d := e.Decided; d != nil {
			n.decided[d.RequestKey] = cluster.Reply[*fsmpb.Outcome]{Outcome: d.Outcome, Index: index}
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
	n.feed.Append(index, events)
	n.feed.Announce()
	return cluster.Reply[*fsmpb.Outcome]{Outcome: o, Index: index}
}

// keepTime advances every ten milliseconds until ctx ends.
func (n *node) keepTime(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			n.mu.Lock()
			n.advance()
			n.mu.Unlock()
		}
	}
}

func (n *node) Status() cluster.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	return cluster.Status{Name: "n", ID: "n-id", ClusterID: "c", IsLeader: true, LeaderURL: "http://n", Term: 1, Index: n.state.Index()}
}

func (n *node) Acquire(ctx context.Context, received time.Time, a *fsmpb.Acquire) (cluster.Reply[*fsmpb.Outcome], error) {
	r := n.apply(&fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: a}})
	queued := r.Index
	for r.Outcome.Code == fsmpb.Code_CODE_QUEUED {
		n.mu.Lock()
		d, ok := n.decided[fsm.RequestKey(a.Principal, a.Request)]
		changed := n.changed
		n.mu.Unlock()
		if ok && d.Index > queued {
			d.Waited = time.Since(received)
			return d, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			n.giveUp(a)
			return r, cluster.ErrOutcomeUnknown
		}
	}
	return r, nil
}

// giveUp cancels a wait that nobody is there for any more.
func (n *node) giveUp(a *fsmpb.Acquire) {
	n.mu.Lock()
	attempt, queued, ok := n.state.Attempt(a.Principal, a.Request)
	n.mu.Unlock()
	if ok && queued {
		n.apply(&fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: &fsmpb.Cancel{Name: a.Name, Principal: a.Principal, Request: a.Request, Attempt: attempt}}})
	}
}

func (n *node) Cancel(_ context.Context, _ time.Time, c *fsmpb.Cancel) (cluster.Reply[*fsmpb.Outcome], error) {
	return n.apply(&fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: c}}), nil
}

func (n *node) Release(_ context.Context, _ time.Time, r *fsmpb.Release) (cluster.Reply[*fsmpb.Outcome], error) {
	return n.apply(&fsmpb.Command{Op: &fsmpb.Command_Release{Release: r}}), nil
}

func (n *node) Write(_ context.Context, _ time.Time, w *fsmpb.Write) (cluster.Reply[*fsmpb.Outcome], error) {
	return n.apply(&fsmpb.Command{Op: &fsmpb.Command_Write{Write: w}}), nil
}

func (n *node) Renew(_ context.Context, rs []*fsmpb.Renewal) (cluster.Reply[[]*fsmpb.Outcome], error) {
	r := n.apply(&fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: &fsmpb.Renew{Renewals: rs}}})
	return cluster.Reply[[]*fsmpb.Outcome]{Outcome: r.Outcome.Renewals, Index: r.Index}, nil
}

func (n *node) Read(_ context.Context, _ bool, see func(*fsm.State)) (cluster.ReadInfo, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	see(n.state)
	return cluster.ReadInfo{Index: n.state.Index()}, nil
}

func (n *node) Watch(from uint64, renewals bool) (*cluster.Watcher, error) {
	return n.feed.Watch(from, renewals)
}

func (n *node) Backup() (*cluster.Backup, error) { return nil, cluster.ErrTooManyBackups }
func (n *node) Spool(io.Reader, *fsmpb.Request) (*cluster.Spool, error) {
	return nil, cluster.ErrNoLeader
}
func (n *node) Restore(context.Context, *cluster.Spool, cluster.RestoreOptions) (cluster.Restored, error) {
	return cluster.Restored{}, cluster.ErrNoLeader
}

func (n *node) Members(context.Context) ([]cluster.Member, error) { return nil, nil }
func (n *node) Join(context.Context, *fsmpb.Node) error           { return cluster.ErrNoLeader }
func (n *node) Correct(context.Context, *fsmpb.Node) error        { return cluster.ErrNoLeader }
func (n *node) Remove(context.Context, string, bool) error        { return cluster.ErrNoLeader }
func (n *node) Transfer(context.Context, string) (string, error)  { return "", cluster.ErrNoLeader }
func (n *node) Formation() cluster.Formation                      { return cluster.Formation{} }
func (n *node) Ready() error                                      { return nil }
func (n *node) Live() error                                       { return nil }
