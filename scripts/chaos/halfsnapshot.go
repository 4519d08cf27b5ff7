package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fencepost/client"
)

// halfSnapshot is N21: a node was away for so long that the leader has to send it a
// snapshot, and when half of that is there, the leader is killed. The state is so large
// that sockets cannot hold what is left.
type halfSnapshot struct {
	r          *rand.Rand
	laden      bool
	compacting []*node // those that send snapshots
}

const (
	halfEntries  = 1000
	halfTrailing = 1000
	// ballastKeys are of as many bytes as a value may have.
	ballastKeys  = 80
	ballastBytes = 256 << 10
	awayBound    = 90 * time.Second
	sentBound    = 4 * time.Second // a node's own first snapshot is later
	brokenBound  = 10 * time.Second
	stagings     = 5
)

func (a *halfSnapshot) prepare(_ context.Context, c *cluster) (undo func() error, err error) {
	a.compacting = compacting(c, halfEntries, halfTrailing)
	// Two nodes that write large snapshots, on a machine that may be slow, must stay
	// leader and follower for as long as it takes.
	for _, n := range c.nodes {
		n.args = append(n.args, "--heartbeat-timeout", "2s", "--election-timeout", "2s", "--leader-lease", "2s")
	}
	return nil, nil
}

// load makes the state large.
func (a *halfSnapshot) load(ctx context.Context, c *cluster) error {
	if a.laden {
		return nil
	}
	cl, err := client.New(c.endpoints(0), client.WithAttemptTimeout(10*time.Second), client.WithTransport(c.recorder.Transport("ballast", &http.Transport{DisableCompression: true})))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, awayBound)
	defer cancel()
	l, err := cl.Grant(ctx, "ballast", client.Holder("ballast"), client.TTL(time.Minute))
	if err != nil {
		return err
	}
	for i := range ballastKeys {
		value := bytes.Repeat(fmt.Appendf(nil, "ballast %7d\n", i), ballastBytes/16)
		if _, err := cl.Put(ctx, fmt.Sprintf("ballast/k%03d", i), value, client.Write{Token: l.Token}); err != nil {
			return err
		}
	}
	a.laden = true
	return nil
}

func (a *halfSnapshot) land(ctx context.Context, c *cluster) (*landing, error) {
	if err := a.load(ctx, c); err != nil {
		return nil, err
	}
	at := c.recorder.Now()
	for range stagings {
		l, err := c.leader(ctx, 0)
		if err == nil {
			l, err = c.handOver(ctx, l)
		}
		if err != nil {
			return nil, err
		}
		leader, follower := l.node, a.compacting[0]
		if leader == follower {
			follower = a.compacting[1]
		}
		both := []*node{leader, follower}
		if !leader.claim() {
			return nil, errBusy
		}
		if !follower.claim() {
			leader.release()
			return nil, errBusy
		}
		got, err := a.stage(ctx, leader, follower)
		if err == nil {
			return &landing{
				at: at, what: fmt.Sprintf("%s is killed when %s has %d bytes of its snapshot", leader.name, follower.name, got),
				hold: between(a.r, 0, 3*time.Second),
				heal: func(ctx context.Context) (string, error) {
					defer releaseAll(both)
					return "it did not get the whole", errors.Join(leader.restart(ctx), follower.restart(ctx), noHalf(ctx, follower))
				},
			}, nil
		}
		again := errors.Join(leader.restart(ctx), follower.restart(ctx))
		releaseAll(both)
		if again != nil || !errors.Is(err, errBusy) {
			return nil, errors.Join(err, again)
		}
	}
	return nil, fmt.Errorf("%w: in %d attempts another led, or was too quick", errMissed, stagings)
}

// stage takes the follower away until the leader's log no longer has what it lacks,
// lets it come back, stops it when a snapshot begins to come, and kills the leader.
// errBusy: another led meanwhile, or all of the snapshot was on its way.
func (a *halfSnapshot) stage(ctx context.Context, leader, follower *node) (got int64, err error) {
	s := status(ctx, follower)
	if s == nil {
		return 0, errBusy
	}
	said := logSize(leader)
	if err := follower.kill(); err != nil {
		return 0, err
	}
	bounded, cancel := context.WithTimeout(ctx, awayBound)
	defer cancel()
	for compactedTo(saidSince(leader, said)) <= s.Index {
		if now := status(ctx, leader); now != nil && now.Leader != leader.name {
			return 0, errBusy
		}
		if sleep(bounded, 100*time.Millisecond) != nil {
			return 0, fmt.Errorf("%s did not compact what %s lacks within %s", leader.name, follower.name, awayBound)
		}
	}
	said = logSize(follower)
	if err := follower.start(); err != nil {
		return 0, err
	}
	half := ""
	// Later, an unfinished snapshot may be its own.
	for end := time.Now().Add(sentBound); half == ""; time.Sleep(time.Millisecond) {
		if halves, _ := filepath.Glob(filepath.Join(follower.dir, "snapshots", "*.tmp", "state.bin")); len(halves) > 0 {
			half = halves[0]
		} else if time.Now().After(end) {
			return 0, errBusy
		}
	}
	err = errors.Join(follower.signal(syscall.SIGSTOP), leader.kill())
	if info, errGone := os.Stat(half); errGone == nil {
		got = info.Size()
	}
	if err := errors.Join(err, follower.signal(syscall.SIGCONT)); err != nil {
		return 0, err
	}
	for end := time.Now().Add(brokenBound); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, words := range []string{"failed to copy snapshot", "failed to receive whole snapshot"} {
			if strings.Contains(saidSince(follower, said), words) {
				return got, nil
			}
		}
	}
	return 0, errBusy
}

// compactedTo is up to where a node says that it has removed entries.
func compactedTo(said string) (index uint64) {
	for _, m := range regexp.MustCompile(`compacting logs: from=\d+ to=(\d+)`).FindAllStringSubmatch(said, -1) {
		index, _ = strconv.ParseUint(m[1], 10, 64)
	}
	return index
}

// noHalf waits until a node has no unfinished snapshot; its own may be under way.
func noHalf(ctx context.Context, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, tidyBound)
	defer cancel()
	for {
		halves, err := filepath.Glob(filepath.Join(n.dir, "snapshots", "*.tmp"))
		if err != nil || len(halves) == 0 {
			return err
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%s keeps an unfinished snapshot: %s", n.name, halves[0])
		}
	}
}
