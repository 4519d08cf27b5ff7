package cluster

import (
	"context"
	"sync"

	"github.com/hashicorp/raft"
)

// health follows what Raft observes of the other nodes.
type health struct {
	events   chan raft.Observation
	observer *raft.Observer

	mu     sync.Mutex // guards silent
	silent map[raft.ServerID]bool
}

func watchHealth(r *raft.Raft) *health {
	h := &health{events: make(chan raft.Observation, 64), silent: map[raft.ServerID]bool{}}
	h.observer = raft.NewObserver(h.events, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.FailedHeartbeatObservation, raft.ResumedHeartbeatObservation, raft.LeaderObservation:
			return true
		}
		return false
	})
	r.RegisterObserver(h.observer)
	return h
}

func (h *health) run(ctx context.Context, leaderChanged func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-h.events:
			h.mu.Lock()
			switch e := o.Data.(type) {
			case raft.FailedHeartbeatObservation:
				h.silent[e.PeerID] = true
			case raft.ResumedHeartbeatObservation:
				delete(h.silent, e.PeerID)
			case raft.LeaderObservation:
				h.silent = map[raft.ServerID]bool{}
				if e.LeaderID != "" {
					leaderChanged()
				}
			}
			h.mu.Unlock()
		}
	}
}

// healthy says that this leader's heartbeats to the node do not fail.
func (h *health) healthy(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.silent[raft.ServerID(id)]
}

func (h *health) stop(r *raft.Raft) { r.DeregisterObserver(h.observer) }
