package cluster

import (
	"context"
	"time"
)

const (
	// announcePace is the least time between two broadcasts to watchers. A lone
	// event goes out at once; under load each watcher is woken, and writes to its
	// connection, at most a hundred times a second.
	announcePace = 10 * time.Millisecond
	// leaderLook is how often a node looks whether it still knows a leader, and
	// leaderless how long it must not have known one to end its watches. An
	// ordinary election is over sooner and cuts nobody.
	leaderLook = 250 * time.Millisecond
	leaderless = time.Second
)

// Watch opens a watch of this node's events from a public index on, inclusive; 0:
// from now on. The error is ErrNoLeader, ErrShuttingDown, ErrTooManyWatchers or
// a *CompactedError. A node that has lost the leader, or shuts down, ends its
// watches with these errors as well: another node may know more (P13).
func (n *Node) Watch(from uint64, renewals bool) (*Watcher, error) {
	w, err := n.machine.feed.Watch(from, renewals)
	if err != nil {
		return nil, err
	}
	// After it was opened: what ends all watches from here on ends this one, too.
	switch {
	case n.closing.Load():
		err = ErrShuttingDown
	case !n.knowsLeader():
		err = ErrNoLeader
	default:
		return w, nil
	}
	w.Close()
	return nil, err
}

func (n *Node) knowsLeader() bool {
	mb := n.member.Load()
	if mb == nil || n.removed.Load() {
		return false
	}
	_, id := mb.raft.LeaderWithID()
	return id != ""
}

// tendWatches tells watchers what is new, and ends their watches when the node
// has been without a leader.
func (n *Node) tendWatches(ctx context.Context) {
	look := time.NewTicker(leaderLook)
	defer look.Stop()
	known := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.machine.feed.wake:
			n.machine.feed.Announce()
			if !sleep(ctx, announcePace) {
				return
			}
		case <-look.C:
			if n.knowsLeader() {
				known = time.Now()
			} else if time.Since(known) >= leaderless {
				n.machine.feed.End(ErrNoLeader)
			}
		}
	}
}
