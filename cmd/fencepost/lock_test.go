package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// B66: wrapper, command and what the command has started end together, and the
// lease is released when none of them is left.
func TestB66_WrapperCommandAndLeaseEndTogether(t *testing.T) {
	t.Parallel()
	c := startProcesses(t, 1)
	t.Run("lease is taken away", func(t *testing.T) { leaseTakenAway(t, c) })
	t.Run("ended while it waits", func(t *testing.T) { lockEndedWhileItWaits(t, c) })

	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run("signal "+s.String(), func(t *testing.T) {
			t.Parallel()
			// A shell's background jobs ignore INT and QUIT, so with these the
			// grandchild is what is left behind.
			name := fmt.Sprintf("signal-%d", s)
			l := c.lock(t, name, "--", "sh", "-c", "sleep 300 & echo $$ $!; wait")
			pids := l.pids()
			l.signal(s)
			l.wantExit(128 + int(s))
			wantGone(t, pids)
			c.wantFree(t, name)
		})
	}

	t.Run("grandchild outlives the command", func(t *testing.T) {
		t.Parallel()
		first := c.lock(t, "grandchild", "--", "sh", "-c", `(trap "" TERM; sleep 300) & echo $!; exit 7`)
		pids := first.pids()
		// Granted at the release: at that moment nothing is left.
		second := c.lock(t, "grandchild", "--", "sh", "-c", fmt.Sprintf("kill -0 %d 2>/dev/null && echo alive || echo gone", pids[0]))
		if got := second.lines(1)[0]; got != "gone" {
			t.Errorf("when the next has the lease the grandchild is %s", got)
		}
		first.wantExit(7)
		second.wantExit(0)
		c.wantFree(t, "grandchild")
	})

	t.Run("command traps TERM and cleans up", func(t *testing.T) {
		t.Parallel()
		l := c.lock(t, "cleans", "--", "sh", "-c", `trap "echo cleaned; exit 3" TERM; echo $$; while :; do sleep 0.05; done`)
		pids := l.pids()
		l.signal(syscall.SIGTERM)
		l.wantExit(3)
		if got := l.written(); !slices.Equal(got[1:], []string{"cleaned"}) {
			t.Errorf("it wrote %q", got)
		}
		wantGone(t, pids)
		c.wantFree(t, "cleans")
	})

	t.Run("command ignores TERM", func(t *testing.T) {
		t.Parallel()
		l := c.lock(t, "ignores", "--kill-after", "300ms", "--", "sh", "-c", `trap "" TERM; sleep 300 & echo $$ $!; wait`)
		pids := l.pids()
		l.signal(syscall.SIGTERM)
		l.wantExit(128 + 9)
		wantGone(t, pids)
		c.wantFree(t, "ignores")
	})

	t.Run("stopped command gets TERM", func(t *testing.T) {
		t.Parallel()
		l := c.lock(t, "stopped", "--", "sh", "-c", `trap "exit 4" TERM; echo $$; while :; do sleep 0.05; done`)
		pids := l.pids()
		if err := syscall.Kill(pids[0], syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		l.signal(syscall.SIGTERM)
		l.wantExit(4)
	})

	t.Run("command is killed", func(t *testing.T) {
		t.Parallel()
		l := c.lock(t, "killed", "--", "sh", "-c", "echo $$; sleep 300")
		pids := l.pids()
		began := time.Now()
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l.wantExit(128 + 9)
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %s", d)
		}
		c.wantFree(t, "killed")
	})

	t.Run("wrapper is killed", func(t *testing.T) {
		t.Parallel()
		l := c.lock(t, "orphan", "--ttl", "1s", "--", "sh", "-c", `trap "" TERM; echo $$ $FENCEPOST_TOKEN; while :; do sleep 0.05; done`)
		pid, token := l.pids()[0], uint64(l.pids()[1])
		t.Cleanup(func() {
			if t.Failed() && alive(pid) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		})
		if a := c.put("orphan", token, "mine"); a.status != 200 {
			t.Fatalf("write under the lease: %s", a)
		}
		l.signal(syscall.SIGKILL)
		eventually(t, "the command is gone", func() bool { return !alive(pid) })
		// What it may still have on the way is fenced.
		next := c.lock(t, "orphan", "--", "true")
		next.wantExit(0)
		if a := c.put("orphan", token, "late"); a.status != 412 || a.text("code") != "stale_token" {
			t.Errorf("late write: %s", a)
		}
	})
}

