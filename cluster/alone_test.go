package cluster

import (
	"testing"
	"time"
)

// startAlone starts a node in a directory that makes it the only voter, on real
// disks, and waits until it leads.
func startAlone(t *testing.T, dir, name string) *Node {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Name, cfg.DataDir, cfg.HTTPAddr = name, dir, "127.0.0.1:1"
	cfg.RaftAddr, cfg.Peers, cfg.Expect = freeAddrs(t, 1)[0], []string{"http://127.0.0.1:1"}, 1
	cfg.Exit = func(why string) { t.Errorf("the node ended itself: %s", why) }
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	eventually(t, "it leads", func() bool { return n.ready.term() != 0 })
	return n
}

// eventually polls until ok, within a bound that only a fault exceeds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
