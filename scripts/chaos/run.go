package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"fencepost/cluster/check"
)

const (
	healBound     = 90 * time.Second
	progressBound = 15 * time.Second // R16: from a heal to the first acknowledgement
	warmUpBound   = 30 * time.Second
	// afterwards is how long the load goes on when all is healed: so that leases have
	// expired and been superseded, also where the faults left no time for it.
	afterwards = 6 * time.Second
	busyBound  = 20 * time.Second // for an attack to find something to attack
	dumpBound  = 2 * time.Minute
)

// A finisher has clients of its own, which have to end before the load does. Its
// history is added to the recorder's, on whose clock it is.
type finisher interface {
	finish(c *cluster) (*check.History, error)
}

// A result is what one cluster went through.
type result struct {
	nemesis    *nemesis
	hits       []hit
	operations int // exchanges
	acked      int64
	outages    []time.Duration
	gaps       []time.Duration
	verdicts   []*check.Verdict
}

func (r *result) failed() bool {
	return slices.ContainsFunc(r.verdicts, func(v *check.Verdict) bool { return len(v.Findings) > 0 })
}

// A run is one cluster under one nemesis.
type run struct {
	*settings
	n      *nemesis
	dir    string
	r      *rand.Rand
	c      *cluster
	attack attack
	load   *load
	e      evidence
}

// run goes through one cluster's life. An error is not a verdict: it could not be
// carried through.
func (s *settings) run(ctx context.Context, n *nemesis, number, hits int) (res *result, err error) {
	id := fnv.New64a()
	fmt.Fprint(id, n.id, number)
	r := &run{settings: s, n: n, dir: filepath.Join(s.work, fmt.Sprintf("%s-%d", n.id, number)), r: rand.New(rand.NewPCG(s.seed, id.Sum64()))}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return nil, err
	}
	// Nodes have users of their own, who must reach their directories in it.
	if err := os.Chmod(r.dir, 0o711); err != nil {
		return nil, err
	}
	if r.c, err = newCluster(s.bin, r.dir, s.inside, s.wall); err != nil {
		return nil, err
	}
	r.attack = n.make(rand.New(rand.NewPCG(r.r.Uint64(), r.r.Uint64())))
	if p, ok := r.attack.(preparer); ok {
		undo, err := p.prepare(ctx, r.c)
		if undo != nil {
			defer func() { err = errors.Join(err, undo()) }()
		}
		if err != nil {
			return nil, err
		}
	}
	// Whatever happens, no node outlives this.
	defer func() { err = errors.Join(err, r.c.closeProxies(), r.c.stop()) }()
	return r.live(ctx, hits)
}

func (r *run) live(ctx context.Context, hits int) (*result, error) {
	if r.n.proxied {
		if err := r.c.addProxies(r.inside); err != nil {
			return nil, err
		}
	}
	if err := r.c.start(ctx); err != nil {
		return nil, err
	}
	var err error
	if r.load, err = startLoad(r.c, r.r.Uint64()); err != nil {
		return nil, err
	}
	history, err := r.underLoad(ctx, hits)
	if err != nil {
		r.load.abandon()
		return nil, err
	}
	if err := r.c.stop(); err != nil {
		return nil, err
	}
	r.e.entries = make(map[string][]check.Entry)
	for _, n := range r.c.nodes {
		bounded, cancel := context.WithTimeout(ctx, dumpBound)
		r.e.entries[n.name], err = dump(bounded, r.bin, n)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	return r.judged(history)
}

// underLoad lands the hits, and ends with the load, unless that cannot be.
func (r *run) underLoad(ctx context.Context, hits int) (h *check.History, err error) {
	bounded, cancel := context.WithTimeout(ctx, warmUpBound)
	err = r.load.progress(bounded, 0)
	cancel()
	if err == nil {
		err = r.hits(ctx, hits)
	}
	if err == nil {
		err = sleep(ctx, afterwards)
	}
	var own *check.History
	if f, ok := r.attack.(finisher); ok {
		var errFinish error
		own, errFinish = f.finish(r.c)
		err = errors.Join(err, errFinish)
	}
	if err != nil {
		return nil, err
	}
	if err := r.load.stop(); err != nil {
		if len(r.e.healing) == 0 {
			r.e.healing = append(r.e.healing, err.Error())
		}
	}
	h = r.c.recorder.History()
	if own != nil {
		h.Exchanges = append(h.Exchanges, own.Exchanges...)
		h.Streams = append(h.Streams, own.Streams...)
	}
	slices.SortStableFunc(h.Exchanges, func(a, b *check.Exchange) int { return int(a.Start - b.Start) })
	for i, x := range h.Exchanges {
		if x.ID != i+1 {
			renumbered := *x // others may still look at it
			renumbered.ID = i + 1
			h.Exchanges[i] = &renumbered
		}
	}
	return h, nil
}

// hits lands one after the other, and stops early only if service does not come
// back.
func (r *run) hits(ctx context.Context, hits int) error {
	gap := r.n.gap
	if gap == 0 {
		gap = time.Second
	}
	for i := range hits {
		if err := sleep(ctx, between(r.r, 0, gap)); err != nil {
			return err
		}
		h, parts, err := r.hit(ctx)
		if err != nil {
			return fmt.Errorf("hit %d: %w", i+1, err)
		}
		r.say("%s %d of %d: %s: %s%s", r.n.id, i+1, hits, h.What, h.Evidence, h.Missed)
		if len(parts) == 0 {
			parts = []hit{h}
		}
		r.e.hits = append(r.e.hits, parts...)
		if !r.n.settle && i+1 < hits {
			continue
		}
		if err := r.settled(ctx, h); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.e.healing = append(r.e.healing, fmt.Sprintf("after %s: %v", h.What, err))
			return nil
		}
	}
	return nil
}

