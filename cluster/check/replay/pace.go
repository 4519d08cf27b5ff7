package replay

import (
	"math"
	"time"

	"fencepost/cluster/check"
)

// standstill is what a leader counts past its last commit, less what a clock may be
// fast or slow: commits that are no further apart leave no time out (P8).
const standstill = 1800 * time.Millisecond

// pace is P8: the cluster clock never runs ahead of real time, and keeps up with it
// while one leader commits. It is judged by answers to requests that an entry of their
// own has decided: that was stamped after the request was sent and before anybody
// saw its index, and the leader had applied it when it answered.
type pace struct {
	seen  *visibility
	drift float64

	ahead  float64 // of all marks the least lead that the clock had over the sending
	term   uint64  // of the chain: the marks of one leader without a standstill between
	began  int64   // something of the chain was committed after this
	behind float64 // of the chain the greatest lead that the clock had over the answer

	marks, chained int
	v              check.Verdict
}

func newPace(seen *visibility, drift float64) *pace {
	return &pace{seen: seen, drift: drift, ahead: math.Inf(1), v: check.Verdict{Name: "P8 the cluster clock goes with real time"}}
}

// stamped says whether an entry that decided an answer was surely stamped for it: what
// waits is decided by others, who may have been stamped before.
func (a *asked) stamped() bool {
	switch a.call {
	case callRenew, callRenewMany, callRelease, callPut, callDelete, callFence, callTxn:
		return a.decided() && a.End != 0
	}
	return false
}

// see takes, in the order of the log, an answer, the entry that was stamped for it and
// the clock after that.
func (p *pace) see(a *asked, e check.Entry, clockMS uint64) {
	first, ok := p.seen.of(e.Index)
	if !ok || e.Command.Term != e.Term {
		return // a reading of another term does not count
	}
	p.marks++
	// The leader had applied it when it answered; another node, of whom it was seen
	// first, perhaps before that.
	clock, sent, seen, told := float64(clockMS)*1e6, float64(a.Start), float64(first.at), float64(a.End)
	fast, slow := 1+p.drift, 1-p.drift
	slack := 2 * float64(rounding)
	if lead := clock - fast*seen; lead > p.ahead+slack {
		p.v.Find("%v: the clock, %d ms, has run ahead of real time by %v", a, clockMS, time.Duration(lead-p.ahead))
	}
	p.ahead = min(p.ahead, clock-fast*sent)
	if e.Term != p.term || a.End-p.began > int64(standstill) {
		p.term, p.began, p.behind = e.Term, a.Start, math.Inf(-1)
	} else {
		p.chained++
	}
	if lead := clock - slow*sent; lead < p.behind-slack {
		p.v.Find("%v: the clock, %d ms, has fallen behind real time by %v while one leader committed", a, clockMS, time.Duration(p.behind-lead))
	}
	p.behind = max(p.behind, clock-slow*told)
	p.began = max(p.began, a.Start)
}

func (p *pace) verdict() *check.Verdict {
	p.v.Count("%d stamps, each within a standstill of another", p.chained)
	return &p.v
}
