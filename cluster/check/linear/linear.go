// Package linear is the judge of a run that looks at nothing but the answers.
package linear

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fencepost/cluster/check"

	"github.com/anishathalye/porcupine"
)

// linearLimit is how long Judge searches for an order of one group.
const linearLimit = 60 * time.Second

// Judge judges the answers alone: it looks for an order in which a plain model of
// the service (model.go, fence.go) gives every client the answer that it
// got, each at an instant between its request and its answer (P3 to P6, P10, P11).
// It reads no Fencepost-Index. Tokens and versions are names of acquisitions and of
// writes, which say nothing about order but what is promised: the tokens of one lease
// grow (P1), and the fence compares them. The history must be all that was asked of a
// cluster that began empty, by one principal.
//
// What nobody asked for but must have happened has operations of its own: that a
// granted lease ended, which may not come before what the cluster promised last (P7);
// and a grant that only others were told of, of an acquire that got no answer.
//
// Left out are stale reads, leases with several slots with all that is tied to them
// (the note says how many), graces (a grant during one is not noticed), and the order
// of a queue (P12), which package replay sees. A run is taken to be shorter than the ten
// minutes of cluster time for which ended leases and requests are kept.
//
// Leases and keys that share no token are judged apart. Of a group without an order
// porcupine's view is saved in dir ("": it is not), and the finding names it. A search
// that does not end within a minute is a finding, too.
func Judge(h *check.History, dir string) *check.Verdict { return JudgeWithin(h, dir, linearLimit) }

// JudgeWithin is Judge with another limit on the search for each group.
func JudgeWithin(h *check.History, dir string, limit time.Duration) *check.Verdict {
	v := &check.Verdict{Name: "linear"}
	r := newLinReading(v)
	r.read(h)
	groups, shared := r.groups()
	judged, largest := 0, 0
	for i, g := range groups {
		g.judge(v, i, dir, limit)
		judged += len(g.ops)
		largest = max(largest, len(g.ops))
	}
	if judged == 0 {
		v.Find("there was nothing to judge")
	}
	v.Note = fmt.Sprintf("%d operations of %d exchanges in %d groups, the largest of %d; %d groups with shared leases left out",
		judged, len(h.Exchanges), len(groups), largest, shared)
	return v
}

// judge searches for an order of the group's operations.
func (g *linGroup) judge(v *check.Verdict, number int, dir string, limit time.Duration) {
	model := g.model()
	history := g.history()
	result := porcupine.CheckOperationsTimeout(model, history, limit)
	if result == porcupine.Ok {
		return
	}
	// Once more, for the parts of an order that were found.
	_, info := porcupine.CheckOperationsVerbose(model, history, limit)
	what := fmt.Sprintf("no order explains the %d operations on %s", len(g.ops), g)
	if result == porcupine.Unknown {
		what = fmt.Sprintf("no verdict within %v on the %d operations on %s", limit, len(g.ops), g)
	}
	what += g.stuck(info)
	if dir != "" {
		path := filepath.Join(dir, fmt.Sprintf("linear-%02d.html", number))
		if err := saveView(model, info, path); err != nil {
			what += fmt.Sprintf("; its view was not saved: %v", err)
		} else {
			what += "; view: " + path
		}
	}
	v.Find("%s", what)
}

func saveView(model porcupine.Model, info porcupine.LinearizationInfo, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return porcupine.VisualizePath(model, info, path)
}

// stuck names the operation that ended first of those which the longest part of an
// order could not place. What is wrong is there or before it.
func (g *linGroup) stuck(info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, part := range partition {
			if len(part) > len(longest) {
				longest = part
			}
		}
	}
	placed := make(map[*linOp]bool, len(longest))
	for _, o := range longest {
		placed[o.Input.(*linOp)] = true
	}
	var first *linOp
	for _, op := range g.ops {
		if !placed[op] && (first == nil || op.ret < first.ret) {
			first = op
		}
	}
	if first == nil {
		return ""
	}
	text := fmt.Sprintf(": after %d of them this does not fit: %s, exchanges %v", len(longest), first, first.from)
	if n := len(longest); n > 0 {
		var last []string
		for _, o := range longest[max(0, n-4):] {
			last = append(last, o.Input.(*linOp).String())
		}
		text += "; before it: " + strings.Join(last, ", ")
	}
	return text
}

// String lists what the group is about, not all of it if that is much.
func (g *linGroup) String() string {
	const most = 4
	list := func(what string, names []string) string {
		names = slices.Clone(names)
		more := ""
		if len(names) > most {
			names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
		}
		return fmt.Sprintf("%s %q%s", what, names, more)
	}
	return list("leases", g.names) + ", " + list("keys", g.keys)
}
