package httpapi

import (
	"context"
	"sync"
	"time"
)

// leaderLook is how often a node with forwarded requests under way looks whether
// the leader still leads.
const leaderLook = 50 * time.Millisecond

// whoeverLeads stands for the leader of calls that go on when another node leads.
const whoeverLeads = "*"

// underway ends forwarded requests when this node no longer takes the node that
// they were sent to for the leader: one that hangs or is cut off would otherwise
// keep the client from the next one, and its lease would run out meanwhile.
//
// Thousands may be under way for minutes, so all share one look, which is there
// only while there are any. Its methods may be called from any goroutine.
type underway struct {
	leader func() string // URL of the leader; called without the lock

	mu     sync.Mutex // guards what follows
	calls  map[string]map[*call]struct{}
	timer  *time.Timer // runs while there are calls; nil before the first
	closed bool
}

// call is one request under way, to the leader under whose URL it is kept.
type call struct{ end context.CancelFunc }

func newUnderway(leader func() string) *underway {
	return &underway{leader: leader, calls: map[string]map[*call]struct{}{}}
}

// add has end called if the leader is another one before done is.
func (u *underway) add(leader string, end context.CancelFunc) (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		end()
		return func() {}
	}
	switch {
	case u.timer == nil:
		u.timer = time.AfterFunc(leaderLook, u.look)
	case len(u.calls) == 0:
		u.timer.Reset(leaderLook)
	}
	c := &call{end}
	if u.calls[leader] == nil {
		u.calls[leader] = map[*call]struct{}{}
	}
	u.calls[leader][c] = struct{}{}
	return func() { u.done(leader, c) }
}

func (u *underway) done(leader string, c *call) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, ok := u.calls[leader][c]; !ok {
		return // ended
	}
	if delete(u.calls[leader], c); len(u.calls[leader]) == 0 {
		delete(u.calls, leader)
	}
	if len(u.calls) == 0 {
		u.timer.Stop() // a look that has begun sees the same and ends
	}
}

func (u *underway) look() {
	leader := u.leader()
	u.mu.Lock()
	ended := u.takeAllBut(leader)
	if len(u.calls) > 0 {
		u.timer.Reset(leaderLook)
	} else {
		u.timer.Stop() // one that was added and ended meanwhile has started it
	}
	u.mu.Unlock()
	endAll(ended)
}

// close ends all that is under way, and what is added later at once.
func (u *underway) close() {
	u.mu.Lock()
	u.closed = true
	ended := u.takeAllBut("")
	if u.timer != nil {
		u.timer.Stop()
	}
	u.mu.Unlock()
	endAll(ended)
}

// takeAllBut removes the calls to any other leader; when all is closed, all. The caller has the lock.
func (u *underway) takeAllBut(leader string) (taken []map[*call]struct{}) {
	for to, calls := range u.calls {
		if to != leader && (to != whoeverLeads || u.closed) {
			taken = append(taken, calls)
			delete(u.calls, to)
		}
	}
	return taken
}

func endAll(taken []map[*call]struct{}) {
	for _, calls := range taken {
		for c := range calls {
			c.end()
		}
	}
}
