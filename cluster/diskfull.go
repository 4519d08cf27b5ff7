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
	// the one before: while one lasts, nothing is proposed. It is also how often a
	// leader looks again whether another may lead.
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
	var retried, yielded time.Time
	var yieldWait time.Duration
	tried := map[string]int{}
	for why := n.unfitness(); why != ""; why = n.unfitness() {
		now := time.Now()
		if mb.raft.State() == raft.Leader && now.Sub(yielded) >= yieldWait {
			if n.yield(ctx, mb, why, tried) {
				// Also if it led in between: nodes that know nothing of each other must not
				// pass it round all the time.
				yieldWait = min(2*yieldWait, yieldRetryMax)
			}
			yieldWait, yielded = max(yieldWait, yieldRetry), time.Now()
		}
		if mb.retry != nil && n.disk.isFull() != nil && now.Sub(retried) >= diskRetry {
			retried = now
			_ = mb.retry() // what comes of it is noted where it is written
		}
		if !sleep(ctx, diskLook) {
			return
		}
	}
}

// yield gives leadership to another node if there is one that may take it; if not, this
// one leads on as well as it can. tried counts what each was asked.
func (n *Node) yield(ctx context.Context, mb *member, why string, tried map[string]int) (asked bool) {
	ctx, cancel := context.WithTimeout(ctx, 4*n.cfg.Election)
	defer cancel()
	to, ok := n.successor(ctx, mb, tried)
	if !ok {
		return false
	}
	tried[to.ID]++
	n.log.Warn("this node gives leadership away", "why", why)
	if err := n.handOverTo(ctx, mb, to); err != nil {
		n.log.Warn("the other node has not taken over", "name", to.Name, "error", err)
	}
	return true
}

// retry tries again to settle what found the disk full.
func (j *journal) retry() error {
	j.write.Lock()
	defer j.write.Unlock()
	return j.drain()
}
