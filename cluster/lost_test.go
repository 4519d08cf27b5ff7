package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A node whose log is lost, exchanged or cut off does not know what it voted
// for and acknowledged. It says so, and does not start under its identity.
func TestP9_ALostLogIsNotReplaced(t *testing.T) {
	open := func(cfg Config) error {
		n, err := Open(cfg)
		if err == nil {
			err = n.Close()
		}
		return err
	}
	config := func(name string) Config {
		cfg := DefaultConfig()
		cfg.Name, cfg.DataDir, cfg.HTTPAddr, cfg.RaftAddr = name, t.TempDir(), "127.0.0.1:1", freeAddrs(t, 1)[0]
		cfg.Peers, cfg.Expect = []string{"http://127.0.0.1:1"}, 1
		cfg.Exit = func(why string) { t.Errorf("the node ended itself: %s", why) }
		d, err := openDataDir(cfg.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		self := raftServer{ID: "id-" + name, Addr: cfg.RaftAddr}
		id := identity{Version: identityVersion, Name: name, ID: self.ID, ClusterID: fmt.Sprintf("%032d", 7), Bootstrap: []raftServer{self}}
		if err := d.save(id); err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	refused := func(what string, cfg Config, want string) {
		t.Helper()
		for range 2 { // nor the second time
			if err := open(cfg); err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	a, b := config("a"), config("b")
	for _, cfg := range []Config{a, b, a} {
		if err := open(cfg); err != nil {
			t.Fatalf("a node with its own log: %v", err)
		}
	}
	for _, name := range []string{"raft.journal0", "raft.journal1"} {
		mine, err := os.ReadFile(filepath.Join(a.DataDir, name))
		if err != nil {
			t.Fatal(err)
		}
		others, err := os.ReadFile(filepath.Join(b.DataDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(a.DataDir, name)); err != nil {
			t.Fatal(err)
		}
		refused("journal removed", a, "is not the journal that node \"id-a\" made")
		if err := os.WriteFile(filepath.Join(a.DataDir, name), others, 0o600); err != nil {
			t.Fatal(err)
		}
		refused("another node's journal", a, "is not the journal that node \"id-a\" made")
		if err := os.WriteFile(filepath.Join(a.DataDir, name), mine, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := open(a); err != nil {
			t.Fatalf("with its own journal again: %v", err)
		}
	}
	log := func(cfg Config) string { return filepath.Join(cfg.DataDir, "raft.db") }
	other, err := os.ReadFile(log(b))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(log(a)); err != nil {
		t.Fatal(err)
	}
	refused("log removed", a, "is not the log that node \"id-a\" made")
	if err := os.WriteFile(log(a), other, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("another node's log", a, "is not the log that node \"id-a\" made")
}

func TestP9_ALogWithoutItsBeginningIsRefused(t *testing.T) {
	logs, snaps := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
	if err := wholeHistory(logs, snaps); err != nil {
		t.Fatalf("an empty log: %v", err)
	}
	for i := uint64(1); i <= 20; i++ {
		logs.StoreLog(&raft.Log{Index: i})
	}
	if err := wholeHistory(logs, snaps); err != nil {
		t.Fatalf("a whole log: %v", err)
	}
	logs.DeleteRange(1, 9)
	if err := wholeHistory(logs, snaps); err == nil {
		t.Fatal("a log that begins at 10 is taken without a snapshot")
	}
	for index, ok := range map[uint64]bool{8: false, 9: true, 15: true} {
		snaps := raft.NewInmemSnapshotStore()
		_, trans := raft.NewInmemTransport("x")
		sink, err := snaps.Create(1, index, 1, raft.Configuration{}, 1, trans)
		if err != nil {
			t.Fatal(err)
		}
		sink.Close()
		if err := wholeHistory(logs, snaps); (err == nil) != ok {
			t.Errorf("a snapshot at %d before a log from 10: %v", index, err)
		}
	}
}

// A leader that is told to stop while its disk hangs must not go on sending
// heartbeats: the watchdog is there to the end.
func TestStoppingOnAHungDiskEndsTheProcess(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		g := l.mustAcquire("db", time.Hour)
		resume := l.store.stall()
		go l.put("k", g.Token, "v")
		time.Sleep(time.Second) // below the disk bound
		closed := make(chan struct{})
		go func() {
			l.Close()
			close(closed)
		}()
		next := s.leader(l)
		l.mu.Lock()
		why := l.exited
		l.mu.Unlock()
		if !strings.Contains(why, "disk is stalled") {
			t.Fatalf("the stopping node ended with %q", why)
		}
		if o, err := next.renew("db", g.Token); err != nil || o.Token != g.Token {
			t.Fatalf("the others do not go on: %v %v", o, err)
		}
		resume()
		<-closed
		l.down = true
	})
}
