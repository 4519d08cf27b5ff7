package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// mayhem is one hit of N25; together is how many faults may be there at once.
const (
	mayhem   = time.Minute
	together = 3
)

// everything is N25: for a minute, faults of all kinds, several at once.
type everything struct {
	r     *rand.Rand
	kinds []*nemesis
	// attacks are of this cluster, one of each kind and loop: they are not made to
	// be used by several at once.
	attacks [together][]attack
}

// excluded are the kinds that need a cluster laid out for them or clients of their
// own, those that take a node away for too long, and the one that cannot be undone
// while others take nodes away.
func excluded(n *nemesis) bool {
	return slices.Contains([]string{"N4", "N5", "N8S", "N11", "N12", "N13", "N14", "N15", "N16", "N18", "N19", "N21", "N23"}, n.id)
}

func newEverything(r *rand.Rand, all []*nemesis) *everything {
	e := &everything{r: r}
	for _, n := range all {
		if !excluded(n) {
			e.kinds = append(e.kinds, n)
		}
	}
	for i := range e.attacks {
		for _, n := range e.kinds {
			a := n.make(rand.New(rand.NewPCG(r.Uint64(), r.Uint64())))
			switch a := a.(type) {
			case *rollingRestart:
				a.nodes = 1
			case *killAny:
				a.all = 5
			}
			e.attacks[i] = append(e.attacks[i], a)
		}
	}
	return e
}

func (e *everything) land(ctx context.Context, c *cluster) (*landing, error) {
	at, end := c.recorder.Now(), time.Now().Add(mayhem)
	var mu sync.Mutex // guards what follows
	var parts []hit
	var errs []error
	var wg sync.WaitGroup
	for i := range e.attacks {
		r := rand.New(rand.NewPCG(e.r.Uint64(), e.r.Uint64()))
		wg.Go(func() {
			for ctx.Err() == nil && time.Now().Before(end) {
				k := r.IntN(len(e.kinds))
				if e.kinds[k].namespace && c.wall == nil {
					continue
				}
				h, err := strike(ctx, c, e.kinds[k], e.attacks[i][k])
				mu.Lock()
				if err == nil {
					parts = append(parts, h)
				} else if !errors.Is(err, errBusy) {
					errs = append(errs, fmt.Errorf("%s: %w", e.kinds[k].id, err))
				}
				failed := len(errs) > 0
				mu.Unlock()
				if failed || sleep(ctx, between(r, 0, 2*time.Second)) != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	slices.SortFunc(parts, func(a, b hit) int { return int(a.At - b.At) })
	all := len(parts)
	// One fault can take another's effect away: what is cut off from a node that is
	// stopped drops no packet. Such are no hits; but they must be few.
	parts = slices.DeleteFunc(parts, func(h hit) bool { return h.Missed != "" })
	if 4*len(parts) < 3*all {
		return nil, fmt.Errorf("%w: of %d faults only %d did", errMissed, all, len(parts))
	}
	return &landing{at: at, what: "everything for " + mayhem.String(), parts: parts, heal: func(context.Context) (string, error) {
		landed := make(map[string]int)
		for _, h := range parts {
			landed[h.Nemesis]++
		}
		var list []string
		for _, n := range e.kinds {
			if landed[n.id] > 0 {
				list = append(list, fmt.Sprintf("%s x%d", n.id, landed[n.id]))
			}
		}
		if len(list) == 0 {
			return "", errMissed
		}
		if lost := all - len(parts); lost > 0 {
			list = append(list, fmt.Sprintf("and %d that had no effect beside others", lost))
		}
		return strings.Join(list, ", "), nil
	}}, nil
}
