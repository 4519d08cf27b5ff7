package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"fencepost/cluster/check"
	"fencepost/cluster/check/replay"
)

// damage is N16: something is wrong with a file of a node that had stopped. It has to
// refuse to start, to end itself, or to be as it was before; in no case may it serve,
// or lead, with something that is not so. Then its directory is wiped, and it joins
// anew.
type damage struct {
	r       *rand.Rand
	harms   []harm // in the order in which they come
	n       int
	victims []*node
	trials  int
	started int      // of the trials
	wrong   []string // what nodes did that they should not
	logs    map[string][]check.Entry
}

const (
	damageEntries = 300
	snapshotBound = 15 * time.Second
	// trialBound is how long a damaged node may look for itself. What is not ready by
	// then does not serve.
	trialBound = 15 * time.Second
	// trialTime is how long one that is ready is watched: the leader tells its digest
	// once a second, and reads of all kinds come.
	trialTime = 4 * time.Second
)

func newDamage(r *rand.Rand) *damage {
	a := &damage{r: r, harms: harms(), logs: make(map[string][]check.Entry)}
	r.Shuffle(len(a.harms), func(i, j int) { a.harms[i], a.harms[j] = a.harms[j], a.harms[i] })
	return a
}

func (a *damage) prepare(_ context.Context, c *cluster) (undo func() error, err error) {
	a.victims = compacting(c, damageEntries, damageEntries)
	return nil, nil
}

func (a *damage) land(ctx context.Context, c *cluster) (*landing, error) {
	h, victim := a.harms[a.n%len(a.harms)], pick(a.r, a.victims)
	if !victim.claim() {
		return nil, errBusy
	}
	at := c.recorder.Now()
	what, err := a.do(ctx, victim, h)
	if err != nil {
		victim.release()
		return nil, err
	}
	a.n++
	what = fmt.Sprintf("of %s: %s", victim.name, what)
	return &landing{at: at, what: what, heal: func(ctx context.Context) (string, error) {
		defer victim.release()
		outcome, err := a.try(ctx, c, victim, what)
		if err == nil {
			err = victim.restart(ctx)
		}
		if err == nil {
			// A new member is ready before it counts; a second one that is wiped
			// meanwhile would take the majority with it.
			err = c.voters(ctx)
		}
		return outcome, err
	}}, nil
}

// do stops a node that has something to lose, and harms it.
func (a *damage) do(ctx context.Context, victim *node, h harm) (what string, err error) {
	bounded, cancel := context.WithTimeout(ctx, snapshotBound)
	defer cancel()
	for {
		if list, _ := snapshotsOf(victim.dir); len(list) > 0 {
			break
		}
		if sleep(bounded, 100*time.Millisecond) != nil {
			return "", fmt.Errorf("%s has taken no snapshot within %s", victim.name, snapshotBound)
		}
	}
	// One that is stopped in order leaves nothing in its journal.
	if h.settled {
		err = victim.stop()
	} else {
		err = victim.kill()
	}
	if err != nil {
		return "", err
	}
	detail, err := h.do(a.r, victim.dir)
	if err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", h.what, err), victim.restart(ctx))
	}
	return h.what + " " + detail, nil
}

// try starts a damaged node, sees what it does, and wipes it.
func (a *damage) try(ctx context.Context, c *cluster, n *node, what string) (outcome string, err error) {
	a.trials++
	said := logSize(n)
	if err := n.begin(true); err != nil {
		return "", err
	}
	bounded, cancel := context.WithTimeout(ctx, trialBound)
	errReady := n.ready(bounded)
	cancel()
	switch {
	case !n.running():
		outcome = "it did not start: " + lastWords(n, said)
		a.failing(n, what)
	case errReady != nil:
		outcome = "it did not get ready"
		err = n.kill()
	default:
		outcome, err = a.watch(ctx, c, n, what, said)
	}
	if err != nil {
		return "", err
	}
	// What it was like stays, if something was wrong with it.
	if len(a.wrong) > 0 {
		return outcome, os.Rename(n.dir, fmt.Sprintf("%s-damaged-%d", n.dir, a.trials))
	}
	return outcome, os.RemoveAll(n.dir)
}

// watch looks at a damaged node that is ready, and stops it.
func (a *damage) watch(ctx context.Context, c *cluster, n *node, what string, said int64) (outcome string, err error) {
	a.started++
	if err := sleep(ctx, trialTime); err != nil {
		return "", err
	}
	if !n.running() {
		a.failing(n, what)
		return "it ended itself: " + lastWords(n, said), nil
	}
	led := ""
	if s := status(ctx, n); s != nil && s.Leader == n.name {
		led = ", and led"
	}
	if err := n.stop(); err != nil {
		return "", err
	}
	bounded, cancel := context.WithTimeout(ctx, dumpBound)
	defer cancel()
	// What it has not looked at may be damaged, if that is seen when somebody does. The
	// rest must be what others have.
	entries, err := dump(bounded, c.bin, n)
	var refused *exec.ExitError
	if errors.As(err, &refused) && refused.ExitCode() == 1 {
		return "it served" + led + "; whoever reads all of its log is told that it is damaged", nil
	}
	if err != nil {
		return "", err
	}
	a.logs[fmt.Sprintf("%s, hit %d", n.name, a.trials)] = entries
	return "it served" + led + "; its log is whole", nil
}

// failing demands that a process that has ended did not say that all was well.
func (a *damage) failing(n *node, what string) {
	if s := n.life.Load().cmd.ProcessState; s.Success() {
		a.wrong = append(a.wrong, fmt.Sprintf("%s: it ended as if all was well: %s", what, s))
	}
}

func logSize(n *node) int64 {
	info, err := os.Stat(n.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// lastWords are what a node that ended said last, since its log had a size: cut short.
func lastWords(n *node, since int64) string {
	b, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b[since:])), "\n")
	last := lines[len(lines)-1]
	for _, l := range lines { // a panic says why before it says where
		if strings.HasPrefix(l, "panic:") || strings.HasPrefix(l, "fatal error:") {
			last = l
		}
	}
	last = strings.ReplaceAll(last, filepath.Dir(n.log)+"/", "")
	return last[:min(len(last), 160)]
}

func (a *damage) verdicts(e *evidence) []*check.Verdict {
	v := &check.Verdict{Name: "a damaged node does not serve", Findings: a.wrong, Note: fmt.Sprintf("%d damages; the node started after %d", a.trials, a.started)}
	logs := maps.Clone(a.logs)
	maps.Copy(logs, e.entries)
	agree := replay.Agreement(logs)
	agree.Name = "P14 the logs of nodes that started with damage agree"
	return []*check.Verdict{v, agree}
}
