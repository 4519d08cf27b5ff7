package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	mathrand "math/rand/v2"
	"runtime/debug"
	"time"

	"fencepost/httpapi/wire"
)

const (
	// What one request renews at most: a node takes 1 MiB of JSON.
	maxBatch, maxBatchBytes = 1000, 1_000_000
	// attemptParts: one attempt takes at most a sixth of the TTL. Renewals begin
	// after a third and the margin is a tenth, so two nodes may be silent, and a
	// third still has a quarter of the TTL to answer in.
	attemptParts = 6
	minAttempt   = 20 * time.Millisecond
	pauseParts   = 12 // a pause between attempts is at most a twelfth of the TTL
)

// granted notes what the cluster has granted to a request that was sent then.
func (l *Lease) granted(sent instant, left time.Duration) {
	if end := sent.add(left - l.margin); l.deadline.mono.IsZero() || end.mono.After(l.deadline.mono) {
		l.deadline = end
	}
	l.due = sent.mono.Add(max(left-l.ttl+l.ttl/renewParts, l.ttl/pauseParts))
	l.failures, l.last = 0, nil
}

// band is which leases are renewed together: those with TTLs of the same order, so
// that one with a short TTL does not set the pace of all.
func (l *Lease) band() int { return bits.Len64(uint64(l.ttl)) }

// round is one attempt to renew some leases.
type round struct {
	leases []*Lease
	bytes  int // of the request, at most
	limit  time.Duration
}

// begin starts the rounds that are due. The caller has the mutex.
func (k *keeper) begin(now instant) {
	due := make(map[int]bool)
	for l := range k.leases {
		if !l.renewing && !l.due.After(now.mono) {
			due[l.band()] = true
		}
	}
	rounds := make(map[int]*round)
	for l := range k.leases {
		if l.renewing || !due[l.band()] || l.due.Sub(now.mono) > l.ttl/pullParts {
			continue
		}
		r := rounds[l.band()]
		size := 2*len(l.Name()) + 64 // no character of a name takes more than twice its bytes in JSON
		if r == nil || len(r.leases) == maxBatch || r.bytes+size > maxBatchBytes {
			if r != nil {
				k.launch(r)
			}
			r = &round{limit: k.c.attempt}
			rounds[l.band()] = r
		}
		l.renewing = true
		r.leases = append(r.leases, l)
		r.bytes += size
		r.limit = min(r.limit, l.attemptBound(now))
	}
	for _, r := range rounds {
		k.launch(r)
	}
}

// attemptBound is a part of the TTL; the last attempt that fits gets all the time
// that is left, since a slow answer is better than none.
func (l *Lease) attemptBound(now instant) time.Duration {
	bound, left := max(l.ttl/attemptParts, minAttempt), now.until(l.deadline)
	if left < 2*bound {
		return left
	}
	return bound
}

func (k *keeper) launch(r *round) { k.c.errand.Go(func() { k.renew(r) }) }

// renew is one round: a request, and what it says about each lease.
func (k *keeper) renew(r *round) {
	results, sent, err := k.ask(r)
	if failed := k.note(r, results, sent, err); failed > 0 {
		k.c.logger().Info("renewal failed", "leases", len(r.leases), "attempts", failed, "error", err)
	}
}

// note is what becomes of the leases of a round; the most failures in a row that
// one of them now has.
func (k *keeper) note(r *round, results []wire.RenewResult, sent instant, err error) (worst int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.c.clocks()
	for i, l := range r.leases {
		l.renewing = false
		if k.expire(l, now); l.ended != nil {
			continue // also if it was renewed: what is lost stays lost
		}
		if failed := k.settle(l, results[i], sent, err); failed != nil {
			l.failures++
			l.last = failed
			worst = max(worst, l.failures)
			if f := k.c.hooks.RenewFailed; f != nil {
				k.hook(l, func() { f(l, failed) }, true)
			}
		}
	}
	if worst > 0 {
		k.again(r, worst)
	}
	k.nudge()
	return worst
}

// settle applies the answer to one lease, or says why it has to be asked again.
func (k *keeper) settle(l *Lease, res wire.RenewResult, sent instant, err error) error {
	var e *Error
	switch {
	case errors.As(err, &e) && e.Code == wire.CodeLeaseLost && e.Token == l.Token():
		l.gone = true
		k.lose(l, l.lossBy(e.Reason))
		return nil
	case err != nil:
		return err
	case res.Token != l.Token() || res.Name != l.Name():
		return errors.New("the answer leaves this lease out")
	case res.Code == wire.CodeLeaseLost:
		l.gone = true
		k.lose(l, l.lossBy(res.Reason))
		return nil
	case res.Code != "":
		return fmt.Errorf("refused: %s", res.Code)
	}
	l.granted(sent, time.Duration(res.ExpiresInMS)*time.Millisecond)
	k.expire(l, k.c.clocks())
	if l.ended == nil {
		k.hookOf(l, k.c.hooks.Renewed, true)
	}
	return nil
}

// again sets when the leases that were not renewed are asked for again: at once
// while there are nodes that were not asked, then after a pause, the same for all
// of them.
func (k *keeper) again(r *round, failures int) {
	now, pause := time.Now(), time.Duration(0)
	if more := failures - k.c.nodes.spare(); more > 0 {
		longest := min(firstBackOff<<min(more, 5), maxBackOff)
		pause = longest/2 + mathrand.N(longest/2+1)
	}
	for _, l := range r.leases {
		if l.failures > 0 {
			l.due = now.Add(min(pause, l.ttl/pauseParts))
		}
	}
}

// ask sends the round's request once. The results are those of its leases, in
// order, and empty for what was not answered.
func (k *keeper) ask(r *round) (results []wire.RenewResult, sent instant, err error) {
	results = make([]wire.RenewResult, len(r.leases))
	defer func() {
		if p := recover(); p != nil {
			// Of a transport of the program's own: no answer, like any other. The
			// deadlines do not depend on it.
			k.c.logger().Error("a renewal panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("the renewal panicked: %v", p)
		}
	}()
	renewals := make([]wire.Renewal, len(r.leases))
	for i, l := range r.leases {
		renewals[i] = wire.Renewal{Name: l.Name(), Token: l.Token()}
	}
	q, err := jsonCall("renew", "/v1/renew", wire.RenewManyRequest{Leases: renewals})
	if err != nil {
		return results, sent, err
	}
	// Without a key: a renewal only ever counts from its own sending.
	a, _, _, err := k.c.try(k.life, r.limit, k.c.nodes.pick(), q, q.body, "")
	if err != nil {
		return results, sent, err
	}
	var got wire.RenewedMany
	if err := json.Unmarshal(a.body, &got); err != nil {
		return results, sent, fmt.Errorf("answer is not the API's: %w", err)
	}
	copy(results, got.Results)
	return results, a.sent, nil
}
