package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"fencepost/client"
	"fencepost/httpapi/wire"
)

func newAcquireCommand(env *environment) *cobra.Command {
	var holder, key string
	var ttl, wait, grace time.Duration
	var slots, take uint64
	var metadata map[string]string
	c := &cobra.Command{
		Use:   "acquire NAME",
		Short: "Acquire a lease and print its token",
		Long: `Acquire a lease and print its token.

The lease ends after --ttl unless it is renewed; nothing renews it by itself. With
-o token the number alone is printed:

  T=$(fencepost acquire nightly-job --ttl 30s -o token)`,
		Args:        cobra.ExactArgs(1),
		Annotations: map[string]string{outputsKey: outputToken},
		RunE: func(cmd *cobra.Command, args []string) error {
			if wait < 0 {
				return usageError(fmt.Errorf("--wait must not be negative, not %s", wait))
			}
			c, ctx, done, err := env.connectFor(withKey(cmd.Context(), key), wait)
			if err != nil {
				return err
			}
			defer done()
			if holder == "" {
				holder = defaultHolder()
			}
			g, err := c.Grant(ctx, args[0], client.Holder(holder), client.TTL(ttl), client.Wait(wait),
				client.Slots(slots), client.Take(take), client.Grace(grace), client.Metadata(metadata))
			if err != nil {
				return err
			}
			switch env.output {
			case outputJSON:
				return env.printJSON(g.Acquired)
			case outputToken:
				_, err = fmt.Fprintln(env.stdout, g.Token)
				return err
			}
			return env.table(
				[]string{"NAME", "TOKEN", "HOLDER", "EXPIRES IN", "PREVIOUS TOKEN"},
				[]string{g.Name, number(g.Token), g.Holder, duration(g.ExpiresInMS), numberOrDash(g.PreviousToken)},
			)
		},
	}
	f := c.Flags()
	f.StringVar(&holder, "holder", "", "label for people (default user@host/pid)")
	f.DurationVar(&ttl, "ttl", 10*time.Second, "how long the lease is held without a renewal")
	f.DurationVar(&wait, "wait", 0, "how long to stand in the queue if it is not free, at most 5m")
	f.Uint64Var(&slots, "slots", 1, "slots of the lease: 1 is exclusive, more are shared")
	f.Uint64Var(&take, "take", 1, "slots to take: all of them as a writer, 1 as a reader")
	f.DurationVar(&grace, "grace", 0, "after an expiry, grant it to nobody for so long")
	f.StringToStringVar(&metadata, "metadata", nil, "shown with the lease; may be given more than once (k=v)")
	keyFlag(c, &key)
	return c
}

func newRenewCommand(env *environment) *cobra.Command {
	var token uint64
	var ttl time.Duration
	c := &cobra.Command{
		Use: "renew NAME --token N", Short: "Extend a lease that is held", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needToken(token); err != nil {
				return err
			}
			c, ctx, done, err := env.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			r, err := c.Renew(ctx, args[0], token, ttl)
			if err != nil {
				return err
			}
			if env.output == outputJSON {
				return env.printJSON(r.Renewed)
			}
			return env.table([]string{"NAME", "TOKEN", "EXPIRES IN"}, []string{r.Name, number(r.Token), duration(r.ExpiresInMS)})
		},
	}
	c.Flags().DurationVar(&ttl, "ttl", 0, "new TTL; it never shortens what is left (default: as before)")
	tokenFlag(c, &token)
	return c
}

func newReleaseCommand(env *environment) *cobra.Command {
	var token uint64
	var key string
	c := &cobra.Command{
		Use: "release NAME --token N", Short: "Give a lease back", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needToken(token); err != nil {
				return err
			}
			c, ctx, done, err := env.connect(withKey(cmd.Context(), key))
			if err != nil {
				return err
			}
			defer done()
			released, err := c.Release(ctx, args[0], token)
			if err != nil {
				return err
			}
			if env.output == outputJSON {
				return env.printJSON(wire.Released{Released: released})
			}
			what := "released"
			if !released {
				what = "not held by this token any more"
			}
			_, err = fmt.Fprintln(env.stdout, what)
			return err
		},
	}
	tokenFlag(c, &token)
	keyFlag(c, &key)
	return c
}

func newLeasesCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use: "leases [PREFIX | NAME]", Short: "Show who holds what, and what ended lately", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var p client.Page
			if len(args) == 1 {
				p.Prefix = args[0]
			}
			c, ctx, done, err := env.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			all, err := allLeases(ctx, c, p)
			if err != nil {
				return err
			}
			if len(all) == 0 {
				fmt.Fprintf(env.stderr, "No lease on record begins with %q.\n", p.Prefix)
			}
			if env.output == outputJSON {
				return env.printJSON(map[string]any{"leases": all})
			}
			return env.table(leaseRows(all)...)
		},
	}
}

// leaseRows has a row for each holder, and one for a lease without any.
func leaseRows(leases []wire.Lease) [][]string {
	rows := [][]string{{"NAME", "HELD", "HOLDER", "TOKEN", "EXPIRES IN", "TTL", "RENEWALS", "LAST TOKEN", "SLOTS", "QUEUE"}}
	for _, l := range leases {
		last, queue := numberOrDash(l.LastToken), number(l.QueueLength)
		if !l.Held {
			held := "no"
			if l.GraceMS > 0 {
				held = "grace"
			}
			rows = append(rows, []string{l.Name, held, "-", "-", "-", "-", "-", last, "0/" + number(l.Slots), queue})
		}
		for _, h := range l.Holders {
			rows = append(rows, []string{
				l.Name, "yes", h.Holder, number(h.Token), duration(h.ExpiresInMS), duration(h.TTLMS), number(h.Renewals), last,
				number(h.Take) + "/" + number(l.Slots), queue,
			})
		}
	}
	return rows
}

// pageSize is the most that the API gives at a time.
const pageSize = 1000

func allLeases(ctx context.Context, c *client.Client, p client.Page) ([]wire.Lease, error) {
	all := []wire.Lease{} // not nil: JSON has a list, too, where there is none
	p.Limit = pageSize
	for {
		page, err := c.ListLeases(ctx, p)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Leases...)
		if page.Next == "" {
			return all, nil
		}
		if page.Next <= p.After {
			return nil, fmt.Errorf("list leases: page after %q goes back to %q", p.After, page.Next)
		}
		p.After = page.Next
	}
}

func tokenFlag(c *cobra.Command, token *uint64) {
	c.Flags().Uint64Var(token, "token", 0, "fencing token, as 'acquire' printed it")
}

func needToken(token uint64) error {
	if token == 0 {
		return usageError(errors.New("--token is needed: the number that 'fencepost acquire' printed"))
	}
	return nil
}

func keyFlag(c *cobra.Command, key *string) {
	c.Flags().StringVar(key, "idempotency-key", "", "repeat an earlier request: it is applied once, and its outcome told (default: a random key)")
}

func withKey(ctx context.Context, key string) context.Context {
	if key == "" {
		return ctx
	}
	return client.WithIdempotencyKey(ctx, key)
}

// defaultHolder is user@host/pid, as far as they are known.
func defaultHolder() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return fmt.Sprintf("%s@%s/%d", name, host, os.Getpid())
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

func numberOrDash(n uint64) string {
	if n == 0 {
		return "-"
	}
	return number(n)
}

func duration(ms uint64) string { return (time.Duration(ms) * time.Millisecond).String() }
