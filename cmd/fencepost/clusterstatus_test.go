package main

import (
	"strings"
	"testing"

	"fencepost/httpapi/wire"
)

// Right after a recovery nobody is recorded yet, and right after a restore others'
// indexes are from before it.
func TestStatusAfterRecoveryAndRestore(t *testing.T) {
	if got := health(&wire.Cluster{}); !strings.HasPrefix(got, "STARTING") {
		t.Errorf("without nodes: %s", got)
	}
	if got := entriesBehind(1<<32 + 7); got != "before a restore" {
		t.Errorf("got %q", got)
	}
	if got := entriesBehind(7); got != "7 entries" {
		t.Errorf("got %q", got)
	}
}

// Whoever looks for a survivor must not be told that the node that answers is down.
func TestStatusWithoutAQuorum(t *testing.T) {
	alone := wire.Node{Name: "n3", Role: wire.RoleVoter, AppliedIndex: 7}
	s := &wire.Cluster{Index: 7, Nodes: []wire.Node{{Name: "n1", Role: wire.RoleVoter}, {Name: "n2", Role: wire.RoleVoter}, alone}}
	if got := health(s); !strings.HasPrefix(got, "NO QUORUM: 0 of 3 voters are ready, 1 answer") {
		t.Errorf("got %q", got)
	}
	if a, b := nodeState(alone), nodeState(s.Nodes[0]); a != "NOT READY" || b != "DOWN" {
		t.Errorf("the one that answers is %q, and the one that does not %q", a, b)
	}
}

// Once every node says that it is ready, the status has them all.
func TestStatusOfReadyNodesListsThemAll(t *testing.T) {
	c := startProcesses(t, 3) // which waits until all are ready
	code, out, errs := command(t, "", "cluster", "status", "--endpoints", c.urls())
	if code != exitDone || !strings.Contains(out, "of 3 voters") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}
