package onenode

import (
	"context"
	"io"
	"time"

	"fencepost/cluster"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// node is the Node of package httpapi.
type node struct {
	*Cluster
	name string
}

func (n *node) Status() cluster.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	return cluster.Status{
		Name: n.name, ID: n.name + "-id", ClusterID: "c1", IsLeader: true, LeaderURL: n.leader, Term: 1,
		Index: n.state.Index(), Watchers: n.feed.Watchers(),
	}
}

func (n *node) Acquire(ctx context.Context, _ time.Time, a *fsmpb.Acquire) (cluster.Reply[*fsmpb.Outcome], error) {
	began := time.Now()
	r := n.apply(&fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: a}})
	for r.Outcome.Code == fsmpb.Code_CODE_QUEUED {
		n.mu.Lock()
		d, ok := n.decided[fsm.RequestKey(a.Principal, a.Request)]
		changed := n.changed
		n.mu.Unlock()
		if ok {
			d.Waited = time.Since(began)
			return d, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return r, cluster.ErrOutcomeUnknown
		}
	}
	return r, nil
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
	n.advance()
	see(n.state)
	return cluster.ReadInfo{Index: n.state.Index()}, nil
}

func (n *node) Watch(from uint64, renewals bool) (*cluster.Watcher, error) {
	return n.feed.Watch(from, renewals)
}

func (n *node) Members(context.Context) (ms []cluster.Member, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.state.Nodes() {
		ms = append(ms, cluster.Member{Name: m.Name, ID: m.Id, HTTPAddr: m.HttpAddr, Voter: true, Healthy: true, Leader: n.leader == "http://"+m.Name})
	}
	return ms, nil
}

func (n *node) Backup() (*cluster.Backup, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return cluster.NewBackup(n.state.Snapshot(), "c1", time.Now(), func() {}), nil
}

func (n *node) Spool(upload io.Reader, _ *fsmpb.Request) (*cluster.Spool, error) {
	return cluster.NewSpool("", 1<<30, upload)
}

func (n *node) Restore(context.Context, *cluster.Spool, cluster.RestoreOptions) (cluster.Restored, error) {
	return cluster.Restored{}, cluster.ErrNoLeader
}

func (n *node) Join(context.Context, *fsmpb.Node) error          { return cluster.ErrNoLeader }
func (n *node) Correct(context.Context, *fsmpb.Node) error       { return cluster.ErrNoLeader }
func (n *node) Remove(context.Context, string, bool) error       { return cluster.ErrNoLeader }
func (n *node) Transfer(context.Context, string) (string, error) { return "", cluster.ErrNoLeader }
func (n *node) Formation() cluster.Formation                     { return cluster.Formation{Name: n.name} }
func (n *node) Ready() error                                     { return nil }
func (n *node) Live() error                                      { return nil }
