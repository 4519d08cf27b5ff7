package cluster

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// A node with an empty directory and the smallest name, which would form a cluster, is
// started beside one that exists and is asked to form one of its own, as by a wrong
// flag: --expect 1, and only peers that have a cluster or none but itself that answers.
func TestB75_NobodyFormsASecondCluster(t *testing.T) {
	member := Formation{Name: "n1", ID: "n1-id", RaftAddr: "n1:1", ClusterID: "X", Members: []string{"n1-id", "n2-old"}}
	var joined []string
	existing := peer(t, member, &joined)
	dead := "http://" + freeAddrs(t, 1)[0]
	for name, peers := range map[string][]string{
		"with the cluster":                   {existing},
		"with it and a peer that is away":    {existing, dead},
		"with none but a peer that is away":  {dead},
		"with it last, and one that is away": {dead, existing},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Name, cfg.RaftAddr, cfg.HTTPAddr, cfg.Expect = "a", "a:1", "a:2", 1
			n := newNode(cfg)
			defer n.close()
			n.id = identity{Name: "a", ID: "a-id"}
			n.cfg.Peers = append(peers, peer(t, n.Formation(), &joined))
			id, why := n.formOnce(t.Context())
			if len(id.Bootstrap) > 0 || id.ClusterID != "" && id.ClusterID != "X" {
				t.Fatalf("formed %+v (%s)", id, why)
			}
		})
	}
}

// A data directory belongs to one cluster for good: with the log of another one's node,
// or of another node, it does not start.
func TestB75_AnotherClustersDirectoryDoesNotStart(t *testing.T) {
	open := func(cfg Config) (*Node, error) {
		cfg.Peers, cfg.Expect = []string{"http://127.0.0.1:1"}, 1
		cfg.Exit = func(why string) { t.Errorf("a node ended itself: %s", why) }
		return Open(cfg)
	}
	made := make([]Config, 2)
	for i, addr := range freeAddrs(t, 2) {
		cfg := DefaultConfig()
		cfg.Name, cfg.DataDir, cfg.RaftAddr, cfg.HTTPAddr = "n1", t.TempDir(), addr, "127.0.0.1:1"
		made[i] = cfg
		d, err := openDataDir(cfg.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		id := identity{Version: identityVersion, Name: "n1", ID: fmt.Sprintf("n1-%d", i), ClusterID: fmt.Sprintf("%032d", i+1)}
		id.Bootstrap = []raftServer{{ID: id.ID, Addr: addr}}
		if err := d.save(id); err != nil {
			t.Fatal(err)
		}
		d.close()
		n, err := open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(20 * time.Second); n.ready.term() == 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("no leader in 20 s")
			}
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(made[1].DataDir + "/node.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(made[0].DataDir+"/node.json", b, 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := open(made[0])
	if err == nil {
		n.Close()
		t.Fatal("it started with the log of one cluster and the identity of another")
	}
	if !strings.Contains(err.Error(), "wipe the data directory") {
		t.Errorf("it does not say what to do: %v", err)
	}
}

// A removed node starts as one, without Raft: it opens no port for it, and is not ready.
func TestB77_RestartsAsRemoved(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Name, cfg.DataDir, cfg.HTTPAddr, cfg.RaftAddr = "n1", t.TempDir(), "127.0.0.1:1", freeAddrs(t, 1)[0]
	cfg.Peers, cfg.Expect = []string{"http://127.0.0.1:1"}, 1
	cfg.Exit = func(why string) { t.Errorf("a node ended itself: %s", why) }
	d, err := openDataDir(cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.save(identity{Version: identityVersion, Name: "n1", ID: "n1-1", ClusterID: "X", Removed: true}); err != nil {
		t.Fatal(err)
	}
	d.close()
	n, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if n.member.Load() != nil {
		t.Fatal("it runs Raft")
	}
	for what, err := range map[string]error{"ready": n.Ready(), "live": n.Live()} {
		if err == nil || !strings.Contains(err.Error(), "removed") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if f := n.Formation(); !f.Removed || f.Members != nil {
		t.Errorf("it tells others %+v", f)
	}
	if s := n.Status(); !s.Removed || s.LeaderURL != "" {
		t.Errorf("status %+v", s)
	}
	if _, err := n.Read(t.Context(), true, nil); err == nil {
		t.Error("it answers a stale read")
	}
	if _, err := n.Watch(0, false); err == nil {
		t.Error("it opens a watch")
	}
}
