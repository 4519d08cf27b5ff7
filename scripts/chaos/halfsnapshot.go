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
	"slices"
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
	written    int
	compacting []*node // those that send snapshots
}

const (
	halfEntries  = 1000
	halfTrailing = 1000
	// ballastKeys are of as many bytes as a value may have.
	ballastKeys  = 80
	ballastBytes = 256 << 10
	mostBytes    = 2 << 20 // that have come, at which the leader is killed
	awayBound    = 90 * time.Second
	sentBound    = 20 * time.Second
	atMostBehind = 100 // of what a follower has, so many entries it may not have applied
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

// writer is a client with a lease, that writes values of a size.
func (a *halfSnapshot) writer(ctx context.Context, c *cluster) (write func(key string, size int) error, end func() error, err error) {
	cl, err := client.New(c.endpoints(0), client.WithAttemptTimeout(5*time.Second), client.WithTransport(c.recorder.Transport("ballast", &http.Transport{DisableCompression: true})))
	if err != nil {
		return nil, nil, err
	}
	l, err := cl.Grant(ctx, "ballast", client.Holder("ballast"), client.TTL(minTTL), client.Wait(callBound))
	if err != nil {
		return nil, nil, errors.Join(err, cl.Close())
	}
	return func(key string, size int) error {
		a.written++
		value := bytes.Repeat(fmt.Appendf(nil, "ballast %7d\n", a.written), size/16)
		_, err := cl.Put(ctx, "ballast/"+key, value, client.Write{Token: l.Token})
		return err
	}, cl.Close, nil
}

// load makes the state large.
func (a *halfSnapshot) load(ctx context.Context, c *cluster) error {
	ctx, cancel := context.WithTimeout(ctx, awayBound)
	defer cancel()
	write, end, err := a.writer(ctx, c)
	if err != nil {
		return err
	}
	for err == nil && a.written < ballastKeys {
		err = write(fmt.Sprintf("k%03d", a.written), ballastBytes)
	}
	return errors.Join(err, end())
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
		got, err := a.stage(ctx, c, leader, follower)
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
func (a *halfSnapshot) stage(ctx context.Context, c *cluster, leader, follower *node) (got int64, err error) {
	s := status(ctx, follower)
	if s == nil {
		return 0, errBusy
	}
	if err := follower.kill(); err != nil {
		return 0, err
	}
	if err := a.forget(ctx, c, leader, s.Index+atMostBehind); err != nil {
		return 0, err
	}
	said, before := logSize(follower), halves(follower)
	if err := follower.start(); err != nil {
		return 0, err
	}
	half, part := "", 1+a.r.Int64N(mostBytes)
	for end := time.Now().Add(sentBound); half == ""; time.Sleep(time.Millisecond) {
		for _, path := range halves(follower) {
			if info, err := os.Stat(filepath.Join(path, "state.bin")); err == nil && info.Size() >= part && !slices.Contains(before, path) {
				half = path
			}
		}
		if half == "" && time.Now().After(end) {
			return 0, errBusy
		}
	}
	if strings.Contains(saidSince(follower, said), "starting snapshot up to") {
		return 0, errBusy // it is its own
	}
	err = errors.Join(follower.signal(syscall.SIGSTOP), leader.kill())
	if info, errGone := os.Stat(filepath.Join(half, "state.bin")); errGone == nil {
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

// forget writes until the log of a leader begins after an index. What has been removed
// is what had settled when it was compacted, so that the next compaction tells.
func (a *halfSnapshot) forget(ctx context.Context, c *cluster, leader *node, index uint64) error {
	ctx, cancel := context.WithTimeout(ctx, awayBound)
	defer cancel()
	write, end, err := a.writer(ctx, c)
	if err != nil {
		return err
	}
	said := logSize(leader)
	for err == nil && beginsAt(saidSince(leader, said)) <= index {
		if now := status(ctx, leader); now != nil && now.Leader != leader.name {
			err = errBusy
			break
		}
		err = write("small", 16) // takes a page of the journal, and little of the log
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%s did not remove the entries up to %d within %s", leader.name, index, awayBound)
	}
	return errors.Join(err, end())
}

// beginsAt is where the log of a node began when it last compacted it.
func beginsAt(said string) (index uint64) {
	for _, m := range regexp.MustCompile(`compacting logs: from=(\d+)`).FindAllStringSubmatch(said, -1) {
		index, _ = strconv.ParseUint(m[1], 10, 64)
	}
	return index
}

// halves are the unfinished snapshots of a node.
func halves(n *node) []string {
	paths, _ := filepath.Glob(filepath.Join(n.dir, "snapshots", "*.tmp")) // a bad pattern is its only error
	return paths
}

// noHalf waits until a node has no unfinished snapshot; its own may be under way.
func noHalf(ctx context.Context, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, tidyBound)
	defer cancel()
	for {
		left := halves(n)
		if len(left) == 0 {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%s keeps an unfinished snapshot: %s", n.name, left[0])
		}
	}
}
