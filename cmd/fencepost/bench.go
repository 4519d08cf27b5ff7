package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// benchCell is one line of the result: one kind of work by so many clients.
type benchCell struct {
	Work      string  `json:"work"`
	Clients   int     `json:"clients"`
	OpsPerSec float64 `json:"ops_per_second"`
	P50MS     float64 `json:"p50_ms"`
	P99MS     float64 `json:"p99_ms"`
	Ops       int     `json:"ops"`
	Errors    int     `json:"errors"`
	Error     string  `json:"error,omitempty"` // the first one
}

func newBenchCommand(env *environment) *cobra.Command {
	clients := []int{1, 16, 64, 256}
	var duration time.Duration
	works := benchWorkNames()
	var stopped int
	c := &cobra.Command{
		Use:   "bench",
		Short: "Put load on a cluster, and print a table",
		Long: `Put load on a cluster, and print a table.

Every client has one connection of its own, to the leader, and starts its next
operation when the last one has been answered. The first fifth of the duration is
warm-up and not counted. It leaves keys and ended leases under bench/ behind.

  acquire-release  a lease of one's own acquired and given back: two commits
  renew            one lease renewed
  write            256 bytes written under a token
  read             a linearizable read of 256 bytes
  watch            such a write, until the client's own stream of events tells of it
  hand-off         a lease released to one who waits for it; its times are from
                   the release to the next holder's answer
  expiry           a lease that is left to run out; its times are how late that
                   is seen, and one that is seen early is an error`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if duration < 100*time.Millisecond {
				return usageError(fmt.Errorf("--duration must be at least 100ms, not %s", duration))
			}
			for _, n := range clients {
				if n < 1 || n > 4096 {
					return usageError(fmt.Errorf("--clients must be 1 to 4096, not %d", n))
				}
			}
			for _, w := range works {
				if !slices.Contains(benchWorkNames(), w) {
					return usageError(fmt.Errorf("--works: %q is none of %v", w, benchWorkNames()))
				}
			}
			if stopped < 0 || stopped > 4096 {
				return usageError(fmt.Errorf("--stopped-readers must be 0 to 4096, not %d", stopped))
			}
			return runBench(cmd.Context(), env, works, clients, duration, stopped)
		},
	}
	c.Flags().IntSliceVar(&clients, "clients", clients, "numbers of clients to run with")
	c.Flags().DurationVar(&duration, "duration", 3*time.Second, "of each cell")
	c.Flags().StringSliceVar(&works, "works", works, "which work to do")
	c.Flags().IntVar(&stopped, "stopped-readers", 0, "streams of all events that are opened before each cell, and never read")
	return c
}

func runBench(ctx context.Context, env *environment, works []string, clients []int, duration time.Duration, stopped int) error {
	leader, err := leaderURL(ctx, env)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.stderr, "Load goes to the leader, %s.\n", leader)
	conf, err := env.clientTLS()
	if err != nil {
		return err
	}
	run := "bench/" + rand.Text()[:8]
	cells := []benchCell{}
	for _, work := range works {
		for _, n := range clients {
			setup := benchSetup{
				base: leader, tls: conf, bearer: env.authToken, work: work, clients: n, duration: duration,
				names: run + "/" + work + "/" + strconv.Itoa(n),
			}
			end, err := stopReaders(ctx, setup, stopped)
			if err != nil {
				return err
			}
			cell := measure(ctx, setup)
			end()
			if ctx.Err() != nil {
				return fmt.Errorf("bench: %w", ctx.Err())
			}
			if cell.Error != "" {
				fmt.Fprintf(env.stderr, "%s with %d clients: %d errors; the first: %s\n", work, n, cell.Errors, cell.Error)
			}
			cells = append(cells, cell)
		}
	}
	if err := printCells(env, cells); err != nil {
		return err
	}
	for _, cell := range cells {
		if cell.Ops == 0 {
			return fmt.Errorf("bench: no operation of %s with %d clients succeeded", cell.Work, cell.Clients)
		}
	}
	return nil
}

func printCells(env *environment, cells []benchCell) error {
	if env.output == outputJSON {
		return env.printJSON(map[string]any{"results": cells})
	}
	rows := [][]string{{"WORK", "CLIENTS", "OPS/S", "P50 MS", "P99 MS", "ERRORS"}}
	for _, c := range cells {
		rows = append(rows, []string{
			c.Work, strconv.Itoa(c.Clients), strconv.FormatFloat(c.OpsPerSec, 'f', 0, 64),
			strconv.FormatFloat(c.P50MS, 'f', 2, 64), strconv.FormatFloat(c.P99MS, 'f', 2, 64), strconv.Itoa(c.Errors),
		})
	}
	return env.table(rows...)
}

// leaderURL asks the cluster, so that no answer is measured through a forwarding
// follower.
func leaderURL(ctx context.Context, env *environment) (string, error) {
	c, ctx, done, err := env.connect(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	s, err := c.Cluster(ctx)
	if err != nil {
		return "", err
	}
	for _, n := range s.Nodes {
		if n.Leader {
			scheme, _, _ := strings.Cut(env.endpoints[0], "://")
			return scheme + "://" + n.HTTPAddr, nil
		}
	}
	return "", errors.New("bench: the cluster names no leader; see 'fencepost cluster status'")
}

type benchSetup struct {
	base, bearer string
	tls          *tls.Config // nil: the default
	work         string
	clients      int
	duration     time.Duration
	names        string // prefix of the leases and keys of this cell
}

// measure runs one cell. What a client has measured is its own until it is done.
func measure(ctx context.Context, s benchSetup) benchCell {
	done := make([]benchTally, s.clients)
	cells := make([]*benchClient, s.clients)
	var ready, finished sync.WaitGroup
	start := make(chan struct{})
	var begin time.Time // written before start is closed
	for i := range s.clients {
		cells[i] = newBenchClient(s, i)
		ready.Add(1)
		finished.Go(func() {
			defer cells[i].close()
			err := cells[i].prepare(ctx)
			ready.Done()
			if err != nil {
				done[i].fail(err)
				return
			}
			<-start
			cells[i].loop(ctx, begin, s.duration, &done[i])
		})
	}
	ready.Wait()
	begin = time.Now()
	close(start)
	finished.Wait()
	return summarize(s, done)
}

// benchTally is what one client has measured.
type benchTally struct {
	micros []uint32 // of each counted operation
	errors int
	first  error
}

func (t *benchTally) fail(err error) {
	t.errors++
	if t.first == nil {
		t.first = err
	}
}

func summarize(s benchSetup, tallies []benchTally) benchCell {
	cell := benchCell{Work: s.work, Clients: s.clients}
	var all []uint32
	for _, t := range tallies {
		all = append(all, t.micros...)
		cell.Errors += t.errors
		if t.first != nil && cell.Error == "" {
			cell.Error = t.first.Error()
		}
	}
	cell.Ops = len(all)
	if len(all) == 0 {
		return cell
	}
	slices.Sort(all)
	counted := s.duration - s.duration/warmUpShare
	cell.OpsPerSec = float64(len(all)) / counted.Seconds()
	cell.P50MS = float64(percentile(all, 50)) / 1000
	cell.P99MS = float64(percentile(all, 99)) / 1000
	return cell
}

// percentile is the smallest of the sorted values that p percent are not above.
func percentile(sorted []uint32, p int) uint32 {
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
