package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// settings are what a run is asked for, and where it is.
type settings struct {
	bin       string
	work      string // what runs leave behind
	seed      uint64
	maxOutage time.Duration
	ledger    string
	commit    string
	keep      bool
	inside    bool      // in a namespace of our own
	wall      *firewall // nil outside one
}

func main() {
	var code int
	var err error
	outside := os.Getenv(insideVariable)
	switch {
	case len(os.Args) > 1 && os.Args[1] == "holder":
		err = holder(os.Args[2:])
	case outside == "" && os.Getuid() == 0:
		code, err = reexec()
	default:
		code, err = chaos(os.Args[1:], outside)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		code = 2
	}
	os.Exit(code)
}

// chaos is the program. Its exit status: 1 if a check failed, 2 with an error.
func chaos(args []string, outside string) (code int, err error) {
	s := new(settings)
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.StringVar(&s.bin, "bin", "bin/fencepost", "program under test")
	ids := f.String("nemesis", "", "which, as N1,N6; all if empty")
	hits := f.Int("hits", 0, "of each nemesis; 0: its volume in the table")
	release := f.Bool("release", false, "volumes of a release, not of a short run")
	f.Uint64Var(&s.seed, "seed", 0, "of all that is random here; 0: a new one")
	f.DurationVar(&s.maxOutage, "max-outage", 2*time.Second, "longest time without service after a kill of the leader (N1)")
	f.StringVar(&s.ledger, "ledger", "", "file that a line is appended to for each nemesis")
	f.StringVar(&s.commit, "commit", "unknown", "of the program under test, for the ledger")
	f.BoolVar(&s.keep, "keep", false, "keep what passing runs leave behind, too")
	list := f.Bool("list", false, "print the table of nemeses")
	if err := f.Parse(args); err != nil {
		return 2, err
	}
	plan, err := chosen(table(), *ids)
	if err != nil {
		return 2, err
	}
	if *list {
		for _, n := range plan {
			fmt.Printf("%-4s %4d, release %4d: %s (a hit is one %s)\n", n.id, n.ci, n.release, n.what, n.unit)
		}
		return 0, nil
	}
	for s.seed == 0 {
		s.seed = rand.Uint64() >> 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if outside != "" {
		if err := s.inNamespace(ctx, outside); err != nil {
			return 2, err
		}
	}
	return s.carryOut(ctx, plan, *hits, *release)
}

// inNamespace prepares our own network.
func (s *settings) inNamespace(ctx context.Context, outside string) error {
	os.Unsetenv(insideVariable)
	if err := enter(ctx, outside); err != nil {
		return err
	}
	s.inside = true
	if _, err := exec.LookPath("nft"); err != nil {
		return fmt.Errorf("%w: install nftables", err)
	}
	s.wall = new(firewall)
	return nil
}

// carryOut runs the plan, each nemesis on as many clusters as its batches take.
func (s *settings) carryOut(ctx context.Context, plan []*nemesis, hits int, release bool) (code int, err error) {
	if err := s.workDir(); err != nil {
		return 2, err
	}
	fmt.Printf("seed %d\n", s.seed)
	passed, failed, ran := 0, 0, 0
	for _, n := range plan {
		if n.namespace && s.wall == nil {
			s.say("%s needs root: left out", n.id)
			continue
		}
		left := n.ci
		if release {
			left = n.release
		}
		if hits > 0 {
			left = hits
		}
		for number := 1; left > 0; number++ {
			now := min(left, n.batch)
			left -= now
			p, f, err := s.one(ctx, n, number, now)
			if err != nil {
				fmt.Printf("%d passed, %d failed, and %s could not be carried through: see %s\n", passed, failed, n.id, s.work)
				return 2, fmt.Errorf("%s: %w", n.id, err)
			}
			passed, failed, ran = passed+p, failed+f, ran+1
		}
	}
	if ran == 0 {
		return 2, errors.New("nothing was run")
	}
	if failed > 0 {
		fmt.Printf("history and logs of what failed: %s\n", s.work)
		code = 1
	} else if !s.keep {
		err = os.RemoveAll(s.work)
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	return code, err
}

func (s *settings) one(ctx context.Context, n *nemesis, number, hits int) (passed, failed int, err error) {
	s.say("%s: %s", n.id, n.what)
	r, err := s.run(ctx, n, number, hits)
	if err != nil {
		return 0, 0, err
	}
	passed, failed = r.print(fmt.Sprintf("%s-%d", n.id, number))
	if failed == 0 && !s.keep {
		err = os.RemoveAll(filepath.Join(s.work, fmt.Sprintf("%s-%d", n.id, number)))
	}
	return passed, failed, errors.Join(err, s.enter(r))
}

// workDir makes the directory of all runs, with a copy of the program that every
// node's user can start, and that a build meanwhile does not change.
func (s *settings) workDir() (err error) {
	if s.work, err = os.MkdirTemp("", "fencepost-chaos-"); err != nil {
		return err
	}
	if err := os.Chmod(s.work, 0o711); err != nil {
		return err
	}
	from, err := os.Open(s.bin)
	if err != nil {
		return err
	}
	defer from.Close()
	s.bin = filepath.Join(s.work, "fencepost")
	to, err := os.OpenFile(s.bin, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close(), os.Chmod(s.bin, 0o755))
}
