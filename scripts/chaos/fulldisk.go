package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"fencepost/client"
	"fencepost/cluster/check"
)

// fullDisk is N14: the disk of one node is full, mostly the leader's, or in every
// third hit of two, and large values fill what log there is room for.
// One that is full must not keep the others from serving, two may; who serves nothing
// says so. With room again, all of them go on, and nothing half-written is left.
type fullDisk struct {
	r     *rand.Rand
	n     int
	small []*node // on a small tmpfs
	times []fullTime
	wrong []string
	given int // times that there was made room
}

// A fullTime is one hit; from is when the first write had failed and others had had
// time to take over.
type fullTime struct {
	what     string
	one      bool
	from, to int64
}

const (
	// fullBytes has room for the journal and little more.
	fullBytes    = 16<<20 + 24<<20
	moreBytes    = 16 << 20
	fullEntries  = 1000
	largeValue   = 128 << 10
	noSpaceBound = 60 * time.Second
	// fullGrace is how long service may be gone once a node's disk is full.
	fullGrace   = 5 * time.Second
	fullFor     = 6 * time.Second
	tidyBound   = 45 * time.Second
	fillerName  = "filler"
	noSpaceText = "no space left on device"
)

func (a *fullDisk) prepare(_ context.Context, c *cluster) (undo func() error, err error) {
	a.small = compacting(c, fullEntries, fullEntries)
	undo = func() error {
		var errs []error
		for _, n := range a.small {
			if err := syscall.Unmount(n.dir, 0); err != nil && !errors.Is(err, syscall.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", n.dir, err))
			}
		}
		return errors.Join(errs...)
	}
	for _, n := range a.small {
		if err := os.Mkdir(n.dir, 0o700); err != nil {
			return undo, err
		}
		options := fmt.Sprintf("size=%d,mode=0700,uid=%d,gid=%[2]d", fullBytes, n.uid)
		if err := syscall.Mount("tmpfs", n.dir, "tmpfs", 0, options); err != nil {
			return undo, fmt.Errorf("mount a tmpfs: %w", err)
		}
	}
	return undo, nil
}

func (a *fullDisk) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	if a.n%3 == 0 {
		if l, err = c.handOver(ctx, l); err != nil {
			return nil, err
		}
	}
	victims := []*node{pick(a.r, a.small)}
	switch {
	case a.n%3 == 1:
		victims = a.small
	case l.node != c.nodes[0]:
		victims = []*node{l.node}
	}
	what := "the disk is full of"
	for i, n := range victims {
		if !n.claim() {
			releaseAll(victims[:i])
			return nil, errBusy
		}
		what += " " + n.name
	}
	a.n++
	what += fmt.Sprintf(" (%s led in term %d)", l.node.name, l.term)
	at := c.recorder.Now()
	said := make(map[*node]int64)
	for _, n := range victims {
		n.mayEnd() // it may: what it must not is to go on wrongly
		said[n] = logSize(n)
		err = errors.Join(err, fill(n))
	}
	if err == nil {
		err = a.grow(ctx, c, victims, said)
	}
	if err != nil {
		for _, n := range victims {
			err = errors.Join(err, a.room(n))
		}
		releaseAll(victims)
		return nil, err
	}
	t := fullTime{what: what, one: len(victims) == 1, from: c.recorder.Now() + int64(fullGrace)}
	return &landing{at: at, what: what, hold: fullGrace + fullFor, heal: func(ctx context.Context) (string, error) {
		defer releaseAll(victims)
		t.to = c.recorder.Now()
		a.times = append(a.times, t)
		ended := 0
		for _, n := range victims {
			if !n.running() {
				ended++
			}
			if err := a.room(n); err != nil {
				return "", err
			}
		}
		for _, n := range victims {
			if err := n.restart(ctx); err != nil {
				return "", err
			}
		}
		for _, n := range victims {
			a.tidy(ctx, n)
		}
		return fmt.Sprintf("a write to the log failed on each; %d of %d ended themselves", ended, len(victims)), nil
	}}, nil
}

