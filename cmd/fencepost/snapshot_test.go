package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

// P1, P5, B44: a cluster of real processes is backed up at a token about 100 and runs
// on to 200, which a resource outside remembers. Everything is destroyed. The backup
// is restored into a new cluster, through a follower, and once more: all new tokens
// are above 200 and differ, old holders are told restored, old tokens are refused on
// every key, and the resource takes the new holder at once.
func TestP1_P5_B44_RestoreAfterEverythingIsLost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup")
	old := startProcesses(t, 3)
	var tokens []uint64
	for i := 0; len(tokens) == 0 || tokens[len(tokens)-1] < 200; i++ {
		token := old.mustAcquire(fmt.Sprint("job/", i), time.Minute)
		tokens = append(tokens, token)
		expect(t, "write", old.put("k", token, fmt.Sprint("value ", token)), 200, "", "")
		if _, err := os.Stat(file); err != nil && token >= 100 {
			var info backupInfo
			f := old.follower()
			eventually(t, "the follower has the write", func() bool {
				return old.get(f, "/v1/kv/k?consistency=stale").header.Get("Fencing-Token") == fmt.Sprint(token)
			})
			saved(t, &info, "snapshot", "save", file, "--endpoints", f.url)
			if info.Keys != 1 || info.Index < token || info.NewestToken != token || info.FileBytes == 0 {
				t.Fatalf("%+v, after token %d", info, token)
			}
		}
	}
	old.kill(old.nodes...)
	for _, n := range old.nodes {
		if err := os.RemoveAll(n.dir); err != nil {
			t.Fatal(err)
		}
	}
	resource := tokens[len(tokens)-1]

	c := startProcesses(t, 3)
	var info backupInfo
	saved(t, &info, "snapshot", "inspect", file)
	if code, _, stderr := command(t, "", "snapshot", "restore", file, "--endpoints", c.follower().url); code != exitRefused || !strings.Contains(stderr, "--force") {
		t.Fatalf("another cluster's backup without force: %d %s", code, stderr)
	}
	expect(t, "read", c.mustDo("GET", "/v1/kv/k", ""), 404, "not_found", "")
	seen, floor := map[uint64]bool{}, uint64(0)
	for round, flags := range [][]string{{}, {"--above", "5000000000000000"}} {
		var done wire.Restored
		saved(t, &done, append([]string{"snapshot", "restore", file, "--force", "--endpoints", c.follower().url}, flags...)...)
		if done.Index <= resource || done.Index <= floor || done.BackupIndex != info.Index || done.ClusterID != info.ClusterID {
			t.Fatalf("round %d: %+v of %+v, floor %d", round, done, info, floor)
		}
		floor = done.Index
		for i, token := range tokens {
			name := fmt.Sprint("job/", i)
			expect(t, "renew", c.mustDo("POST", "/v1/leases/"+name+"/renew", fmt.Sprintf(`{"token":%d}`, token)), 409, "lease_lost", "restored")
			if i%20 == 0 {
				expect(t, "write", c.put("k", token, "old"), 412, "stale_token", "not_on_record")
				expect(t, "write", c.put("a/new/key", token, "old"), 412, "stale_token", "not_on_record")
			}
		}
		for i := range 5 {
			token := c.mustAcquire(fmt.Sprint("round/", round, "/", i), time.Minute)
			if token <= resource || token <= floor || seen[token] {
				t.Fatalf("round %d: token %d, the resource outside has %d, floor %d", round, token, resource, floor)
			}
			seen[token], resource = true, token
		}
		expect(t, "write", c.put("k", resource, "new"), 200, "", "")
	}
	if floor < 5_000_000_000_000_000 {
		t.Errorf("floor %d, --above was said", floor)
	}
	last := c.nodes[0]
	c.kill(last)
	code, dump, stderr := command(t, "", "debug", "log", "--data-dir", last.dir, "-o", "json")
	entries, err := check.ReadEntries(strings.NewReader(dump))
	if code != exitDone || err != nil || entries[len(entries)-1].Index < floor {
		t.Fatalf("the log over two restores: %d %s %v", code, stderr, err)
	}
	c.start(last)
	c.awaitReady(last)
}

// saved runs a command that must succeed, and reads the document that it prints.
func saved(t *testing.T, into any, args ...string) {
	t.Helper()
	code, stdout, stderr := command(t, "", append(args, "-o", "json")...)
	if code != exitDone {
		t.Fatalf("%v: %d %s", args, code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), into); err != nil {
		t.Fatalf("%v: %v in %s", args, err, stdout)
	}
}

