package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"fencepost/cluster"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// replaceBound is how long the replacement of a member may take, the faults that
// land meanwhile included.
const replaceBound = 90 * time.Second

// transferLeader hands leadership over by command.
func transferLeader(w *world, _ *rand.Rand) bool {
	h := w.leader()
	if h == nil {
		return false
	}
	p := h.up.Load()
	if p == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	leader, err := p.node.Transfer(ctx, "")
	return err == nil && leader != h.name
}

// replaceMember lets a node lose its disk and join anew, under its old name and with
// another id. It is removed first, or found to be dead by the join of its successor.
func replaceMember(w *world, r *rand.Rand) bool {
	h := w.hosts[r.IntN(len(w.hosts))]
	if h == w.leader() && r.IntN(2) == 0 { // half as often: it takes a hand-over more
		return false
	}
	w.replacing <- struct{}{} // a second one at a time could lose what was acknowledged
	defer func() { <-w.replacing }()
	ctx, cancel := context.WithTimeout(context.Background(), replaceBound)
	defer cancel()
	if r.IntN(2) == 0 && !w.remove(ctx, h) {
		return false
	}
	h.lose()
	// A node without a cluster asks over HTTP, and speaks Raft once it is taken in.
	var why error // the last answer
	if until(ctx, func() bool { why = w.takeIn(ctx, h); return why == nil }) {
		why = errors.New("it was taken in")
		h.found()
		w.must(h.start())
		if until(ctx, func() bool { return w.votes(ctx, h) }) {
			return true
		}
	}
	w.wrong.add(fmt.Sprintf("%s lost its disk, and was no voter again %s later: %v", h.name, replaceBound, why))
	return true
}

// remove ends a membership, by whoever leads. False: it was refused, and the node is
// a member as before.
func (w *world) remove(ctx context.Context, h *host) bool {
	begun := false // an attempt may have removed it
	for ctx.Err() == nil {
		if p := w.leading(); p != nil {
			one, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := p.node.Remove(one, h.name, false)
			cancel()
			switch {
			case err == nil, errors.Is(err, cluster.ErrUnknownMember):
				return true
			case errors.Is(err, cluster.ErrOutcomeUnknown):
				begun = true
			case errors.Is(err, cluster.ErrLosesQuorum) && !begun:
				return false
			}
		}
		rest(ctx, 100*time.Millisecond)
	}
	return begun
}

// until asks again and again. False: ctx has ended.
func until(ctx context.Context, done func() bool) bool {
	for ; ctx.Err() == nil; rest(ctx, 100*time.Millisecond) {
		if done() {
			return true
		}
	}
	return false
}

// takeIn asks whoever leads to take a node in. That is refused while its former self
// is not known to be dead.
func (w *world) takeIn(ctx context.Context, h *host) error {
	p := w.leading()
	if p == nil {
		return errors.New("nobody leads")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return p.node.Join(ctx, &fsmpb.Node{
		Name: h.name, Id: h.id, RaftAddr: h.name, HttpAddr: h.name + ":80", Voter: true, Understands: fsm.Understands,
	})
}

// votes says whether a node has its vote, as whoever leads sees it.
func (w *world) votes(ctx context.Context, h *host) bool {
	p := w.leading()
	if p == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	members, _ := p.node.Members(ctx) // an error names none
	for _, m := range members {
		if m.ID == h.id && m.Voter {
			return true
		}
	}
	return false
}

// leading is the process that leads; nil: none does.
func (w *world) leading() *process {
	if h := w.leader(); h != nil {
		return h.up.Load()
	}
	return nil
}

// lose takes the node down, and gives it an empty disk and another id. It stays down
// until it is found.
func (h *host) lose() {
	h.change <- struct{}{}
	defer func() { <-h.change }()
	if p := h.up.Swap(nil); p != nil {
		h.w.net.drop(h.name)
		h.disk.crash()
		h.finish(p)
	}
	h.disk.wipe()
	h.replaced++
	h.lost = true
	h.id = fmt.Sprintf("%s-%d", h.name, h.replaced)
}

// found lets the node start again.
func (h *host) found() {
	h.change <- struct{}{}
	defer func() { <-h.change }()
	h.lost = false
}
