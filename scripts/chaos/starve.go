package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpuGroups is where the kernel's first version of control groups limits
// processors, if it does.
const cpuGroups = "/sys/fs/cgroup/cpu"

// starve is N22: the leader, or some node, gets 5 ms of each 100.
type starve struct{ r *rand.Rand }

func (a *starve) land(ctx context.Context, c *cluster) (*landing, error) {
	l, err := c.leader(ctx, 0)
	if err != nil {
		return nil, err
	}
	n := l.node
	if a.r.IntN(3) == 0 {
		n = pick(a.r, c.nodes)
	}
	if !n.claim() {
		return nil, errBusy
	}
	hold := between(a.r, 4*time.Second, 8*time.Second)
	at := c.recorder.Now()
	heal, err := limit(n)
	if err != nil {
		heal = dutyCycle(n)
	}
	return &landing{
		at: at, what: fmt.Sprintf("starve %s for %s; %s led in term %d", n.name, hold.Round(time.Millisecond), l.node.name, l.term), hold: hold,
		heal: func(ctx context.Context) (string, error) {
			defer n.release()
			evidence, err := heal()
			if ready := n.restart(ctx); ready != nil {
				return "", errors.Join(err, ready)
			}
			if next, errLeader := c.leader(ctx, 0); errLeader == nil {
				evidence += fmt.Sprintf("; %d terms went by", next.term-l.term)
			}
			return evidence, err
		},
	}, nil
}

var throttled = regexp.MustCompile(`nr_throttled (\d+)`)

// limit puts the process into a control group of its own.
func limit(n *node) (heal func() (string, error), err error) {
	pid := strconv.Itoa(n.pid())
	before, err := cpuGroupOf(pid)
	if err != nil {
		return nil, err
	}
	group := filepath.Join(before, fmt.Sprintf("fencepost-chaos-%d-%s", os.Getpid(), n.name))
	if err := os.Mkdir(group, 0o755); err != nil {
		return nil, err
	}
	set := func(dir, file, value string) error {
		return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
	}
	undo := func() error {
		if n.running() {
			if err := set(before, "cgroup.procs", pid); err != nil {
				return err
			}
		}
		return os.Remove(group)
	}
	for _, s := range [][2]string{{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", "5000"}, {"cgroup.procs", pid}} {
		if err := set(group, s[0], s[1]); err != nil {
			return nil, errors.Join(err, undo())
		}
	}
	return func() (string, error) {
		stat, errStat := os.ReadFile(filepath.Join(group, "cpu.stat"))
		if err := errors.Join(errStat, undo()); err != nil {
			return "", err
		}
		found := throttled.FindSubmatch(stat)
		if found == nil || string(found[1]) == "0" {
			return "", fmt.Errorf("%w: the quota held nothing back", errMissed)
		}
		return "held back " + string(found[1]) + " times", nil
	}, nil
}

// cpuGroupOf is the directory of the group that limits a process's processors.
func cpuGroupOf(pid string) (string, error) {
	groups, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(groups)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && strings.Contains(","+f[1]+",", ",cpu,") {
			return filepath.Join(cpuGroups, f[2]), nil
		}
	}
	return "", errors.New("no control group for processors")
}

// dutyCycle is the same by signals: 95 ms stopped, 5 ms running.
func dutyCycle(n *node) (heal func() (string, error)) {
	ctx, stop := context.WithCancel(context.Background())
	done, rounds := make(chan struct{}), 0
	go func() {
		defer close(done)
		for ctx.Err() == nil && n.running() {
			n.signal(syscall.SIGSTOP)
			sleep(ctx, 95*time.Millisecond)
			n.signal(syscall.SIGCONT)
			sleep(ctx, 5*time.Millisecond)
			rounds++
		}
	}()
	return func() (string, error) {
		stop()
		<-done
		if rounds == 0 {
			return "", errMissed
		}
		return fmt.Sprintf("stopped %d times", rounds), nil
	}
}