// fill leaves no room on a node's disk.
func fill(n *node) error {
	f, err := os.OpenFile(filepath.Join(n.dir, fillerName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for zeros := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(zeros)
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// room makes room: a log that could not be compacted may have taken all that there was.
func (a *fullDisk) room(n *node) error {
	a.given++
	size := fmt.Sprintf("size=%d", fullBytes+a.given*moreBytes)
	if err := syscall.Mount("", n.dir, "", syscall.MS_REMOUNT, size); err != nil {
		return fmt.Errorf("make room for %s: %w", n.name, err)
	}
	err := os.Remove(filepath.Join(n.dir, fillerName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// grow writes large values until each victim has failed to write something, and keeps
// the disks full meanwhile: a snapshot that was given up makes room for another.
func (a *fullDisk) grow(ctx context.Context, c *cluster, victims []*node, said map[*node]int64) error {
	ctx, cancel := context.WithTimeout(ctx, noSpaceBound)
	defer cancel()
	cl, err := client.New(c.endpoints(0), client.WithAttemptTimeout(4*attemptBound), client.WithTransport(c.recorder.Transport("grower", &http.Transport{DisableCompression: true})))
	if err != nil {
		return err
	}
	defer cl.Close()
	var written atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		filling := strings.Repeat("large", largeValue/5)
		token := uint64(0)
		for sent := 0; ctx.Err() == nil; sleep(ctx, 20*time.Millisecond) {
			sent++
			bounded, cancel := context.WithTimeout(ctx, callBound)
			var err error
			if token == 0 {
				var g *client.Grant
				if g, err = cl.Grant(bounded, "large", client.Holder("grower"), client.TTL(maxTTL)); err == nil {
					token = g.Token
				}
			} else if _, err = cl.Put(bounded, "large/k0", fmt.Appendf(nil, "%d %d %s", a.n, sent, filling), client.Write{Token: token}); errors.Is(err, client.ErrStale) {
				token = 0
			} else if err == nil {
				written.Add(1)
			}
			cancel()
		}
	})
	defer wg.Wait()
	defer cancel()
	for {
		failed := 0
		for _, n := range victims {
			if strings.Contains(saidSince(n, said[n]), noSpaceText) {
				failed++
			}
			if err := fill(n); err != nil {
				return err
			}
		}
		if failed == len(victims) {
			return nil
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("%w: after %d large values a write has failed on %d of %d nodes", errMissed, written.Load(), failed, len(victims))
		}
	}
}

// saidSince is what a node has logged since its log had a size.
func saidSince(n *node, size int64) string {
	b, err := os.ReadFile(n.log)
	if err != nil || size > int64(len(b)) {
		return ""
	}
	return string(b[size:])
}

// tidy waits until a node with room again has no half snapshot any more, and has taken
// a new one.
func (a *fullDisk) tidy(ctx context.Context, n *node) {
	ctx, cancel := context.WithTimeout(ctx, tidyBound)
	defer cancel()
	began, half := time.Now(), ""
	for {
		half = "no snapshot since"
		entries, _ := os.ReadDir(filepath.Join(n.dir, "snapshots"))
		for _, e := range entries {
			info, err := e.Info()
			if err == nil && !strings.HasSuffix(e.Name(), ".tmp") && info.ModTime().After(began) {
				half = ""
			}
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".tmp") {
				half = e.Name()
			}
		}
		if half == "" {
			return
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			a.wrong = append(a.wrong, fmt.Sprintf("%s has had room for %s: %s", n.name, tidyBound, half))
			return
		}
	}
}

func (a *fullDisk) verdicts(e *evidence) []*check.Verdict {
	serving := &check.Verdict{Name: "service goes on while one disk is full"}
	honest := &check.Verdict{Name: "what is not served for want of room is told so"}
	ones, refused := 0, 0
	for _, t := range a.times {
		acked := 0
		for _, x := range e.history.Exchanges {
			if x.Method == http.MethodGet || x.Start < t.from || x.End > t.to || x.End == 0 {
				continue
			}
			switch {
			case x.Status == http.StatusOK:
				acked++
			case x.Status >= 500:
				refused++
				if x.Status != http.StatusServiceUnavailable && x.Status != http.StatusGatewayTimeout {
					find(honest, "%s: exchange %d was answered %d: %.100s", t.what, x.ID, x.Status, x.Answer)
				}
			}
		}
		if t.one {
			ones++
			if acked == 0 {
				find(serving, "%s: in %s after the first %s nothing was acknowledged", t.what, time.Duration(t.to-t.from).Round(time.Millisecond), fullGrace)
			}
		}
	}
	serving.Note = fmt.Sprintf("%d times", ones)
	honest.Note = fmt.Sprintf("%d answers", refused)
	tidy := &check.Verdict{Name: "with room again there are new snapshots, and no half ones", Findings: a.wrong, Note: fmt.Sprintf("%d times", len(a.times))}
	return []*check.Verdict{serving, honest, tidy}
}
