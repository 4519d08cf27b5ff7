package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

const (
	demoTTL   = 2 * time.Second
	demoLease = "report"
	demoKey   = "report/today"
	// demoBound is for the whole story, which takes about ten seconds.
	demoBound = 55 * time.Second
)

func newDemoCommand(env *environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch a writer that wakes up too late being refused",
		Long: `Watch a writer that wakes up too late being refused.

Starts three servers and two writers, real processes on free ports of loopback with
their data in a temporary directory. A takes a lease and is stopped, B takes over,
the leader is killed, A wakes and its write is refused. Each step says what it would
have been with other locks, and each promise is checked. Exit 0: all were kept.
Takes about ten seconds, and leaves nothing behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return runDemo(ctx, env)
		},
	}
	c.AddCommand(newDemoWorkerCommand(env))
	return c
}

// A finding is one promise, looked at in this run.
type finding struct {
	Promise string `json:"promise"`
	What    string `json:"what"`
	Kept    bool   `json:"kept"`
}

// A demo is one run of the story.
type demo struct {
	env      *environment
	cast     *cast
	findings []finding
	steps    int
}

func runDemo(ctx context.Context, env *environment) (err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, demoBound, fmt.Errorf("the demo has taken longer than %s", demoBound))
	defer cancel()
	cast, err := newCast()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cast.close()) }()
	d := &demo{env: env, cast: cast}
	d.line("A writer that wakes up too late, with real processes on this machine.")
	if err := d.story(ctx); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("the demo was ended: %w", context.Cause(ctx))
		}
		return errors.Join(err, cast.lastWords())
	}
	return d.judge(time.Since(began))
}

// judge prints what was promised and what was seen.
func (d *demo) judge(took time.Duration) error {
	kept := 0
	for _, f := range d.findings {
		if f.Kept {
			kept++
		}
	}
	all := kept == len(d.findings)
	if d.env.output == outputJSON {
		err := d.env.printJSON(map[string]any{"kept": all, "promises": d.findings, "took_ms": took.Milliseconds()})
		if err != nil {
			return err
		}
	} else {
		d.line("\nWhat was promised, and seen in this run:\n")
		for _, f := range d.findings {
			verdict := "kept  "
			if !f.Kept {
				verdict = "BROKEN"
			}
			d.line("  %s  %-3s %s", verdict, f.Promise, f.What)
		}
		d.line("\n%d of %d kept, in %s.", kept, len(d.findings), took.Round(100*time.Millisecond))
	}
	if !all {
		return fmt.Errorf("%d promises were broken", len(d.findings)-kept)
	}
	return nil
}

func (d *demo) line(format string, args ...any) {
	if d.env.output == outputText {
		fmt.Fprintf(d.env.stdout, format+"\n", args...)
	}
}

// step tells what has happened; lines after the first are indented below it.
func (d *demo) step(format string, args ...any) {
	d.steps++
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\n   ")
	text = strings.ReplaceAll(text, "\n   \n", "\n\n")
	d.line("\n%d. %s", d.steps, text)
}

// peers tells what other locks would have done at this point: pairs of who and
// what.
func (d *demo) peers(pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		d.line("     | %-6s  %s", pairs[i], strings.ReplaceAll(pairs[i+1], "\n", "\n     |         "))
	}
}

func (d *demo) found(promise string, kept bool, format string, args ...any) {
	d.findings = append(d.findings, finding{promise, fmt.Sprintf(format, args...), kept})
}
