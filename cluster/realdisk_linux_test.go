package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"fencepost/fsm/fsmpb"
)

// onSmallDisk runs the test again in a process with a mount namespace of its own,
// there with a file system of so many MiB.
func onSmallDisk(t *testing.T, mib int, run func(t *testing.T, dir string)) {
	const inside = "FENCEPOST_TEST_SMALL_DISK"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "3m")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		var ended *exec.ExitError
		switch {
		case err != nil && !errors.As(err, &ended):
			t.Skipf("no mount namespace here: %v", err)
		case bytes.Contains(out, []byte("--- SKIP")):
			t.Skipf("no file system can be mounted here:\n%s", out)
		case err != nil || !bytes.Contains(out, []byte("--- PASS")):
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	dir := t.TempDir()
	if err := syscall.Mount("small", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	run(t, dir)
}

// fill takes all room that there is, until the returned function is called.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	f.Close()
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A leader whose volume is full stops leading when entries cannot settle, long before
// its journal is full as well; the others serve; it takes part again when there is
// room, and has lost nothing.
func TestP9_B70_ARealDiskIsFull(t *testing.T) {
	onSmallDisk(t, 96, func(t *testing.T, dir string) {
		nodes := realNodes(t, dir, t.TempDir(), t.TempDir())
		small := nodes[0]
		leads(t, small, nodes)
		token := mustHold(t, nodes, "guard")
		free := fill(t, dir)
		value := make([]byte, 256<<10)
		written := 0
		for written = 0; small.member.Load().raft.State() == raft.Leader; written++ {
			if written > 400 { // 100 MiB
				t.Fatal("it leads for ever on a full disk")
			}
			store(t, nodes, token, fmt.Sprint("k", written%8), value)
		}
		if why := small.Ready(); why == nil || !strings.Contains(why.Error(), "no room on the disk") {
			t.Errorf("the full node: %v", why)
		}
		for i := range 80 { // 20 MiB: its journal is full now, too
			store(t, nodes, token, fmt.Sprint("k", i%8), value)
		}
		if small.member.Load().raft.State() == raft.Leader {
			t.Error("the full node leads again")
		}
		free()
		at := nodes[1].Status().Index
		within(t, 30*time.Second, "the node that was full takes part again", func() bool {
			return small.Ready() == nil && small.Status().Index >= at
		})
		t.Logf("%d writes until it gave leadership away", written)
	})
}

// A snapshot that finds no room leaves nothing, and gives its room back; the next
// one, with room, is taken.
func TestB70_ASnapshotWithoutRoomLeavesNothing(t *testing.T) {
	onSmallDisk(t, 8, func(t *testing.T, dir string) {
		s, err := openSnapshots(dir, hclog.NewNullLogger())
		if err != nil {
			t.Fatal(err)
		}
		_, trans := raft.NewInmemTransport("x")
		take := func(index uint64, mib int) error {
			sink, err := s.Create(1, index, 1, raft.Configuration{}, 1, trans)
			if err != nil {
				return err
			}
			for range mib {
				if _, err := sink.Write(make([]byte, 1<<20)); err != nil {
					return errors.Join(err, sink.Cancel())
				}
			}
			return sink.Close()
		}
		room := func() uint64 {
			var fs syscall.Statfs_t
			if err := syscall.Statfs(dir, &fs); err != nil {
				t.Fatal(err)
			}
			return fs.Bavail
		}
		before := room()
		for try := range uint64(20) {
			if err := take(try+1, 20); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("a snapshot larger than the disk: %v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "snapshots", "*")); len(left) > 0 || room() != before {
				t.Fatalf("try %d left %v, and room for %d pages of %d", try, left, room(), before)
			}
		}
		free := fill(t, dir)
		if err := take(30, 1); err == nil {
			t.Fatal("a snapshot was taken on a full disk")
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "snapshots", "*")); len(left) > 0 {
			t.Fatalf("left on a full disk: %v", left)
		}
		free()
		if err := take(40, 1); err != nil {
			t.Fatal(err)
		}
		if err := checkSnapshotNames(dir); err != nil {
			t.Error(err)
		}
		if list, err := s.List(); err != nil || len(list) != 1 || list[0].Index != 40 {
			t.Errorf("%v %v", list, err)
		}
	})
}

