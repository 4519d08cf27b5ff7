package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"fencepost/cluster/check"
)

// Evidence is what a run leaves to be judged.
type evidence struct {
	history *check.History
	entries map[string][]check.Entry // of each node, by its name
	hits    []hit
	healing []string // what was late or failed after a heal
	ended   []string // nodes that ended by themselves
	calls   int      // of workers
	failed  []string // those that got no answer
	dir     string   // for what a judge has to show
}

// judge asks all judges.
func judge(e *evidence, bound time.Duration) []*check.Verdict {
	all := []*check.Verdict{
		landed(e.hits),
		served(e.history, e.hits, bound),
		{Name: "service came back after each fault", Findings: e.healing, Note: fmt.Sprintf("%d times", len(e.hits))},
		{Name: "no node ended by itself", Findings: e.ended, Note: fmt.Sprintf("%d nodes", nodeCount)},
	}
	all = append(all, answers(operations(e.history))...)
	return append(all, log(e)...)
}

// log asks the judges of package check: the log is that of the node that has the
// most of it.
func log(e *evidence) []*check.Verdict {
	if !haveJudges {
		return nil
	}
	var longest []check.Entry
	for _, entries := range e.entries {
		if len(entries) > len(longest) {
			longest = entries
		}
	}
	all := replay(e.history, longest)
	return append(all, agreement(e.entries), linear(e.history, e.dir))
}

// The judges of package check are not there yet. Once they are, haveJudges is true,
// and these four are the calls that stand behind them.
const haveJudges = false

func readEntries(io.Reader) ([]check.Entry, error)          { return nil, nil } // check.ReadEntries(from)
func replay(*check.History, []check.Entry) []*check.Verdict { return nil }      // check.Replay(h, entries)
func linear(*check.History, string) *check.Verdict          { return nil }      // check.Linear(h, dir)
func agreement(map[string][]check.Entry) *check.Verdict     { return nil }      // check.Agreement(logs)

// dump reads the log of a node that has stopped.
func dump(ctx context.Context, bin string, n *node) ([]check.Entry, error) {
	if !haveJudges {
		return nil, nil
	}
	path := filepath.Join(filepath.Dir(n.log), n.name+".entries")
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.CommandContext(ctx, bin, "debug", "log", "--data-dir", n.dir, "-o", "json")
	cmd.Stdout, cmd.Stderr = f, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("log of %s: %w", n.name, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	entries, err := readEntries(f)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", n.name, err)
	}
	return entries, nil
}
