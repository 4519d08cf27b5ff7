package cluster

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// diskLook is how often a node with a full disk looks what it can do.
	diskLook = 250 * time.Millisecond
	// diskRetry is how often it tries to write what found no room.
	diskRetry = time.Second
	// yieldRetry spaces attempts to give leadership away, each twice as long as
	// the one before: while one lasts, nothing is proposed.
	yieldRetry, yieldRetryMax = time.Second, time.Minute
)

// tendFitness is what a node does while its disk is full, or a certificate of it is over:
// it should not lead, and gives leadership away if it does. The two share one goroutine,
// so that there is one attempt at a time.
//
// With a full disk, Raft leaves a leader's office when a write to the log fails, and the
// others are elected before it: they have not heard yet that it left, and refuse it a
// vote. But entries that cannot settle fail no write until the journal is full, too; the
// node gives leadership away as soon as it finds that, and serves on if nobody can take it.
func (n *Node) tendFitness(ctx context.Context, mb *member) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.disk.changed:
		case <-n.unfit:
		}
		n.waitForFitness(ctx, mb)
	}
}

// unfitness is why this node should not lead; "": it may.
func (n *Node) unfitness() string {
	if n.disk.isFull() != nil {
		return "its disk is full"
	}
	if err := n.lapsed(); err != nil {
		return err.Error()
	}
	return ""
}

func (n *Node) waitForFitness(ctx context.Context, mb *member) {
	var tried, yielded time.Time
	var yieldWait time.Duration
	for why := n.unfitness(); why != ""; why = n.unfitness() {
		now := time.Now()
		if mb.raft.State() == raft.Leader && now.Sub(yielded) >= yieldWait {
			n.yield(ctx, mb, why)
			// Also if it led in between: two such nodes must not pass it to and fro.
			yielded, yieldWait = time.Now(), min(max(2*yieldWait, yieldRetry), yieldRetryMax)
		}
		if mb.retry != nil && n.disk.isFull() != nil && now.Sub(tried) >= diskRetry {
			tried = now
			_ = mb.retry() // what comes of it is noted where it is written
		}
		if !sleep(ctx, diskLook) {
			return
		}
	}
}

// yield gives leadership to another node, if one can take it. Readiness is gone
// before that begins, and comes back only by a proof in a term.
func (n *Node) yield(ctx context.Context, mb *member, why string) {
	n.log.Warn("this node gives leadership away", "why", why)
	n.yielding.Store(true)
	n.ready.set(0)
	bounded, cancel := context.WithTimeout(ctx, 4*n.cfg.Election)
	defer cancel()
	if !await(bounded, mb.raft.LeadershipTransfer()) {
		n.log.Warn("no other node takes over from this one", "why", why)
	}
	n.yielding.Store(false)
	n.dropReady() // or what made it ready meanwhile was left without a reproof
}

// retry tries again to settle what found the disk full.
func (j *journal) retry() error {
	j.write.Lock()
	defer j.write.Unlock()
	return j.drain()
}
