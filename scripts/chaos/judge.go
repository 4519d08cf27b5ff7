package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"fencepost/cluster/check"
	"fencepost/cluster/check/linear"
	"fencepost/cluster/check/replay"
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
	kept    int      // leases that workers had the client renew
	lost    []string // those that were lost
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

// log asks the judges of package check. The log that they get is the longest, up to
// where two nodes have it: what only one has may never have been committed.
func log(e *evidence) []*check.Verdict {
	var longest []check.Entry
	var ends []uint64
	for _, entries := range e.entries {
		if len(entries) > len(longest) {
			longest = entries
		}
		if n := len(entries); n > 0 {
			ends = append(ends, entries[n-1].Index)
		}
	}
	slices.Sort(ends)
	if len(ends) > 1 {
		committed := ends[len(ends)-2]
		longest = slices.DeleteFunc(slices.Clone(longest), func(e check.Entry) bool { return e.Index > committed })
	}
	all := append(replay.Judge(e.history, longest), replay.Agreement(e.entries), linear.Judge(e.history, e.dir))
	for _, v := range all {
		if v.Name != replay.Surplus { // all may have been taken
			v.DemandEvidence()
		}
	}
	return all
}

// dump reads the log of a node that has stopped.
func dump(ctx context.Context, bin string, n *node) ([]check.Entry, error) {
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
	entries, err := check.ReadEntries(f)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", n.name, err)
	}
	return entries, nil
}
