package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fencepost/client"
	"fencepost/httpapi/wire"
)

func newClusterCommand(env *environment) *cobra.Command {
	return newGroupCommand("cluster", "Look after a running cluster", newStatusCommand(env),
		newTransferCommand(env), newRemoveCommand(env), newJoinCommand(env))
}

func newStatusCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show nodes, leader and health", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, done, err := env.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			s, err := c.Cluster(ctx)
			if err != nil {
				return err
			}
			gone := ""
			if s.Removed {
				s, gone = env.stillMembers(ctx, s)
			}
			if env.output == outputJSON {
				return env.printJSON(s)
			}
			if gone != "" {
				fmt.Fprintln(env.stdout, gone)
			}
			if s.Removed {
				return nil // what it knows is of the past
			}
			return printStatus(env, s)
		},
	}
}

// stillMembers asks the endpoints one by one, since one of them is a node that was
// removed: the status is of the first that was not, and gone names the others.
func (e *environment) stillMembers(ctx context.Context, removed *wire.Cluster) (s *wire.Cluster, gone string) {
	s = removed
	var urls []string
	opts, err := e.clientOptions()
	if err != nil {
		return s, "" // which the client that brought s would have met
	}
	for _, url := range e.endpoints {
		c, err := client.New([]string{url}, append(opts, client.WithoutRetry())...)
		if err != nil {
			continue
		}
		if got, err := c.Cluster(ctx); err == nil && got.Removed {
			urls = append(urls, url)
		} else if err == nil && s.Removed {
			s = got
		}
		c.Close()
	}
	if len(urls) == 0 {
		urls = []string{"a node"}
	}
	return s, "REMOVED: " + strings.Join(urls, ", ") + " was removed from its cluster. Stop it, or wipe its data directory, and it joins again as a new member."
}

// printStatus begins with the sentence that a person on call looks for.
func printStatus(env *environment, s *wire.Cluster) error {
	fmt.Fprintln(env.stdout, health(s))
	leader := s.Leader
	if leader == "" {
		leader = "none"
	}
	fmt.Fprintf(env.stdout, "cluster %s, leader %s, term %d, index %d, floor %d\n\n", s.ClusterID, leader, s.Term, s.Index, s.Floor)
	rows := [][]string{{"NODE", "ROLE", "STATE", "BEHIND", "LAST CONTACT", "HTTP", "RAFT", "VERSION"}}
	for _, n := range s.Nodes {
		behind, contact := "-", "-"
		if n.AppliedIndex > 0 {
			behind = entriesBehind(max(s.Index, n.AppliedIndex) - n.AppliedIndex)
		}
		if !n.Leader && (n.Healthy || n.LastContactMS > 0) { // else nobody answered
			contact = duration(n.LastContactMS) + " ago"
		}
		rows = append(rows, []string{n.Name, n.Role, nodeState(n), behind, contact, n.HTTPAddr, n.RaftAddr, n.Version})
	}
	return env.table(rows...)
}

// entriesBehind knows that a restore moves the index by 2^32 and more.
func entriesBehind(n uint64) string {
	if n >= 1<<32 {
		return "before a restore"
	}
	return fmt.Sprintf("%d entries", n)
}

func nodeState(n wire.Node) string {
	switch {
	case n.Leader && n.Healthy:
		return "leader"
	case n.Leader:
		return "leader, UNHEALTHY"
	case n.Healthy:
		return "ok"
	case n.AppliedIndex > 0: // it answers, but is out of touch, or should not lead
		return "NOT READY"
	}
	return "DOWN"
}

// health says how many more nodes may fail.
func health(s *wire.Cluster) string {
	if len(s.Nodes) == 0 {
		return "STARTING: no node has registered yet; look again in a moment"
	}
	var voters, up, answer int
	var down []string
	for _, n := range s.Nodes {
		if n.Role == wire.RoleVoter {
			voters++
			if n.Healthy {
				up++
			}
			if n.Healthy || n.AppliedIndex > 0 {
				answer++
			}
		}
		if !n.Healthy {
			down = append(down, n.Name)
		}
	}
	spare := up - (voters/2 + 1)
	text := fmt.Sprintf("OK: %d of %d voters are up", up, voters)
	switch {
	case voters == 0 || spare < 0:
		text = fmt.Sprintf("NO QUORUM: %d of %d voters are ready, %d answer", up, voters, answer)
	case len(down) > 0:
		text = fmt.Sprintf("DEGRADED: %d of %d voters are up, look at %s", up, voters, strings.Join(down, ", "))
	}
	if spare > 0 {
		text += fmt.Sprintf("; the cluster can lose %d more", spare)
	}
	if spare == 0 && voters > 0 {
		text += "\nWARNING: one more failure loses the quorum, and nothing can be acquired, renewed or written"
	}
	return text
}