// B43: what is not whole is refused by the command before it is sent, and a stream
// that is cut off leaves no file.
func TestB43_SnapshotCommandsRefuseDamage(t *testing.T) {
	c := startProcesses(t, 1)
	dir := t.TempDir()
	file := filepath.Join(dir, "backup")
	token := c.mustAcquire("l", time.Minute)
	expect(t, "write", c.put("k", token, strings.Repeat("v", 10_000)), 200, "", "")
	if code, stdout, stderr := command(t, "", "snapshot", "save", file, "--endpoints", c.nodes[0].url); code != exitDone || !strings.Contains(stdout, "1 keys") {
		t.Fatalf("save: %d %s %s", code, stdout, stderr)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := os.Stat(file); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("others may read the backup: %v %v", s.Mode(), err)
	}
	before := c.get(c.nodes[0], "/v1/cluster").number("floor")
	for name, content := range map[string][]byte{
		"half": whole[:len(whole)/2], "empty": {}, "flipped": append(append([]byte{}, whole[:5000]...), append([]byte{whole[5000] ^ 1}, whole[5001:]...)...),
	} {
		bad := filepath.Join(dir, name)
		if err := os.WriteFile(bad, content, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"inspect", "restore"} {
			if code, _, stderr := command(t, "", "snapshot", verb, bad, "--endpoints", c.nodes[0].url); code != exitRefused || !strings.Contains(stderr, "damaged") {
				t.Errorf("%s of %s: %d %s", verb, name, code, stderr)
			}
		}
		expect(t, "upload", c.do(c.nodes[0], "POST", "/v1/snapshot/restore", string(content)), 400, "invalid_request", "")
	}
	if after := c.get(c.nodes[0], "/v1/cluster").number("floor"); after != before {
		t.Errorf("floor %d, was %d", after, before)
	}
	if left, _ := filepath.Glob(filepath.Join(c.nodes[0].dir, "*.spool")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	code, _, _ := command(t, "", "snapshot", "save", filepath.Join(dir, "none"), "--endpoints", "http://127.0.0.1:1", "--timeout", "1s")
	if code != exitUnavailable {
		t.Errorf("save from nobody: %d", code)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "none*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// B46: a follower that lags behind a restore and a compaction is killed while it
// installs the snapshot, at a random moment, and started again: it always starts, and
// gets to the same contents. Each round begins with the same disk, which nobody cleans.
// FENCEPOST_TEST_INSTALLS sets how many rounds there are.
func TestP9_P14_B46_KilledWhileItInstallsASnapshot(t *testing.T) {
	rounds := 8
	if s := os.Getenv("FENCEPOST_TEST_INSTALLS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		rounds = n
	}
	c := startProcesses(t, 3)
	for _, n := range c.nodes {
		n.args = append(n.args, "--snapshot-entries", "400", "--trailing-entries", "256")
	}
	c.kill(c.nodes...)
	for _, n := range c.nodes {
		c.start(n)
	}
	c.awaitReady(c.nodes...)
	token := c.mustAcquire("l", time.Hour)
	expect(t, "write", c.put("k", token, "v"), 200, "", "")
	behind := c.follower()
	c.kill(behind)
	file := filepath.Join(t.TempDir(), "backup")
	saved(t, new(backupInfo), "snapshot", "save", file, "--endpoints", c.leader().url)
	saved(t, new(wire.Restored), "snapshot", "restore", file, "--endpoints", c.leader().url)
	token = c.mustAcquire("other", time.Hour)
	for i := range 60 {
		expect(t, "write", c.put(fmt.Sprint("large/", i), token, strings.Repeat(fmt.Sprint(i%10), 400<<10)), 200, "", "")
	}
	l := c.leader()
	for i := range 1000 {
		c.do(l, "PUT", fmt.Sprint("/v1/kv/small/", i%50), "v", "Fencing-Token", fmt.Sprint(token))
	}
	eventually(t, "the leader has compacted its log", func() bool {
		all, _ := filepath.Glob(filepath.Join(l.dir, "snapshots", "*-*-*"))
		return len(all) > 0
	})
	want := c.mustDo("GET", "/v1/kv?prefix=small/", "")
	lagging := filepath.Join(t.TempDir(), "lagging")
	if err := os.CopyFS(lagging, os.DirFS(behind.dir)); err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		if err := os.RemoveAll(behind.dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(behind.dir, os.DirFS(lagging)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			c.start(behind)
			time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond) // where it is hit is left to chance
			if !behind.running() {
				t.Fatalf("round %d: it has ended by itself", round)
			}
			c.kill(behind)
		}
		c.start(behind)
		c.awaitReady(behind)
		eventually(t, "it has what the others have", func() bool {
			a := c.get(behind, "/v1/kv?prefix=small/&consistency=stale")
			return a.status == 200 && string(a.raw) == string(want.raw)
		})
		eventually(t, "no half snapshots are left (one may be on its way yet)", func() bool {
			left, _ := filepath.Glob(filepath.Join(behind.dir, "snapshots", "*.tmp"))
			return len(left) == 0
		})
		c.kill(behind)
	}
	c.start(behind)
	c.awaitReady(c.nodes...)
}
