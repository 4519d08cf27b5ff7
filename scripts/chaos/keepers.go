package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"fencepost/client"
	"fencepost/cluster/check"
)

// keepers hold leases all the time and renew them: one with a TTL that is shorter than
// the watchdog's bound, so that it lives through a hung disk only because the
// cluster's clock stands still; and, through the client's Lease, one whose holder may
// believe in it all the time.
type keepers struct {
	started bool
	end     context.CancelFunc
	wg      sync.WaitGroup

	mu      sync.Mutex // guards what follows
	lost    []string
	renewed int
}

const (
	shortTTL   = 4 * time.Second
	longTTL    = takeoverBound + 30*time.Second
	renewEvery = 300 * time.Millisecond
)

// keep starts them, once.
func (k *keepers) keep(ctx context.Context, c *cluster) error {
	if k.started {
		return nil
	}
	cl, err := client.New(c.endpoints(0), client.WithAttemptTimeout(attemptBound), client.WithTransport(c.recorder.Transport("keepers", &http.Transport{DisableCompression: true})))
	if err != nil {
		return err
	}
	running, end := context.WithCancel(context.Background())
	bounded, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	short, err := cl.Grant(bounded, "kept-short", client.Holder("keeper"), client.TTL(shortTTL))
	if err != nil {
		end()
		return errors.Join(err, cl.Close())
	}
	long, err := cl.Acquire(bounded, "kept-long", client.Holder("keeper"), client.TTL(longTTL))
	if err != nil {
		end()
		return errors.Join(err, cl.Close())
	}
	k.started, k.end = true, end
	var both sync.WaitGroup
	both.Go(func() { k.renew(running, cl, short.Token) })
	both.Go(func() { k.believe(running, long) })
	k.wg.Go(func() {
		both.Wait()
		cl.Close()
	})
	return nil
}

// renew renews for as long as it takes to be answered: when there is a leader again.
func (k *keepers) renew(ctx context.Context, cl *client.Client, token uint64) {
	for ; ctx.Err() == nil; sleep(ctx, renewEvery) {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeoverBound)
		_, err := cl.Renew(bounded, "kept-short", token, 0)
		cancel()
		k.mu.Lock()
		if err == nil {
			k.renewed++
		} else {
			k.lost = append(k.lost, fmt.Sprintf("of %s, renewed every %s: %v", shortTTL, renewEvery, err))
		}
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (k *keepers) believe(ctx context.Context, l *client.Lease) {
	select {
	case <-ctx.Done():
		bounded, cancel := context.WithTimeout(context.Background(), callBound)
		defer cancel()
		if err := l.Release(bounded); err != nil && !errors.Is(err, client.ErrUnknown) {
			k.note(fmt.Sprintf("of %s, when it was released: %v", longTTL, err))
		}
	case <-l.Lost():
		k.note(fmt.Sprintf("of %s: %v", longTTL, l.Err()))
	}
}

func (k *keepers) note(lost string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost = append(k.lost, lost)
}

// finish ends them; what they did is in the recorder's history.
func (k *keepers) finish(*cluster) (*check.History, error) {
	if k.started {
		k.end()
		k.wg.Wait()
	}
	return nil, nil
}

func (k *keepers) verdict() *check.Verdict {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := &check.Verdict{Name: "no holder that renews loses its lease", Findings: k.lost, Note: fmt.Sprintf("%d renewals by hand, of a TTL of %s", k.renewed, shortTTL)}
	if k.renewed == 0 && len(k.lost) == 0 {
		find(v, "nobody renewed anything")
	}
	return v
}