// hit waits for something to attack.
func (r *run) hit(ctx context.Context) (h hit, parts []hit, err error) {
	for end := time.Now().Add(busyBound); ; {
		h, parts, err = strikeAll(ctx, r.c, r.n, r.attack)
		if !errors.Is(err, errBusy) || time.Now().After(end) {
			return h, parts, err
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return h, nil, err
		}
	}
}

// settled waits until all nodes are ready, and something that began after the heal
// was acknowledged.
func (r *run) settled(ctx context.Context, h hit) error {
	bounded, cancel := context.WithTimeout(ctx, progressBound)
	defer cancel()
	if err := r.load.progress(bounded, h.Healed); err != nil {
		return err
	}
	return r.c.whole(ctx)
}

// strike lands one fault, keeps it for its time and heals it.
func strike(ctx context.Context, c *cluster, n *nemesis, a attack) (hit, error) {
	h, _, err := strikeAll(ctx, c, n, a)
	return h, err
}

func strikeAll(ctx context.Context, c *cluster, n *nemesis, a attack) (h hit, parts []hit, err error) {
	l, err := a.land(ctx, c)
	if errors.Is(err, errMissed) {
		return hit{Nemesis: n.id, What: n.what, At: c.recorder.Now(), Healed: c.recorder.Now(), Missed: err.Error()}, nil, nil
	}
	if err != nil {
		return h, nil, err
	}
	h = hit{Nemesis: n.id, What: l.what, At: l.at}
	interrupted := sleep(ctx, l.hold)
	healing, cancel := context.WithTimeout(context.WithoutCancel(ctx), healBound)
	defer cancel()
	h.Evidence, err = l.heal(healing)
	h.Healed = c.recorder.Now()
	if errors.Is(err, errMissed) {
		h.Missed, err = err.Error(), nil
	}
	if err != nil {
		return h, nil, fmt.Errorf("heal %s: %w", l.what, err)
	}
	return h, l.parts, interrupted
}

// judged writes the evidence down, and has it judged.
func (r *run) judged(h *check.History) (*result, error) {
	r.c.mu.Lock()
	r.e.ended = r.c.ended
	r.c.mu.Unlock()
	r.e.history, r.e.dir = h, r.dir
	r.e.calls, r.e.failed = int(r.load.calls.Load()), r.load.failed
	r.e.kept, r.e.lost = int(r.load.kept.Load()), r.load.lost
	if err := r.write(); err != nil {
		return nil, err
	}
	res := &result{nemesis: r.n, hits: r.e.hits, operations: len(h.Exchanges), acked: r.load.acked.count.Load(), outages: outages(h, r.e.hits), gaps: gaps(h, r.e.hits)}
	bound := time.Duration(0)
	if r.n.id == "N1" {
		bound = r.maxOutage
	}
	res.verdicts = judge(&r.e, bound)
	if w, ok := r.attack.(witness); ok {
		res.verdicts = append(res.verdicts, w.verdicts(&r.e)...)
	}
	return res, nil
}
