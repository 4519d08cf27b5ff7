package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fencepost/httpapi/wire"
)

// A run that needs snapshots has one node that keeps its whole log, for the judges, and
// others that compact theirs. That one may be stopped, but not for so long that it
// would be sent a snapshot; it must not lose its disk; and the run's log must stay below
// 64 MiB, at which every node compacts.

// compacting lets all nodes but the first compact, after so many entries, and keep some
// behind that. They must not have been started.
func compacting(c *cluster, entries, trailing int) (others []*node) {
	others = c.nodes[1:]
	for _, n := range others {
		// What comes later on the command line counts.
		n.args = append(n.args, "--snapshot-entries", fmt.Sprint(entries), "--trailing-entries", fmt.Sprint(trailing))
	}
	return others
}

// handOver stops the node that keeps the whole log, if it leads, so that another does.
func (c *cluster) handOver(ctx context.Context, l leadership) (leadership, error) {
	if l.node != c.nodes[0] {
		return l, nil
	}
	if !l.node.claim() {
		return l, errBusy
	}
	defer l.node.release()
	if err := l.node.stop(); err != nil {
		return l, err
	}
	next, err := c.leader(ctx, l.term)
	return next, errors.Join(err, l.node.restart(ctx))
}

// votersBound is for a new member to get what it lacks, and be promoted.
const votersBound = 45 * time.Second

// voters waits until the leader counts all nodes as voters.
func (c *cluster) voters(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, votersBound)
	defer cancel()
	for {
		if l, err := c.leader(ctx, 0); err == nil {
			count := 0
			if s := status(ctx, l.node); s != nil {
				for _, n := range s.Nodes {
					if n.Role == wire.RoleVoter {
						count++
					}
				}
			}
			if count == nodeCount {
				return nil
			}
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("the nodes were not all voters within %s", votersBound)
		}
	}
}
