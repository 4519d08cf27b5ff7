package client

import (
	"fmt"
	"runtime/debug"
)

// Hooks are functions of the program that are told what becomes of leases; nil
// ones are left out. Those of one lease are called one after the other and in
// order, beside everything else: a slow hook holds up no renewal and no signal. A
// hook that panics, or ends its goroutine, costs its lease, which is given up as lost, and nothing else.
type Hooks struct {
	Acquired func(*Lease)
	// Renewed and RenewFailed may be left out while an earlier hook of the lease
	// has not returned. A failed renewal is tried again until the lease ends.
	Renewed     func(*Lease)
	RenewFailed func(*Lease, error)
	Lost        func(*Lease, error) // with the cause, which is ErrLost
	Released    func(*Lease)        // by Release, before the cluster is told
}

// hookQueue has the hooks of a lease that are still to be called. Guarded by the
// keeper's mutex.
type hookQueue struct {
	waiting []func()
	running bool
}

// hook has f called after the hooks before it. The caller has the mutex. skip
// leaves it out if others are waiting.
func (k *keeper) hook(l *Lease, f func(), skip bool) {
	if skip && (l.hooks.running || len(l.hooks.waiting) > 0) {
		return
	}
	l.hooks.waiting = append(l.hooks.waiting, f)
	if !l.hooks.running {
		l.hooks.running = true
		go k.runHooks(l) // not waited for: it may be what calls Close
	}
}

func (k *keeper) runHooks(l *Lease) {
	done := false
	defer func() {
		if !done { // a hook has ended this goroutine
			go k.runHooks(l)
		}
	}()
	for {
		k.mu.Lock()
		if len(l.hooks.waiting) == 0 {
			l.hooks.running, done = false, true
			k.mu.Unlock()
			return
		}
		f := l.hooks.waiting[0]
		l.hooks.waiting = l.hooks.waiting[1:]
		k.mu.Unlock()
		k.runHook(l, f)
	}
}

func (k *keeper) runHook(l *Lease, f func()) {
	returned := false
	defer func() {
		p := recover()
		if returned {
			return
		}
		if p == nil {
			p = "runtime.Goexit"
		}
		k.mu.Lock()
		k.lose(l, &LostError{Name: l.Name(), Token: l.Token(), Reason: LostPanic, Last: fmt.Errorf("a hook panicked: %v", p)})
		k.mu.Unlock()
		k.c.logger().Error("a hook panicked, so its lease is given up", "lease", l.Name(), "token", l.Token(), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	}()
	f()
	returned = true
}
