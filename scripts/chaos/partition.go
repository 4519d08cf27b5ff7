package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"fencepost/cluster/check"
)

// isolateLeader is N6: the leader neither hears nor reaches the others, and goes on
// answering clients.
type isolateLeader struct {
	r  *rand.Rand
	mu sync.Mutex // guards times
	// times are when a node was cut off, from the end of its leader lease on.
	times []isolation
}

type isolation struct {
	node     string
	from, to int64
}

// leaderLease is how long a leader may serve without the others, by the default of
// fencepost server, and as much again for its steps to be seen.
const leaderLease = 2 * 200 * time.Millisecond

func (a *isolateLeader) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	hold := between(a.r, time.Second, 5*time.Second)
	land, err := cutLinks(ctx, c, 100, hold, both(l.node, c.others(l.node)...)...)
	if err != nil {
		return nil, err
	}
	cutAt := c.recorder.Now()
	land.what = fmt.Sprintf("cut off %s, which led in term %d, for %s", l.node.name, l.term, hold.Round(time.Millisecond))
	heal := land.heal
	land.heal = func(ctx context.Context) (string, error) {
		next := c.successor(ctx, l.term)
		a.mu.Lock()
		a.times = append(a.times, isolation{l.node.name, cutAt + int64(leaderLease), c.recorder.Now()})
		a.mu.Unlock()
		evidence, err := heal(ctx)
		if err != nil {
			return evidence, err
		}
		led, err := c.succeeded(ctx, l, next)
		return evidence + "; " + led, err
	}
	return land, nil
}

// verdicts: a leader that is cut off must not say yes to anything.
func (a *isolateLeader) verdicts(e *evidence) []*check.Verdict {
	v := &check.Verdict{Name: "a leader that is cut off answers nothing"}
	asked := 0
	for _, x := range e.history.Exchanges {
		for _, t := range a.times {
			if x.Node != t.node || x.End == 0 || x.Start < t.from || x.End > t.to || isStale(x) {
				continue
			}
			asked++
			if x.Status < 300 {
				find(v, "%s %s was answered by %s with %d, %s after it was cut off", x.Method, x.Path, x.Node, x.Status, time.Duration(x.Start-t.from)+leaderLease)
			}
		}
	}
	v.Note = fmt.Sprintf("%d requests refused by leaders that were cut off", asked)
	return []*check.Verdict{v}
}

// oddCuts is N7: cuts after which the nodes disagree on who can reach whom.
type oddCuts struct {
	r *rand.Rand
	n int
}

func (a *oddCuts) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	others := c.others(l.node)
	one, two := others[0], others[1]
	if a.r.IntN(2) == 0 {
		one, two = two, one
	}
	kinds := []struct {
		what  string
		links []link
	}{
		{"the leader is not heard", []link{{l.node, one}, {l.node, two}}},
		{"the leader hears nobody", []link{{one, l.node}, {two, l.node}}},
		{"one follower does not hear the leader", []link{{l.node, one}}},
		{"one follower is not heard by the leader", []link{{one, l.node}}},
		{"the leader and one follower do not reach each other, the other reaches both", both(l.node, one)},
		// Followers that do not reach each other are no fault: they do not speak.
		{"a ring: no two nodes reach each other in both directions", []link{{l.node, one}, {one, two}, {two, l.node}}},
	}
	if a.n == 0 {
		a.n = a.r.IntN(len(kinds))
	}
	k := kinds[a.n%len(kinds)]
	a.n++
	hold := between(a.r, time.Second, 4*time.Second)
	land, err := cutLinks(ctx, c, 100, hold, k.links...)
	if err == nil {
		land.what = fmt.Sprintf("%s (%s, which led in term %d), for %s", k.what, l.node.name, l.term, hold.Round(time.Millisecond))
	}
	return land, err
}

// lossyLinks is N8.
type lossyLinks struct{ r *rand.Rand }

func (a *lossyLinks) land(ctx context.Context, c *cluster) (*landing, error) {
	percent := 10 + a.r.IntN(21)
	hold := between(a.r, 4*time.Second, 8*time.Second)
	links := append(both(c.nodes[0], c.nodes[1:]...), both(c.nodes[1], c.nodes[2])...)
	land, err := cutLinks(ctx, c, percent, hold, links...)
	if err == nil {
		land.what = fmt.Sprintf("every link loses %d %% for %s", percent, hold.Round(time.Millisecond))
	}
	return land, err
}

func cutLinks(ctx context.Context, c *cluster, percent int, hold time.Duration, links ...link) (*landing, error) {
	at := c.recorder.Now()
	cut, err := c.wall.cut(ctx, percent, links...)
	if err != nil {
		return nil, err
	}
	return &landing{at: at, hold: hold, heal: cut.heal}, nil
}
