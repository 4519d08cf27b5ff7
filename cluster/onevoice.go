package cluster

import (
	"sync"

	"github.com/hashicorp/raft"
)

// oneVoice is a transport that lets only such heartbeats past Raft's main goroutine as
// change nothing but the time of the last contact: of the follower's own term. Raft
// v1.7.3 takes a newer term from any (hashicorp/raft#695), under a leader that then
// writes its next entry in a term which is another's, or a candidate that then wins it.
type oneVoice struct {
	transport
	inbox  chan raft.RPC
	closed chan struct{}
	once   *sync.Once
	quiet  func(term uint64, handle func()) bool // runs it if this is the term, and a follower's
}

func newOneVoice(t transport, quiet func(uint64, func()) bool) oneVoice {
	v := oneVoice{t, make(chan raft.RPC), make(chan struct{}), new(sync.Once), quiet}
	go func() {
		for {
			select {
			case rpc := <-t.Consumer():
				v.pass(rpc)
			case <-v.closed:
				return
			}
		}
	}()
	return v
}

func (v oneVoice) pass(rpc raft.RPC) {
	select {
	case v.inbox <- rpc:
	case <-v.closed:
	}
}

func (v oneVoice) Consumer() <-chan raft.RPC { return v.inbox }

func (v oneVoice) SetHeartbeatHandler(handle func(raft.RPC)) {
	v.transport.SetHeartbeatHandler(func(rpc raft.RPC) {
		a, ok := rpc.Command.(*raft.AppendEntriesRequest)
		if !ok || !v.quiet(a.Term, func() { handle(rpc) }) {
			v.pass(rpc)
		}
	})
}

func (v oneVoice) Close() error {
	v.once.Do(func() { close(v.closed) })
	return v.transport.Close()
}

// stored is the term that this node is in, as its disk has it.
func (o *overlap) stored() uint64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.term
}

// quiet runs what handles a heartbeat beside Raft's main goroutine, if that can change
// nothing but the time of the last contact: the heartbeat is of this node's term, the
// node follows, and its term does not change meanwhile. False: it has not been run.
func (o *overlap) quiet(is func() bool) func(uint64, func()) bool {
	return func(term uint64, handle func()) bool {
		if !o.turn.TryLock() { // the term changes
			return false
		}
		defer o.turn.Unlock()
		if term != o.stored() || !is() {
			return false
		}
		handle()
		return true
	}
}
