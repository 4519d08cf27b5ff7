package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fencepost/client"
	"fencepost/httpapi/wire"
)

func newWatchCommand(env *environment) *cobra.Command {
	var w client.Watch
	c := &cobra.Command{
		Use:   "watch",
		Short: "Print what happens to leases and keys, as it happens",
		Long: `Print what happens to leases and keys, as it happens, until it is interrupted.

When a node goes away the watch goes on at the next of --endpoints, and neither
misses nor repeats an event; after --timeout without any node it gives up. It ends
with exit code 1 if events that it has not seen are not kept any more. With -o json
each line is one event:

  fencepost watch --kind refusal -o json | jq .key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkWatch(w); err != nil {
				return err
			}
			c, err := env.client()
			if err != nil {
				return err
			}
			defer c.Close()
			w.Patience = env.timeout
			for e, err := range c.Watch(cmd.Context(), w) {
				if cmd.Context().Err() != nil {
					return nil // interrupted, which is how a watch ends
				}
				if err != nil {
					return err
				}
				if err := printEvent(env, e); err != nil {
					return fmt.Errorf("print an event: %w", err)
				}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&w.Prefix, "prefix", "", "only leases and keys whose name begins so")
	f.StringSliceVar(&w.Kinds, "kind", nil, "only these, separated by commas: lease, kv, refusal")
	f.Uint64Var(&w.From, "from", 0, "first index to see (default: from now on)")
	f.BoolVar(&w.Renewals, "renewals", false, "renewals, too, which are many")
	return c
}

func checkWatch(w client.Watch) error {
	for _, k := range w.Kinds {
		if k != wire.WatchLease && k != wire.WatchKV && k != wire.WatchRefusal {
			return usageError(fmt.Errorf("--kind %q is none of lease, kv, refusal", k))
		}
	}
	if w.From > wire.MaxNumber {
		return usageError(fmt.Errorf("--from %d is no index", w.From))
	}
	return nil
}

func printEvent(env *environment, e *client.Event) error {
	line := string(e.Raw)
	if env.output == outputText {
		line = fmt.Sprintf("%-8d %-9s %s%s", e.Index, e.Kind, e.Name+e.Key, describe(&e.Event))
	}
	_, err := fmt.Fprintln(env.stdout, line)
	return err
}

// describe is what a person wants to know of an event beside what it was about.
func describe(e *wire.Event) string {
	var parts []string
	say := func(when bool, format string, args ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	switch e.Kind {
	case wire.EventGranted, wire.EventRenewed:
		say(true, "to %q, token %d", e.Holder, e.Token)
		say(e.TTLMS > 0, "for %s", duration(e.TTLMS))
		say(e.Slots > 1, "%d of %d slots", e.Take, e.Slots)
		say(e.PreviousToken > 0, "before: %q, token %d", e.PreviousHolder, e.PreviousToken)
	case wire.EventReleased, wire.EventExpired:
		say(true, "by %q, token %d", e.PreviousHolder, e.PreviousToken)
		say(e.GraceMS > 0, "nobody is granted it for %s", duration(e.GraceMS))
	case wire.EventQueued, wire.EventDequeued:
		say(true, "%q, ticket %d", e.Holder, e.Ticket)
	case wire.EventRefused:
		say(true, "a write with token %d", e.Token)
		say(e.Holder != "", "of %q", e.Holder)
		say(e.Principal != "", "by %s", e.Principal)
		say(true, "the watermark is %d: %s", e.Watermark, e.Reason)
	case wire.EventPut, wire.EventDeleted, wire.EventFenced:
		say(true, "token %d", e.Token)
		say(e.Version > 0, "version %d", e.Version)
	}
	say(e.QueueLength > 0, "%d waiting", e.QueueLength)
	if len(parts) == 0 {
		return ""
	}
	return "  " + strings.Join(parts, ", ")
}
