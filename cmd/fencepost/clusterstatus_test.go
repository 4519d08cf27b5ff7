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
