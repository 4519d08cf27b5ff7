package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"fencepost/cluster"
	"fencepost/httpapi/wire"
)

func newTransferCommand(env *environment) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "transfer [--to NAME]", Short: "Hand leadership to another node", Args: cobra.NoArgs,
		Long: `Hand leadership to another node, without an election: it costs milliseconds.

Without --to it goes to the healthy voter that is furthest. A node that is stopped
with SIGTERM hands over by itself.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ctx, done, err := env.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			leader, err := c.Transfer(ctx, to)
			if err != nil {
				return err
			}
			if env.output == outputJSON {
				return env.printJSON(wire.Transferred{Leader: leader})
			}
			_, err = fmt.Fprintf(env.stdout, "%s leads\n", leader)
			return err
		},
	}
	c.Flags().StringVar(&to, "to", "", "name of the node that is to lead")
	return c
}

func newRemoveCommand(env *environment) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "remove NAME [--force]", Short: "End a node's membership", Args: cobra.ExactArgs(1),
		Long: `End a node's membership, whether it runs or not.

A leader hands over first. Refused while the other voters could not go on without
the node. A node that was removed says so and takes no part any more; stop it, or
wipe its data directory to have it join again as a new member.

To replace a node, let the new one join first and remove the old one then. One that
comes back with an empty data directory, under its old name, takes its own place.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, done, err := env.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			if err := c.RemoveMember(ctx, args[0], force); err != nil {
				return err
			}
			if env.output == outputJSON {
				return env.printJSON(wire.MemberRemoved{Removed: true, Name: args[0]})
			}
			_, err = fmt.Fprintf(env.stdout, "%s is no member any more\n", args[0])
			return err
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also if the rest cannot form a majority of live nodes: the cluster may stop")
	return c
}

func newJoinCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use: "join URL", Short: "Make the node at URL a member", Args: cobra.ExactArgs(1),
		Long: `Make the node at URL, which has no cluster yet, a member of the cluster at --endpoints.

A node joins by itself if --peers names a member when it is started: that is all that
is needed. This command is for one that asked before its peers were there, and for
seeing why a join is refused. The node enters the cluster once one of its --peers
lists it; it has a vote when it has caught up.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ctx, done, err := env.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			node, err := introduce(ctx, env, args[0])
			if err != nil {
				return err
			}
			if err := c.Join(ctx, *node); err != nil {
				return err
			}
			if env.output == outputJSON {
				return env.printJSON(wire.Joined{Joined: true})
			}
			_, err = fmt.Fprintf(env.stdout, "%s (%s) is a member, and has a vote when it has caught up\n", node.Name, node.ID)
			return err
		},
	}
}

// introduce asks a node who it is.
func introduce(ctx context.Context, env *environment, url string) (*wire.JoinRequest, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+cluster.FormationPath, nil)
	if err != nil {
		return nil, usageError(fmt.Errorf("%q is not a URL like http://host:port: %w", url, err))
	}
	asking, err := env.httpClient()
	if err != nil {
		return nil, err
	}
	resp, err := asking.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the node who it is: %w", err)
	}
	defer resp.Body.Close()
	var f cluster.Formation
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&f); err != nil || f.ID == "" || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s is no node: it answered %s", url, resp.Status)
	}
	if f.Removed {
		return nil, fmt.Errorf("node %s was removed from its cluster: wipe its data directory, and it joins again as a new member", f.Name)
	}
	return &wire.JoinRequest{Name: f.Name, ID: f.ID, RaftAddr: f.RaftAddr, HTTPAddr: f.HTTPAddr, Voter: true, ClusterID: f.ClusterID, Member: f.ClusterID != ""}, nil
}
