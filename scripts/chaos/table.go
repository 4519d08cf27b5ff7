package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// table is every nemesis, in the order of the plan. ci is sized so that all of them
// together take less than a quarter of an hour.
func table() []*nemesis {
	all := []*nemesis{
		{
			id: "N1", what: "kill -9 of the leader", unit: "kill", ci: 10, release: 1000, batch: 40, settle: true,
			make: func(r *rand.Rand) attack { return &killLeader{r} },
		},
		{
			id: "N2", what: "kill -9 of one node, and of all", unit: "kill", ci: 5, release: 400, batch: 40, settle: true,
			make: func(r *rand.Rand) attack { return &killAny{r: r, all: 3} },
		},
		{
			id: "N3", what: "the leader is stopped for 2 to 6 s", unit: "pause", ci: 5, release: 500, batch: 30, settle: true,
			make: func(r *rand.Rand) attack { return &pauseLeader{r, 2 * time.Second, 6 * time.Second} },
		},
		{
			id: "N4", what: "the leader is stopped for longer than any TTL", unit: "pause", ci: 2, release: 200, batch: 15, settle: true,
			make: func(r *rand.Rand) attack { return &pauseLeader{r, 3 * maxTTL, 4 * maxTTL} },
		},
		{
			id: "N5", what: "a client that holds a lease and writes is stopped for longer than its TTL", unit: "pause", ci: 5, release: 500, batch: 30,
			make: func(r *rand.Rand) attack { return &pauseHolder{r: r} },
		},
		{
			id: "N6", what: "the leader is cut off from the others, not from its clients", unit: "cut", ci: 5, release: 500, batch: 30, settle: true, namespace: true,
			make: func(r *rand.Rand) attack { return &isolateLeader{r: r} },
		},
		{
			id: "N7", what: "cuts in one direction, and between two of three", unit: "cut", ci: 3, release: 300, batch: 30, settle: true, namespace: true,
			make: func(r *rand.Rand) attack { return &oddCuts{r: r} },
		},
		{
			id: "N8", what: "links that lose 10 to 30 % of their packets", unit: "time of 4 to 8 s", ci: 1, release: 100, batch: 15, settle: true, namespace: true,
			make: func(r *rand.Rand) attack { return &lossyLinks{r} },
		},
		{
			id: "N8S", what: "links on which all is 20 to 800 ms late", unit: "time of 4 to 8 s", ci: 1, release: 100, batch: 15, settle: true,
			make: func(r *rand.Rand) attack { return &slowLinks{r: r} },
		},
		{
			id: "N9", what: "an answer is lost, a request repeated, or held and sent late", unit: "request", ci: 100, release: 5000, batch: 400, gap: 100 * time.Millisecond, proxied: true,
			make: func(r *rand.Rand) attack { return &badReplies{r: r} },
		},
		{
			id: "N11", what: "each flush of a node takes 0.1 to 0.8 s, or 10 to 30 s", unit: "time of some seconds", ci: 2, release: 100, batch: 12, settle: true, namespace: true,
			make: func(r *rand.Rand) attack { return &slowDisk{r: r} },
		},
		{
			id: "N12", what: "the leader's disk hangs", unit: "hang", ci: 1, release: 50, batch: 10, settle: true, namespace: true,
			make: func(r *rand.Rand) attack { return &hungDisk{r: r} },
		},
		{
			id: "N13", what: "the disk of a node fails its writes or flushes", unit: "failure", ci: 3, release: 100, batch: 25, settle: true, namespace: true,
			make: func(r *rand.Rand) attack { return &failingDisk{r: r} },
		},
		{
			id: "N14", what: "the disk of one node is full, or of two", unit: "time of some seconds", ci: 1, release: 50, batch: 2, settle: true, namespace: true,
			make: func(r *rand.Rand) attack { return &fullDisk{r: r} },
		},
		{
			id: "N15", what: "the power of one node fails, or of all", unit: "cut", ci: 10, release: 600, batch: 40, settle: true, namespace: true,
			make: func(r *rand.Rand) attack { return &powerCut{r: r, all: 4} },
		},
		{
			id: "N16", what: "a file of a node that has stopped is damaged or missing", unit: "damage", ci: 5, release: 300, batch: 18, settle: true,
			make: func(r *rand.Rand) attack { return newDamage(r) },
		},
		{
			id: "N17", what: "all nodes are restarted by TERM, one after the other", unit: "round", ci: 2, release: 200, batch: 15, settle: true,
			make: func(r *rand.Rand) attack { return &rollingRestart{r: r} },
		},
		{
			id: "N18", what: "leadership is handed over again and again", unit: "time of 4 to 8 s", ci: 1, release: 50, batch: 10, settle: true,
			make: func(r *rand.Rand) attack { return &transferStorm{r} },
		},
		{
			id: "N19", what: "a member is removed, wiped, and joins anew", unit: "replacement", ci: 3, release: 200, batch: 20, settle: true,
			make: func(r *rand.Rand) attack { return &changeMembers{r: r} },
		},
		{
			id: "N21", what: "the leader is killed while it sends a snapshot to a node that was away", unit: "kill", ci: 3, release: 200, batch: 10, settle: true,
			make: func(r *rand.Rand) attack { return &halfSnapshot{r: r} },
		},
		{
			id: "N22", what: "a node gets a twentieth of a processor", unit: "time of 4 to 8 s", ci: 1, release: 50, batch: 10, settle: true,
			make: func(r *rand.Rand) attack { return &starve{r} },
		},
		{
			id: "N23", what: "nobody reads what the leader logs", unit: "blocked pipe", ci: 2, release: 20, batch: 5, settle: true,
			make: func(r *rand.Rand) attack { return &blockedLog{r: r} },
		},
	}
	return append(all, &nemesis{
		id: "N25", what: "all of it, at random", unit: "minute", ci: 3, release: 60, batch: 1, proxied: true, settle: true,
		make: func(r *rand.Rand) attack { return newEverything(r, all) },
	})
}

// chosen are the nemeses with these ids, separated by commas; "" is all.
func chosen(all []*nemesis, ids string) ([]*nemesis, error) {
	if ids == "" {
		return all, nil
	}
	var list []*nemesis
	for id := range strings.SplitSeq(ids, ",") {
		i := slices.IndexFunc(all, func(n *nemesis) bool { return strings.EqualFold(n.id, strings.TrimSpace(id)) })
		if i < 0 {
			return nil, fmt.Errorf("there is no nemesis %q", id)
		}
		list = append(list, all[i])
	}
	return list, nil
}
