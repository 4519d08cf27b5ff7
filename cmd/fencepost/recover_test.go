package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// consoleLines are the commands of a section of a document, as "host$ command".
func consoleLines(t *testing.T, file, section string) (lines []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(b), "\n## "+section+"\n")
	if !found {
		t.Fatalf("%s has no section %q", file, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(text, -1) {
		lines = append(lines, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	return lines
}

// asWritten runs such a line on one of the processes. The service manager is this
// test, and its data directory is the one that documents name.
func (c *processes) asWritten(line string) (output string) {
	c.t.Helper()
	host, command, ok := strings.Cut(line, "$ ")
	var n *process
	for _, p := range c.nodes {
		if p.name == host {
			n = p
		}
	}
	if !ok || n == nil {
		c.t.Fatalf("line %q is of no node", line)
	}
	switch command {
	case "systemctl stop fencepost":
		if n.running() {
			c.kill(n)
		}
		return ""
	case "systemctl start fencepost":
		c.start(n)
		c.awaitReady(n)
		return ""
	}
	sh := exec.Command("sh", "-c", strings.ReplaceAll(command, "/var/lib/fencepost", n.dir))
	sh.Env = append(os.Environ(), "PATH="+filepath.Dir(c.bin)+":"+os.Getenv("PATH"), "FENCEPOST_ENDPOINTS="+n.url)
	sh.Stdin = strings.NewReader("yes\n")
	out, err := sh.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// The cluster goes on past the survivor, a resource outside remembers the greatest
// token, and the other two are lost. Recovered as docs/operations.md says, line by
// line: all new tokens are above all old ones, those that the survivor never saw
// too; old holders and old tokens are refused on every key; a former member that is not
// wiped gets in nowhere; wiped ones join, and any two of the three serve.
func TestP1_P5_RecoverFromASurvivorThatLagged(t *testing.T) {
	lines := consoleLines(t, "../../docs/operations.md", "Recovery from one survivor")
	c := startProcesses(t, 3)
	lagged := c.nodes[2]
	eventually(t, "the survivor knows all members", func() bool {
		raw := string(c.get(lagged, "/v1/cluster?consistency=stale").raw)
		return strings.Contains(raw, `"n1"`) && strings.Contains(raw, `"n2"`) && strings.Contains(raw, `"n3"`)
	})
	known := c.mustAcquire("known", time.Hour)
	expect(t, "write", c.put("k", known, "before"), 200, "", "")
	c.awaitKey(lagged, "k", "before")
	c.kill(lagged)
	c.leader() // of the two
	var old []uint64
	for i := 0; len(old) == 0 || old[len(old)-1] < 200; i++ {
		old = append(old, c.mustAcquire(fmt.Sprintf("lost-%d", i), time.Hour))
	}
	outside := old[len(old)-1] // a resource that checks tokens itself remembers it
	expect(t, "write that will be lost", c.put("k", outside, "acknowledged"), 200, "", "")
	expect(t, "write that will be lost", c.put("only-there", outside, "acknowledged"), 200, "", "")
	c.kill(c.nodes[0], c.nodes[1])

	until := func(last string) (output string) {
		t.Helper()
		for len(lines) > 0 {
			line := lines[0]
			lines = lines[1:]
			output = c.asWritten(line)
			if strings.HasSuffix(line, last) {
				return output
			}
		}
		t.Fatalf("docs/operations.md has no more %q", last)
		return ""
	}
	said := until("fencepost recover --data-dir /var/lib/fencepost")
	for _, want := range []string{"recovered to", "is lost", "1h0m0s", "Wipe", "n1 and n2", "only \"yes\""} {
		if !strings.Contains(strings.ToLower(said), strings.ToLower(want)) {
			t.Errorf("it does not tell %q:\n%s", want, said)
		}
	}
	c.checkRecoveredLog(lagged)
	until("fencepost cluster status")
	eventually(t, "it is a cluster of one", func() bool { // which it writes down first
		out := c.asWritten("n3$ fencepost cluster status")
		return strings.Contains(out, "OK: 1 of 1 voters are up") && strings.Contains(out, "leader n3")
	})
	c.nothingOldCounts(known, old, outside)
	c.formerMemberStaysOut(c.nodes[0], lagged)

	out := until("fencepost cluster status")
	if len(lines) != 0 {
		t.Errorf("not run: %q", lines)
	}
	eventually(t, "three voters", func() bool {
		out = c.asWritten("n3$ fencepost cluster status")
		return strings.Contains(out, "OK: 3 of 3 voters are up")
	})
	for _, gone := range c.nodes {
		c.kill(gone)
		l := c.leader(gone)
		if token := c.mustAcquire("without-"+gone.name, time.Minute); token <= outside {
			t.Errorf("without %s, led by %s: token %d after %d", gone.name, l.name, token, outside)
		}
		c.start(gone)
		c.awaitReady(c.nodes...)
		eventually(t, "all are healthy again", func() bool {
			return strings.Contains(c.asWritten("n3$ fencepost cluster status"), "OK: 3 of 3 voters are up")
		})
	}
}

func (c *processes) awaitKey(n *process, key, value string) {
	c.t.Helper()
	eventually(c.t, n.name+" has "+key, func() bool {
		return string(c.get(n, "/v1/kv/"+key+"?consistency=stale").raw) == value
	})
}

// checkRecoveredLog reads the recovered directory as an operator would.
func (c *processes) checkRecoveredLog(n *process) {
	c.t.Helper()
	out := c.asWritten(n.name + "$ fencepost debug log --data-dir /var/lib/fencepost -o json")
	if !strings.Contains(out, `"snapshot":{"index":`) || strings.Contains(out, `"type"`) {
		c.t.Errorf("the log of the recovered directory is\n%s", out)
	}
}

// nothingOldCounts checks tokens and holders from before the recovery.
func (c *processes) nothingOldCounts(known uint64, old []uint64, outside uint64) {
	t := c.t
	t.Helper()
	if got := c.mustDo("GET", "/v1/kv/k", ""); string(got.raw) != "before" {
		t.Errorf("k is %s", got)
	}
	renewed := c.mustDo("POST", "/v1/renew", fmt.Sprintf(`{"leases":[{"name":"known","token":%d},{"name":"lost-0","token":%d}]}`, known, old[0]))
	for _, r := range renewed.list("results") {
		if r["code"] != "lease_lost" || r["reason"] != "restored" {
			t.Errorf("an old holder's renewal: %v", r)
		}
	}
	if len(renewed.list("results")) != 2 {
		t.Errorf("renewals: %s", renewed)
	}
	// Its holder may go on for its TTL, so nobody else gets it.
	taken := c.mustDo("POST", "/v1/leases/known/acquire", `{"holder":"new"}`)
	if taken.status != 409 || taken.text("code") != "lease_held" || taken.number("grace_ms") == 0 {
		t.Errorf("a lease that is kept for its old holder: %s", taken)
	}
	fresh := c.mustAcquire("lost-0", time.Hour)
	if fresh <= outside {
		t.Errorf("token %d after %d, which a resource outside remembers", fresh, outside)
	}
	for _, token := range append([]uint64{known, outside}, old...) {
		for _, key := range []string{"k", "only-there", "new"} {
			for _, guard := range []string{"latest", "held"} {
				a := c.put(key, token, "late", "Fencing-Guard", guard)
				if a.status != 412 || a.text("code") != "stale_token" {
					t.Fatalf("old token %d on %s: %s", token, key, a)
				}
			}
		}
	}
	for _, key := range []string{"k", "only-there"} {
		expect(t, "the new holder writes", c.put(key, fresh, "after"), 200, "", "")
	}
}

// formerMemberStaysOut starts a former member that nobody has wiped.
func (c *processes) formerMemberStaysOut(former, recovered *process) {
	t := c.t
	t.Helper()
	c.start(former)
	eventually(t, "the former member is turned away", func() bool {
		b, err := os.ReadFile(recovered.dir + ".log")
		return err == nil && bytes.Contains(b, []byte("refused a Raft connection of another cluster"))
	})
	if nodes := c.get(recovered, "/v1/cluster").list("nodes"); len(nodes) != 1 {
		t.Errorf("the recovered cluster has %d members: %v", len(nodes), nodes)
	}
	if a := c.get(former, "/readyz"); a.status == 200 {
		t.Errorf("the former member serves: %s", a)
	}
	c.kill(former)
}

// Whoever does not say yes has changed nothing, and the directory stays one's own.
func TestRecoverAsks(t *testing.T) {
	c := startProcesses(t, 1)
	n := c.nodes[0]
	token := c.mustAcquire("db", time.Hour)
	if out, code := runWith(t, "", "recover", "--data-dir", n.dir, "--yes"); code != exitRefused || !strings.Contains(out, "in use") {
		t.Errorf("beside its node: exit %d\n%s", code, out)
	}
	c.kill(n)
	for _, answer := range []string{"", "y\n", "no\nyes\n"} {
		if out, code := runWith(t, answer, "recover", "--data-dir", n.dir); code != exitRefused || !strings.Contains(out, "nothing was changed") {
			t.Errorf("answer %q: exit %d\n%s", answer, code, out)
		}
	}
	for _, args := range [][]string{{"recover"}, {"recover", "--data-dir", n.dir, "-o", "json"}} {
		if out, code := runWith(t, "", args...); code != exitUsage {
			t.Errorf("%q: exit %d\n%s", args, code, out)
		}
	}
	if out, code := runWith(t, "", "recover", "--data-dir", t.TempDir(), "--yes"); code != exitRefused || !strings.Contains(out, "no data directory") {
		t.Errorf("an empty directory: exit %d\n%s", code, out)
	}
	c.start(n)
	c.awaitReady(n)
	expect(t, "write", c.put("k", token, "still mine"), 200, "", "")
}

func runWith(t *testing.T, stdin string, args ...string) (output string, code int) {
	t.Helper()
	var out bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(stdin), &out, &out)
	return out.String(), code
}
