package cluster

import (
	"context"
	"fmt"
	"sync"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// oneRestore lets one restore run on this node at a time. Its zero value is ready.
type oneRestore struct {
	mu    sync.Mutex    // guards all
	key   string        // Idempotency-Key of the one that runs; "": it has none
	ended chan struct{} // closed when it ends; nil: none runs
}

// begin waits for one that runs under the same key, whose repetition this then is:
// "refused" would be a lie if that commits (P10). Any other is ErrRestoreRunning.
func (o *oneRestore) begin(ctx, closed context.Context, id *fsmpb.Request) (end func(), err error) {
	for {
		ended, same := o.enter(id)
		switch {
		case ended == nil:
			return o.leave, nil
		case !same:
			return nil, ErrRestoreRunning
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: it is under way: %w", ErrOutcomeUnknown, context.Cause(ctx))
		case <-closed.Done():
			return nil, fmt.Errorf("%w: the node is going down", ErrOutcomeUnknown)
		}
	}
}

// enter returns nil if none ran, and else what tells its end, and whether it has this key.
func (o *oneRestore) enter(id *fsmpb.Request) (ended chan struct{}, same bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended == nil {
		o.key, o.ended = id.GetKey(), make(chan struct{})
		return nil, true
	}
	return o.ended, o.key != "" && o.key == id.GetKey()
}

func (o *oneRestore) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.ended)
	o.key, o.ended = "", nil
}

// runs says that a restore is under way under the key of this request.
func (o *oneRestore) runs(id *fsmpb.Request) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended != nil && o.key != "" && o.key == id.GetKey()
}

// restoredUnder says that a restore under this request's key was decided, by what this
// node has applied.
func (n *Node) restoredUnder(id *fsmpb.Request) (was bool) {
	n.machine.view(func(s *fsm.State) { was = s.Remembers("", id) })
	return was
}