// The lease is lost in mid-run, and the cluster says so: a TERM, and soon a
// KILL.
func leaseTakenAway(t *testing.T, c *processes) {
	t.Parallel()
	l := c.lock(t, "taken", "--ttl", "900ms", "--", "sh", "-c", `trap "echo asked" TERM; echo $$ $FENCEPOST_TOKEN; while :; do sleep 0.01; done`)
	pid, token := l.pids()[0], uint64(l.pids()[1])
	if a := c.release("taken", token); a.body["released"] != true {
		t.Fatalf("release: %s", a)
	}
	l.wantExit(exitLost)
	if got := l.written(); !slices.Equal(got[1:], []string{"asked"}) {
		t.Errorf("it wrote %q, want that it was asked to end", got)
	}
	wantGone(t, []int{pid})
	if !strings.Contains(l.errs.String(), "lost: released") {
		t.Errorf("stderr: %s", l.errs)
	}
}

// B68: the command's exit status is the wrapper's, and its arguments are its own.
func TestB68_ExitStatusAndArguments(t *testing.T) {
	t.Parallel()
	c := startProcesses(t, 1)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("no program\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("no program\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Run("environment", func(t *testing.T) { lockEnvironment(t, c) })
	t.Run("stdin", func(t *testing.T) { lockPassesStdin(t, c) })
	c.mustAcquire("held", time.Hour)
	echo := `for a; do printf "[%s]\n" "$a"; done`
	for _, tt := range []struct {
		name string
		args []string
		code int
		want []string // on stdout
		errs string   // in stderr
	}{
		{name: "success", args: []string{"a", "--", "true"}},
		{name: "its own code", args: []string{"a", "--", "sh", "-c", "exit 7"}, code: 7},
		{name: "one of ours", args: []string{"a", "--", "sh", "-c", "exit 255"}, code: 255},
		{name: "signal", args: []string{"a", "--", "sh", "-c", "kill -9 $$"}, code: 137},
		{name: "not found", args: []string{"a", "--", "no-such-command"}, code: 127, errs: "no-such-command"},
		{name: "no such file", args: []string{"a", "--", "/no/such/command"}, code: 127, errs: "/no/such/command"},
		{name: "no permission", args: []string{"a", "--", plain}, code: 126, errs: "permission denied"},
		{name: "no program", args: []string{"a", "--", garbage}, code: 126, errs: "exec format error"},
		{name: "directory", args: []string{"a", "--", "/"}, code: 126},
		{
			name: "arguments", args: []string{"--ttl", "5s", "a", "--", "sh", "-c", echo, "sh", "-v", "--ttl", "two words", `"quoted"`, "$HOME", "", "--", "*"},
			want: []string{"[-v]", "[--ttl]", "[two words]", `["quoted"]`, "[$HOME]", "[]", "[--]", "[*]"},
		},
		{name: "held", args: []string{"held", "--wait", "0s", "--", "echo", "ran"}, code: exitNotAcquired, errs: `"test" holds it`},
		{name: "held for longer than the wait", args: []string{"held", "--wait", "200ms", "--", "echo", "ran"}, code: exitNotAcquired, errs: "not acquired"},
		{name: "no node", args: []string{"a", "--wait", "0s", "--timeout", "300ms", "--endpoints", "http://127.0.0.1:1", "--", "echo", "ran"}, code: exitNotAcquired, errs: "nothing was changed"},
		{name: "not found and held", args: []string{"held", "--", "no-such-command"}, code: 127},
		{name: "no dash", args: []string{"a", "true"}, code: exitUsage, errs: "then --"},
		{name: "no name", args: []string{"--", "true"}, code: exitUsage, errs: "then --"},
		{name: "no command", args: []string{"a", "--"}, code: exitUsage, errs: "then --"},
		{name: "ttl", args: []string{"a", "--ttl", "0s", "--", "true"}, code: exitUsage, errs: "TTL"},
		{name: "slots", args: []string{"sem", "--slots", "2", "--take", "2", "--grace", "1s", "--holder", "me", "--", "true"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := c.lock(t, tt.args...)
			l.wantExit(tt.code)
			if got := l.written(); !slices.Equal(got, tt.want) {
				t.Errorf("stdout %q, want %q", got, tt.want)
			}
			if got := l.errs.String(); !strings.Contains(got, tt.errs) || (tt.errs == "" && tt.code < 3 && got != "") {
				t.Errorf("stderr %q, want %q in it", got, tt.errs)
			}
		})
	}
	c.wantFree(t, "a")
}

// A lock that is told to end while it waits gives its place back.
func lockEndedWhileItWaits(t *testing.T, c *processes) {
	t.Parallel()
	c.mustAcquire("busy", time.Hour)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		l := c.lock(t, "busy", "--", "echo", "ran")
		c.untilQueued("busy", 1)
		l.signal(s)
		l.wantExit(exitNotAcquired)
		if got := l.written(); len(got) > 0 {
			t.Errorf("%s: the command ran", s)
		}
		if a := c.get(c.nodes[0], "/v1/leases/busy"); a.number("queue_length") != 0 {
			t.Errorf("%s: it still stands in the queue: %s", s, a)
		}
	}
}

