package sim

import (
	"fmt"
	"sync"

	"fencepost/client"
)

// beliefs are who, by their own account, holds which exclusive lease. All clients
// are in one bubble, so that there is one instant at which to compare them.
type beliefs struct {
	mu    sync.Mutex // guards what follows
	held  map[string]belief
	count int
	wrong findings
}

type belief struct {
	who   string
	lease *client.Lease
}

// got notes an acquisition. Whoever had the lease before must know better by now.
func (b *beliefs) got(who string, l *client.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	if was, ok := b.held[l.Name()]; ok {
		if err := was.lease.Err(); err == nil {
			b.wrong.add(fmt.Sprintf("%s got %s with token %d, while %s believes that it holds it with token %d", who, l.Name(), l.Token(), was.who, was.lease.Token()))
		}
		if was.lease.Token() >= l.Token() {
			b.wrong.add(fmt.Sprintf("P1: %s got %s with token %d after token %d", who, l.Name(), l.Token(), was.lease.Token()))
		}
	}
	b.held[l.Name()] = belief{who, l}
}
