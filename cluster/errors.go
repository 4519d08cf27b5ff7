package cluster

import (
	"errors"
	"fmt"
)

// What can become of a proposal or a read beside an outcome. The first three
// say that surely nothing was applied; ErrOutcomeUnknown that it may have been
// (P10). Test with errors.Is.
var (
	ErrNoLeader       = errors.New("no leader here")
	ErrShuttingDown   = errors.New("node is shutting down")
	ErrOverloaded     = errors.New("too much in flight")
	ErrOutcomeUnknown = errors.New("outcome unknown")
)

// QuotaError says that something new was refused before the log, because the
// node that leads has no room for it. Nothing has changed.
type QuotaError struct {
	What  string // "leases", "keys" or "requests"
	Limit uint64 // in the unit of What: leases, bytes, requests
}

func (e *QuotaError) Error() string {
	return fmt.Sprintf("no room for more %s: the limit is %d", e.What, e.Limit)
}

// QueueFullError says that a request which would have had to wait was refused
// before the log, because too many wait already. Nothing has changed.
type QueueFullError struct {
	Limit int // of waiters: for one lease, or in all
}

func (e *QueueFullError) Error() string {
	return fmt.Sprintf("no room for more waiters: the limit is %d", e.Limit)
}
