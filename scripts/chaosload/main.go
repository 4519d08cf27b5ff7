// Command chaosload is the load and the judge of scripts/chaos.sh.
//
// It is a program of its own, and no hidden command of fencepost, so that what is
// shipped carries no test code, and it speaks to the cluster only as users do: by
// the client package over HTTP.
//
//	chaosload leader  -endpoints URLS [-not NAME] [-above TERM]  prints name and term of the leader
//	chaosload load    -endpoints URLS -history F          works until TERM, then reads back and writes F
//	chaosload check   -history F -kills F -outage 2s      judges; prints a line for each check
//
// # Time
//
// A history has instants in nanoseconds of the machine's wall clock, taken once
// and carried on by the monotonic clock, so that no adjustment of the clock
// turns operations around. The script's instants are of the wall clock, too, and
// are compared only to measure outages.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"fencepost/client"
	"fencepost/httpapi/wire"
)

const leaderBound = 20 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaosload:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (ok bool, err error) {
	if len(args) == 0 {
		return false, errors.New("say leader, load or check")
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	endpoints := f.String("endpoints", "", "URLs, separated by commas")
	history := f.String("history", "", "file of operations")
	kills := f.String("kills", "", "file of kills")
	outage := f.Duration("outage", 2*time.Second, "longest time without service after a kill")
	not := f.String("not", "", "wait for a leader other than this")
	above := f.Uint64("above", 0, "wait for a term above this")
	workers := f.Int("workers", 6, "concurrent loops")
	if err := f.Parse(args[1:]); err != nil {
		return false, err
	}
	switch args[0] {
	case "leader":
		return true, printLeader(ctx, strings.Split(*endpoints, ","), *not, *above)
	case "load":
		return true, load(ctx, strings.Split(*endpoints, ","), *workers, *history)
	case "check":
		return check(*history, *kills, *outage)
	}
	return false, fmt.Errorf("%q is none of leader, load, check", args[0])
}

// printLeader asks until there is a leader that says so itself, other than not
// and in a term above.
func printLeader(ctx context.Context, endpoints []string, not string, above uint64) error {
	ctx, cancel := context.WithTimeout(ctx, leaderBound)
	defer cancel()
	c, err := client.New(endpoints, client.WithAttemptTimeout(500*time.Millisecond))
	if err != nil {
		return err
	}
	defer c.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := c.Cluster(ctx)
		if err != nil {
			return fmt.Errorf("no leader: %w", err)
		}
		for _, n := range s.Nodes {
			if n.Leader && n.Name != not && s.Term > above && confirms(ctx, n, s.Term) {
				fmt.Println(n.Name, s.Term)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no leader within %s", leaderBound)
		case <-tick.C:
		}
	}
}

// confirms asks a leader itself: what others know of it may be old.
func confirms(ctx context.Context, n wire.Node, term uint64) bool {
	c, err := client.New([]string{"http://" + n.HTTPAddr}, client.WithoutRetry(), client.WithAttemptTimeout(500*time.Millisecond))
	if err != nil {
		return false
	}
	defer c.Close()
	s, err := c.Cluster(ctx)
	return err == nil && s.Leader == n.Name && s.Term == term
}

func check(historyFile, killsFile string, outage time.Duration) (bool, error) {
	ops, err := readLines[op](historyFile)
	if err != nil {
		return false, err
	}
	kills, err := readLines[kill](killsFile)
	if err != nil {
		return false, err
	}
	passed, failed := 0, 0
	for _, v := range judge(ops, kills, outage) {
		word := "ok  "
		if v.Failed() {
			word = "FAIL"
			failed++
		} else {
			passed++
		}
		fmt.Printf("%s %s: %s\n", word, v.Name, v.Text())
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	return failed == 0, nil
}

func readLines[T any](path string) ([]T, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []T
	d := json.NewDecoder(bufio.NewReader(f))
	for d.More() {
		var one T
		if err := d.Decode(&one); err != nil {
			return nil, fmt.Errorf("%s, record %d: %w", path, len(all)+1, err)
		}
		all = append(all, one)
	}
	return all, nil
}
