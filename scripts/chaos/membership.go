package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

const (
	memberBound  = 20 * time.Second // a change of the members, repetitions included
	promoteBound = 30 * time.Second
)

// changeMembers is N19: a member is removed, the leader or another, while it runs or
// after a kill; it has to say that it was, also restarted. Then its directory is wiped
// and it joins anew. No call may fail by it. Every other time leadership is handed over
// first.
type changeMembers struct {
	r *rand.Rand
	n int
}

func (a *changeMembers) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	a.n++
	what := ""
	if a.n%2 == 0 {
		if err := memberCall(ctx, c, http.MethodPost, "/v1/cluster/transfer"); err != nil {
			return nil, fmt.Errorf("transfer: %w", err)
		}
		if l, err = c.leader(ctx, 0); err != nil {
			return nil, err
		}
		what = "transfer, "
	}
	victim := l.node
	if a.r.IntN(2) == 0 {
		victim = pick(a.r, c.others(l.node))
	}
	if !victim.claim() {
		return nil, errBusy
	}
	at := c.recorder.Now()
	killed := victim != l.node && a.r.IntN(3) == 0
	if killed {
		what += "kill, "
		if err := victim.kill(); err != nil {
			victim.release()
			return nil, err
		}
	}
	if err := memberCall(ctx, c, http.MethodDelete, "/v1/cluster/members/"+victim.name); err != nil {
		victim.release()
		return nil, fmt.Errorf("remove %s: %w", victim.name, err)
	}
	return &landing{
		at: at, what: fmt.Sprintf("%sremove %s, while %s led in term %d", what, victim.name, l.node.name, l.term),
		hold: between(a.r, 0, 2*time.Second),
		heal: func(ctx context.Context) (string, error) {
			defer victim.release()
			return a.replace(ctx, c, victim, killed)
		},
	}, nil
}

// replace sees that the node knows that it was removed, and has it join anew.
func (a *changeMembers) replace(ctx context.Context, c *cluster, victim *node, killed bool) (string, error) {
	if killed || a.r.IntN(2) == 0 {
		if err := errors.Join(victim.stop(), victim.start()); err != nil {
			return "", err
		}
	}
	if err := eventuallySays(ctx, memberBound, func() bool {
		s := status(ctx, victim)
		return s != nil && s.Removed
	}); err != nil {
		return "", fmt.Errorf("%s does not say that it was removed: %w", victim.name, err)
	}
	if err := errors.Join(victim.stop(), os.RemoveAll(victim.dir), victim.restart(ctx)); err != nil {
		return "", err
	}
	if err := eventuallySays(ctx, promoteBound, func() bool { return votes(ctx, c, victim) }); err != nil {
		return "", fmt.Errorf("%s was not promoted: %w", victim.name, err)
	}
	return "it said that it was removed, and has a vote again", nil
}

// votes says whether the leader has the node as a healthy voter.
func votes(ctx context.Context, c *cluster, n *node) bool {
	for _, m := range c.nodes {
		s := status(ctx, m)
		if s == nil || s.Leader == "" {
			continue
		}
		for _, w := range s.Nodes {
			if w.Name == n.name {
				return w.Role == wire.RoleVoter && w.Healthy
			}
		}
	}
	return false
}

func eventuallySays(ctx context.Context, bound time.Duration, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for !ok() {
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// memberCall does what an operator does: the call is repeated, at any node, until it
// is decided. A removal that is not found is one that an attempt before has done.
func memberCall(ctx context.Context, c *cluster, method, path string) error {
	ctx, cancel := context.WithTimeout(ctx, memberBound)
	defer cancel()
	last := errors.New("no node runs")
	for i := 0; ; i++ {
		n := c.nodes[i%len(c.nodes)]
		if n.running() {
			code, answer, err := send(ctx, method, n.url()+path)
			last = fmt.Errorf("%s answered %d %s (%v)", n.name, code, answer, err)
			if err == nil && (code == http.StatusOK || code == http.StatusNotFound && i > 0) {
				return nil
			}
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return last
		}
	}
}

func send(ctx context.Context, method, url string) (code int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	var p wire.Problem
	if json.Unmarshal(b, &p) == nil && p.Code != "" {
		return resp.StatusCode, string(p.Code) + " " + p.Detail, err
	}
	return resp.StatusCode, string(b), err
}

func (a *changeMembers) verdicts(e *evidence) []*check.Verdict { return nothingNoticed(e) }