// A disk that can only be read is told from a damaged one, and a node does not start
// on it. Nor on one that is full, unless all that is in the journal can settle.
func TestB70_AStartOnADiskThatTakesNothing(t *testing.T) {
	onSmallDisk(t, 128, func(t *testing.T, dir string) {
		cfg := nodeConfig(t, "n1", dir)
		start := func() error {
			n, err := Open(cfg)
			if err == nil {
				err = n.Close()
			}
			return err
		}
		if err := start(); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		if err := start(); !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "wipe") {
			t.Errorf("read-only: %v", err)
		}
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, ""); err != nil {
			t.Fatal(err)
		}
		if err := start(); err != nil {
			t.Errorf("writable again: %v", err)
		}
	})
}

// realNodes are three nodes on these data directories.
func realNodes(t *testing.T, dirs ...string) (nodes []*Node) {
	t.Helper()
	servers, cfgs := make([]raftServer, len(dirs)), make([]Config, len(dirs))
	for i, addr := range freeAddrs(t, len(dirs)) {
		cfgs[i] = bareConfig(t, fmt.Sprintf("n%d", i+1), dirs[i], addr)
		servers[i] = raftServer{ID: "id-" + cfgs[i].Name, Addr: addr}
	}
	for i, cfg := range cfgs {
		beSomebody(t, cfg, servers[i].ID, servers)
		n, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	return nodes
}

// nodeConfig is of a node that is a cluster of its own.
func nodeConfig(t *testing.T, name, dir string) Config {
	t.Helper()
	cfg := bareConfig(t, name, dir, freeAddrs(t, 1)[0])
	self := raftServer{ID: "id-" + name, Addr: cfg.RaftAddr}
	beSomebody(t, cfg, self.ID, []raftServer{self})
	return cfg
}

func bareConfig(t *testing.T, name, dir, addr string) Config {
	cfg := DefaultConfig()
	cfg.Name, cfg.DataDir, cfg.HTTPAddr = name, dir, "127.0.0.1:1"
	cfg.RaftAddr, cfg.Peers, cfg.Expect = addr, []string{"http://127.0.0.1:1"}, 1
	cfg.Exit = func(why string) { t.Errorf("a node ended itself: %s", why) }
	return cfg
}

func beSomebody(t *testing.T, cfg Config, id string, of []raftServer) {
	t.Helper()
	d, err := openDataDir(cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if err := d.save(identity{Version: identityVersion, Name: cfg.Name, ID: id, ClusterID: fmt.Sprintf("%032d", 7), Bootstrap: of}); err != nil {
		t.Fatal(err)
	}
}

// within polls, on a real disk where there is no fake time.
func within(t *testing.T, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", bound, what)
		}
	}
}

// leads makes a node the leader.
func leads(t *testing.T, n *Node, nodes []*Node) {
	t.Helper()
	within(t, 20*time.Second, "this node leads", func() bool {
		for _, other := range nodes {
			if other != n && other.member.Load().raft.State() == raft.Leader {
				_ = other.member.Load().raft.LeadershipTransferToServer(raft.ServerID(n.identity().ID), raft.ServerAddress(n.cfg.RaftAddr)).Error()
			}
		}
		return n.ready.term() != 0
	})
}

func onLeader(t *testing.T, nodes []*Node, what string, do func(context.Context, *Node) error) {
	t.Helper()
	within(t, 30*time.Second, what, func() bool {
		for _, n := range nodes {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			err := do(ctx, n)
			cancel()
			if err == nil {
				return true
			}
		}
		return false
	})
}

func mustHold(t *testing.T, nodes []*Node, name string) (token uint64) {
	t.Helper()
	onLeader(t, nodes, "acquire", func(ctx context.Context, n *Node) error {
		r, err := n.Acquire(ctx, time.Now(), &fsmpb.Acquire{Name: name, Holder: "h", TtlMs: 3_600_000})
		if err == nil {
			token = r.Outcome.Token
		}
		return err
	})
	return token
}

func store(t *testing.T, nodes []*Node, token uint64, key string, value []byte) {
	t.Helper()
	onLeader(t, nodes, "a write", func(ctx context.Context, n *Node) error {
		r, err := n.Write(ctx, time.Now(), &fsmpb.Write{Token: token, Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_PUT, Key: key, Value: value}}})
		if err == nil && r.Outcome.Code != fsmpb.Code_CODE_OK {
			t.Fatalf("a write was refused: %v", r.Outcome)
		}
		return err
	})
}
