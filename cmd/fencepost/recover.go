package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fencepost/cluster"
)

func newRecoverCommand(env *environment) *cobra.Command {
	var dir string
	var above uint64
	var yes, removed bool
	c := &cobra.Command{
		Use:   "recover --data-dir DIR",
		Short: "Make a new cluster of one survivor, when a majority is lost for good",
		Long: `Make a new cluster of one survivor's data directory, when a majority of the nodes
is lost for good. It is the last resort: what other nodes acknowledged and this one
does not have is lost. Stop all nodes first, take the one whose log reaches furthest
('fencepost debug log' tells), copy its directory, and see docs/operations.md.

All entries of its log count, also those that may never have been committed. The index
jumps above every token that was ever issued: old tokens are refused on every key, and
every new one is greater. Leases from before are kept from others until their time is
over; their holders are told that they lost them. The directory gets a new cluster id
and a new node id, so that none of the former nodes can speak to it: wipe their
directories, and they join as new members.

It tells what it is about to do and asks, unless --yes is given. When it is interrupted,
the directory is what it was, or what it becomes: run it again.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return usageError(errors.New("--data-dir is needed: the directory of the survivor, which is stopped"))
			}
			if env.output == outputJSON && !yes {
				return usageError(errors.New("with -o json nothing is asked: --yes is needed"))
			}
			r, err := cluster.OpenRecovery(dir, above, removed)
			if errors.Is(err, cluster.ErrRemovedNode) {
				return fmt.Errorf("%w; take another node's, or say --removed", err)
			}
			if err != nil {
				return err
			}
			return errors.Join(recoverFrom(env, r, dir, yes), r.Close())
		},
	}
	f := c.Flags()
	f.StringVar(&dir, "data-dir", "", "directory of the survivor")
	f.Uint64Var(&above, "above", 0, "a number that all new tokens exceed, if a token is known outside that is greater than the clock explains")
	f.BoolVar(&removed, "removed", false, "take the directory of a node that was removed from the cluster, if there is no other")
	f.BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func recoverFrom(env *environment, r *cluster.Recovery, dir string, yes bool) error {
	report := r.Report()
	if !report.Finished {
		if env.output == outputText {
			printRecovery(env.stdout, &report)
		}
		if !yes && !confirmed(env) {
			return errors.New("not recovered, and nothing was changed: the answer was not yes")
		}
		if err := r.Commit(); err != nil {
			return fmt.Errorf("recover %s: %w (it is what it was or what it becomes: run this again)", dir, err)
		}
	}
	if env.output == outputJSON {
		return env.printJSON(report)
	}
	if report.Finished {
		fmt.Fprintln(env.stdout, "An earlier recovery of this directory was interrupted; it is finished now.")
		printRecovery(env.stdout, &report)
	}
	printAfterRecovery(env.stdout, &report, dir)
	return nil
}

// confirmed asks, and hears.
func confirmed(env *environment) bool {
	fmt.Fprint(env.stdout, "\nGo on? Only \"yes\" does: ")
	line, _ := bufio.NewReader(env.stdin).ReadString('\n') // an end is an answer: not yes
	return strings.TrimSpace(line) == "yes"
}

func printRecovery(w io.Writer, r *cluster.RecoveryReport) {
	fmt.Fprintf(w, "node                 %s, which was %s of cluster %s\n", r.Node, r.FormerID, r.FormerClusterID)
	fmt.Fprintf(w, "becomes              %s of cluster %s\n", r.ID, r.ClusterID)
	fmt.Fprintf(w, "recovered to         index %d\n", r.RecoveredTo)
	if r.Committed < r.RecoveredTo {
		fmt.Fprintf(w, "surely committed to  index %d; what is behind counts as if it were\n", r.Committed)
	}
	if r.Ignored > 0 {
		fmt.Fprintf(w, "left out             %d entries that surely were not committed\n", r.Ignored)
	}
	fmt.Fprintf(w, "floor                %d: tokens up to it are refused on every key, new ones are greater\n", r.Floor)
	fmt.Fprintf(w, "contents             %d keys; %d leases were held\n", r.Keys, r.Held)
	fmt.Fprintf(w, "\nWhat other nodes acknowledged after index %d is lost.\n", r.RecoveredTo)
	fmt.Fprintf(w, "Holders of leases may believe in them for up to %s from now", time.Duration(r.LongestTTLMS)*time.Millisecond)
	if r.LongestGraceMS > 0 {
		fmt.Fprintf(w, ", and asked for graces of up to %s", time.Duration(r.LongestGraceMS)*time.Millisecond)
	}
	fmt.Fprint(w, ";\nlonger if a lease with a longer TTL was granted in what is lost. Leases of which this\nnode knows are kept from others for that time. Before others use what checks no token\nand was leased in what is lost, wait for it.\n")
}

func printAfterRecovery(w io.Writer, r *cluster.RecoveryReport, dir string) {
	fmt.Fprintf(w, "\nRecovered. %s/recovery.json keeps what is said above.\n", strings.TrimSuffix(dir, "/"))
	fmt.Fprintf(w, "1. Start %s as before. It is a cluster of one.\n", r.Node)
	others := "the former nodes"
	if len(r.Others) > 0 {
		others = strings.Join(r.Others, " and ")
	}
	fmt.Fprintf(w, "2. Wipe the data directories of %s before you start them: they join as new members.\n", others)
	fmt.Fprintln(w, "   Two that were started without it would be a cluster of their own, with the old tokens.")
	fmt.Fprintln(w, "3. 'fencepost cluster status' shows all of them as voters when they have caught up.")
}
