package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"fencepost/client"
	"fencepost/client/internal/onenode"
)

// endpoints are those of a cluster that runs for the example; a program has them
// from its configuration.
func endpoints() (urls []string, stop func()) {
	cluster := onenode.New()
	var servers []*httptest.Server
	for _, name := range []string{"n1", "n2", "n3"} {
		s := httptest.NewServer(cluster.Node(name))
		servers, urls = append(servers, s), append(urls, s.URL)
	}
	return urls, func() {
		cluster.Close()
		for _, s := range servers {
			s.Close()
		}
	}
}

// A job that cron starts on three machines at the same time, of which one shall
// run it. Who comes second finds it held, and has nothing to do. The last run is
// kept under the job's own lease, so that a machine whose cron is late does not do
// it again.
func Example_cronJob() {
	urls, stop := endpoints()
	defer stop()
	const today = "2024-05-01"

	nightly := func(machine string) error {
		c, err := client.New(urls)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = c.Do(ctx, "cron/nightly", func(ctx context.Context, l *client.Lease) error {
			last, err := c.Get(ctx, "cron/nightly/last")
			if err != nil && !errors.Is(err, client.ErrNotFound) {
				return err
			}
			if err == nil && string(last.Value) == today {
				return nil // done by a machine that was faster
			}
			fmt.Println("the job runs") // and stops when ctx ends
			_, err = c.Put(ctx, "cron/nightly/last", []byte(today), l.Guard(client.Held))
			return err
		}, client.Holder(machine), client.TTL(10*time.Second))
		if errors.Is(err, client.ErrHeld) {
			return nil
		}
		return err
	}

	var machines sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		machines.Go(func() {
			if err := nightly(name); err != nil {
				fmt.Println(err)
			}
		})
	}
	machines.Wait()
	// Output: the job runs
}

// Workers of which one leads at a time. What the leader does carries its token; who
// has been replaced without having noticed is refused.
func ExampleElection() {
	urls, stop := endpoints()
	defer stop()

	worker := func(name string, work func(ctx context.Context, c *client.Client, l *client.Lease) error) error {
		c, err := client.New(urls)
		if err != nil {
			return err
		}
		defer c.Close()
		e := client.NewElection(c, "leaders/billing", client.TTL(5*time.Second))
		l, err := e.Campaign(context.Background(), name) // a service does this in a loop
		if err != nil {
			return err
		}
		if err := work(l.Context(), c, l); err != nil {
			return err
		}
		return e.Resign(context.Background())
	}

	for _, name := range []string{"first", "second"} {
		err := worker(name, func(ctx context.Context, c *client.Client, l *client.Lease) error {
			for leader, err := range client.NewElection(c, "leaders/billing").Observe(ctx) {
				if err != nil {
					return err
				}
				fmt.Println("the leader is", leader.Value, leader.Token == l.Token())
				break
			}
			_, err := c.Put(ctx, "billing/owner", []byte(name), l.Guard(client.Held))
			return err
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// the leader is first true
	// the leader is second true
}

// A guarded read-modify-write. The lease keeps others out, the token keeps out
// those who have lost it and do not know, and the version catches a write of one's
// own whose outcome was unknown.
func ExampleLease_Guard() {
	urls, stop := endpoints()
	defer stop()
	c, err := client.New(urls)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	add := func(ctx context.Context, l *client.Lease, n int) error {
		write, old := l.Guard(client.Held).IfAbsent(), 0
		k, err := c.Get(ctx, "accounts/7")
		switch {
		case err == nil:
			if old, err = strconv.Atoi(string(k.Value)); err != nil {
				return err
			}
			write = write.If(k.Version)
		case !errors.Is(err, client.ErrNotFound):
			return err
		}
		_, err = c.Put(ctx, "accounts/7", []byte(strconv.Itoa(old+n)), write)
		return err
	}

	ctx := context.Background()
	for _, n := range []int{100, -30} {
		err := c.Do(ctx, "accounts/7", func(ctx context.Context, l *client.Lease) error { return add(ctx, l, n) },
			client.Wait(10*time.Second))
		if err != nil {
			fmt.Println(err)
		}
	}
	k, err := c.Get(ctx, "accounts/7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("balance", string(k.Value))

	// One who held it before, and went on without a look at anything:
	old, err := c.Acquire(ctx, "accounts/7")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := old.Release(ctx); err != nil {
		fmt.Println(err)
	}
	if _, err := c.Grant(ctx, "accounts/7"); err != nil {
		fmt.Println(err)
	}
	_, err = c.Put(ctx, "accounts/7", []byte("0"), client.Write{Token: old.Token()})
	fmt.Println("refused:", errors.Is(err, client.ErrStale))
	// Output:
	// balance 70
	// refused: true
}

// A semaphore: at most two of five at a time, first come, first served.
func ExampleSlots() {
	urls, stop := endpoints()
	defer stop()
	c, err := client.New(urls)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	var mu sync.Mutex
	var now, most, done int
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			err := c.Do(context.Background(), "licences/render", func(context.Context, *client.Lease) error {
				mu.Lock()
				now, done = now+1, done+1
				most = max(most, now)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond) // the work
				mu.Lock()
				now--
				mu.Unlock()
				return nil
			}, client.Slots(2), client.Wait(time.Minute))
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	all.Wait()
	fmt.Println(done, "were served, never more than 2 at a time:", most <= 2)
	// Output: 5 were served, never more than 2 at a time: true
}
