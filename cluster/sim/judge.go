package sim

import (
	"fmt"

	"github.com/hashicorp/raft"

	"fencepost/cluster/check"
	"fencepost/cluster/check/linear"
	"fencepost/cluster/check/replay"
	"fencepost/fsm"
)

// entries are the committed entries up to one of Raft's indexes, from all disks together. Of two
// that differ at one index, the one of the higher term is the committed one: its
// leader had all that was committed before.
func (w *world) entries(upTo uint64) (all []check.Entry) {
	var logs []map[uint64]*raft.Log
	numbers := &numbering{fsm.New()}
	for _, h := range w.hosts {
		logs = append(logs, h.disk.entries(upTo)...)
	}
	for i := uint64(1); i <= upTo; i++ {
		var best *raft.Log
		for _, l := range logs {
			if e := l[i]; e != nil && (best == nil || e.Term > best.Term) {
				best = e
			}
		}
		if best == nil {
			w.wrong.add(fmt.Sprintf("no disk has entry %d", i))
			return all
		}
		e := check.Entry{Term: best.Term}
		if best.Type == raft.LogCommand {
			c, err := fsm.Decode(best.Data)
			if err != nil {
				w.wrong.add(fmt.Sprintf("entry %d cannot be read: %v", i, err))
				return all
			}
			e.Command = c
			w.restored = w.restored || c.GetRestoreCommit() != nil
		}
		var err error
		if e.Index, err = numbers.of(i, best.Term, e.Command); err != nil {
			w.wrong.add(fmt.Sprintf("entry %d cannot be applied: %v", i, err))
			return all
		}
		all = append(all, e)
	}
	return all
}

// seen is what was asserted while the world ran.
func (w *world) seen(digests map[string]uint64) []*check.Verdict {
	p14 := &check.Verdict{Name: "P14 replicas are equal", Note: fmt.Sprintf("%d nodes", len(digests))}
	for name, d := range digests {
		if d != digests[w.hosts[0].name] {
			p14.Findings = append(p14.Findings, fmt.Sprintf("%s has digest %x, %s %x", name, d, w.hosts[0].name, digests[w.hosts[0].name]))
		}
	}
	live := &check.Verdict{Name: "all is well while it runs, and again after it has healed", Findings: w.wrong.all}
	one := &check.Verdict{Name: "P3, P7 one client at a time believes in a lease", Findings: w.beliefs.wrong.all, Note: fmt.Sprintf("%d leases", w.beliefs.count)}
	if w.beliefs.count == 0 {
		one.Findings = append(one.Findings, "no lease was acquired")
	}
	return []*check.Verdict{live, one, p14}
}

// judge gives the evidence to the checkers. Package linear knows no restores.
func (w *world) judge(r *Report) []*check.Verdict {
	all := replay.Judge(r.History, r.Log)
	if w.restored {
		return all
	}
	return append(all, linear.Judge(r.History, w.opts.Dir))
}
