package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// A firewall drops packets between nodes, in the namespace of this process. Each
// cut is a table of its own, so that cuts can overlap and be healed in any order.
type firewall struct {
	mu   sync.Mutex // guards last
	last int
}

// A link is one direction: packets from one node to another.
type link struct{ from, to *node }

// A cut is some links that drop packets of Raft.
type cut struct {
	table string
	links []link
}

// cut drops so many percent of the packets of Raft on the links; 100 is all. The
// API's port stays open, for clients and for nodes.
func (f *firewall) cut(ctx context.Context, percent int, links ...link) (*cut, error) {
	f.mu.Lock()
	f.last++
	c := &cut{fmt.Sprintf("chaos%d", f.last), links}
	f.mu.Unlock()
	if out, err := nft(ctx, c.rules(percent)); err != nil {
		return nil, fmt.Errorf("nft: %w: %s", err, out)
	}
	return c, nil
}

// rules is the table in nft's language. A connection of Raft has the port on the
// side that listens; packets of both kinds of connections go over a link.
func (c *cut) rules(percent int) string {
	var counters, rules strings.Builder
	for i, l := range c.links {
		fmt.Fprintf(&counters, "  counter c%d { }\n", i)
		for _, side := range []string{"sport", "dport"} {
			fmt.Fprintf(&rules, "    ip saddr %s ip daddr %s tcp %s { %s } ", l.from.addr, l.to.addr, side, raftPorts(l))
			if percent < 100 {
				fmt.Fprintf(&rules, "numgen random mod 100 < %d ", percent)
			}
			fmt.Fprintf(&rules, "counter name c%d drop\n", i)
		}
	}
	return fmt.Sprintf("table inet %s {\n%s  chain in {\n    type filter hook input priority 0; policy accept;\n%s  }\n}\n", c.table, counters.String(), rules.String())
}

func raftPorts(l link) string {
	port := func(n *node) string { return n.raft[strings.LastIndexByte(n.raft, ':')+1:] }
	if port(l.from) == port(l.to) {
		return port(l.from)
	}
	return port(l.from) + ", " + port(l.to)
}

var packets = regexp.MustCompile(`counter c(\d+) \{\s*packets (\d+)`)

// heal removes the table, and says how many packets each link has dropped. None at
// all is errMissed.
func (c *cut) heal(ctx context.Context) (evidence string, err error) {
	listed, errList := nft(ctx, "list table inet "+c.table+"\n")
	if out, err := nft(ctx, "delete table inet "+c.table+"\n"); err != nil {
		return "", fmt.Errorf("heal: nft: %w: %s", err, out)
	}
	if errList != nil {
		return "", fmt.Errorf("count: nft: %w: %s", errList, listed)
	}
	dropped, total := counts(listed), 0
	var parts []string
	for i, l := range c.links {
		total += dropped[i]
		parts = append(parts, fmt.Sprintf("%s>%s %d", l.from.name, l.to.name, dropped[i]))
	}
	evidence = "packets dropped: " + strings.Join(parts, ", ")
	if total == 0 {
		return evidence, fmt.Errorf("%w: no packet was dropped", errMissed)
	}
	return evidence, nil
}

// counts reads nft's list of a table.
func counts(listed string) map[int]int {
	m := make(map[int]int)
	for _, found := range packets.FindAllStringSubmatch(listed, -1) {
		i, errI := strconv.Atoi(found[1])
		n, errN := strconv.Atoi(found[2])
		if errors.Join(errI, errN) == nil {
			m[i] = n
		}
	}
	return m
}

func nft(ctx context.Context, script string) (string, error) {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// both are the links between nodes in both directions.
func both(a *node, others ...*node) (links []link) {
	for _, b := range others {
		links = append(links, link{a, b}, link{b, a})
	}
	return links
}