// What the command runs finds lease, token and cluster in its environment, and not
// the flags of the lock around it.
func lockEnvironment(t *testing.T, c *processes) {
	t.Parallel()
	env := append(os.Environ(), "FENCEPOST_ENDPOINTS="+c.urls(), "FENCEPOST_TTL=7s", "FENCEPOST_HOLDER=outer", "FENCEPOST_TIMEOUT=9s", "FENCEPOST_TOKEN=1", "FENCEPOST_AUTH_TOKEN=outer")
	script := `set -e
echo "$FENCEPOST_LEASE ${FENCEPOST_TTL-none} ${FENCEPOST_HOLDER-none} $FENCEPOST_TIMEOUT $FENCEPOST_AUTH_TOKEN"
[ "$FENCEPOST_ENDPOINTS" = "$2" ]
"$1" kv put env/key value >/dev/null
"$1" kv get env/key; echo
"$1" renew env/lease >/dev/null
"$1" lock env/inner -- sh -c 'echo "$FENCEPOST_LEASE"; [ "$FENCEPOST_TOKEN" -gt "$0" ]' "$FENCEPOST_TOKEN"
"$1" leases env/lease -o json`
	l := startLock(t, c.bin, env, "env/lease", "--auth-token", "secret", "--", "sh", "-c", script, "sh", c.bin, c.urls())
	l.wantExit(0)
	got := l.written()
	if len(got) < 3 || !slices.Equal(got[:3], []string{"env/lease none none 9s secret", "value", "env/inner"}) {
		t.Errorf("got %q", got)
	}
	if all := strings.Join(got, "\n"); !strings.Contains(all, `"ttl_ms": 7000`) || !strings.Contains(all, `"holder": "outer"`) {
		t.Errorf("the lease does not have what the environment asked for:\n%s", all)
	}
}

// Nothing of it is eaten, and nothing is in between: a lock in a pipe passes bytes.
func lockPassesStdin(t *testing.T, c *processes) {
	t.Parallel()
	cmd := exec.Command(c.bin, "lock", "pipe", "--endpoints", c.urls(), "--", "cat")
	want := strings.Repeat("line\x00\n", 50_000)
	cmd.Stdin = strings.NewReader(want)
	got, err := cmd.Output()
	if err != nil || string(got) != want {
		t.Errorf("%d of %d bytes came through: %v", len(got), len(want), err)
	}
}
