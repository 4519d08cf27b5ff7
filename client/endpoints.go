package client

import (
	"slices"
	"strings"
	"sync"
	"time"

	"fencepost/httpapi/wire"
)

const (
	firstAvoidance = time.Second
	maxAvoidance   = 15 * time.Second
	// distrust is how long after it failed a node is not gone to for a hint. Nodes
	// that disagree on the leader would otherwise send a client to and fro.
	distrust = time.Second
)

// endpoint is a node that can be asked.
type endpoint struct {
	base     string        // http://host:port, without a slash at the end
	failedAt time.Time     // since it last answered; zero: not
	penalty  time.Duration // if it was silent since then: how long it is
	avoided  time.Time     // until when
}

// endpoints chooses whom to ask: a node that works is stayed with, one that fails
// is left for another, and one that was silent is avoided for a while.
type endpoints struct {
	mu  sync.Mutex  // guards all of it, and the nodes
	all []*endpoint // the configured ones first, in their order
	at  *endpoint   // whom to ask now
	n   int         // how many are configured
}

func (s *endpoints) configure(base string) {
	if s.find(base) == nil {
		s.all = append(s.all, &endpoint{base: base})
		s.n++
	}
	s.at = s.all[0]
}

// spare is how many configured nodes there are beside the one asked first.
func (s *endpoints) spare() int { return s.n - 1 }

func (s *endpoints) find(base string) *endpoint {
	for _, n := range s.all {
		if n.base == base {
			return n
		}
	}
	return nil
}

// pick is whom to ask now.
func (s *endpoints) pick() *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.at.avoided.After(now) {
		s.at = s.after(s.at, now)
	}
	return s.at
}

// after is the configured node whose last failure is the oldest, in turn where
// that is equal: it has had the longest time to recover. Once all have failed since
// they last answered, the nodes that the cluster has told of are asked as well, since
// all that was configured may have been replaced. Those to be avoided are left out,
// unless all have been silent.
func (s *endpoints) after(n *endpoint, now time.Time) *endpoint {
	from := slices.Index(s.all[:s.n], n) // -1, for one that is not configured, begins at the first
	among := s.all[:s.n]
	if !slices.ContainsFunc(among, func(m *endpoint) bool { return m.failedAt.IsZero() }) {
		among = s.all
	}
	others := slices.ContainsFunc(among, func(m *endpoint) bool { return m.penalty == 0 })
	var best *endpoint
	for i := 1; i <= len(among); i++ {
		m := among[(from+i)%len(among)]
		if others && m.avoided.After(now) {
			continue
		}
		if best == nil || m.failedAt.Before(best.failedAt) {
			best = m
		}
	}
	return best
}

// answered notes that a node works, and goes on to the leader that it names.
func (s *endpoints) answered(n *endpoint, leader string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.avoided, n.penalty, n.failedAt = time.Time{}, 0, time.Time{}
	if s.at != n {
		return // another call has moved on already
	}
	if to := s.hinted(n, leader, time.Now()); to != nil {
		s.at = to
	}
}

// failed leaves a node, for the leader that it named or else the next in turn.
func (s *endpoints) failed(n *endpoint, silent bool, leader string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	n.failedAt = now
	if silent {
		n.penalty = min(max(2*n.penalty, firstAvoidance), maxAvoidance)
		n.avoided = now.Add(n.penalty)
	}
	if s.at != n {
		return
	}
	if to := s.hinted(n, leader, now); to != nil {
		s.at = to
		return
	}
	s.at = s.after(n, now)
}

// hinted is the node with this URL, if it is one that we know and may work. A hint
// to anywhere else is ignored: it would be handed our credentials.
func (s *endpoints) hinted(by *endpoint, leader string, now time.Time) *endpoint {
	to := s.find(strings.TrimSuffix(leader, "/"))
	if to == nil || to == by || to.avoided.After(now) || now.Sub(to.failedAt) < distrust {
		return nil
	}
	return to
}

// maxTold bounds how many nodes a cluster can tell of.
const maxTold = 64

// learn takes the members of the cluster, told by the node at base, as nodes that
// a hint may lead to. They replace those told before.
func (s *endpoints) learn(base string, members []wire.Node) {
	scheme, _, _ := strings.Cut(base, "://")
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.all[s.n:]
	s.all = slices.Clip(s.all[:s.n])
	for _, m := range members[:min(len(members), maxTold)] {
		url, err := baseURL(scheme + "://" + m.HTTPAddr)
		if err != nil || s.find(url) != nil {
			continue
		}
		n := &endpoint{base: url}
		if i := slices.IndexFunc(before, func(o *endpoint) bool { return o.base == url }); i >= 0 {
			n = before[i]
		}
		s.all = append(s.all, n)
	}
	if !slices.Contains(s.all, s.at) {
		s.at = s.all[0]
	}
}
