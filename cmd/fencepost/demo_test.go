package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// running are the processes of this program file, which is this test's alone.
func running(t *testing.T, bin string) (pids []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil || len(links) == 0 {
		t.Skip("there is no /proc to see processes in")
	}
	for _, l := range links {
		if path, err := os.Readlink(l); err == nil && path == bin {
			pids = append(pids, strings.Split(l, "/")[2])
		}
	}
	return pids
}

// startDemo runs the demo with a directory of its own for what is temporary.
func startDemo(t *testing.T, bin, tmp string, args ...string) (cmd *exec.Cmd, out, errs *bytes.Buffer) {
	t.Helper()
	cmd, out, errs = exec.Command(bin, append([]string{"demo"}, args...)...), new(bytes.Buffer), new(bytes.Buffer)
	// Variables of a cluster that is in use must not reach it.
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "FENCEPOST_ENDPOINTS=http://127.0.0.1:1", "FENCEPOST_NAME=other")
	cmd.Stdout, cmd.Stderr = out, errs
	return cmd, out, errs
}

func wantNothingLeft(t *testing.T, bin, tmp string) {
	t.Helper()
	if pids := running(t, bin); len(pids) > 0 {
		t.Errorf("still running: %v", pids)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v %v", left, err)
	}
}

// The story runs to its end, keeps every promise, and leaves nothing behind.
func TestP4_DemoOfTheStaleWriter(t *testing.T) {
	t.Parallel()
	bin, tmp := build(t), t.TempDir()
	cmd, out, errs := startDemo(t, bin, tmp)
	began := time.Now()
	err := cmd.Run()
	if err != nil || errs.Len() > 0 {
		t.Fatalf("%v\n%s\n%s", err, out, errs)
	}
	if d := time.Since(began); d > time.Minute {
		t.Errorf("it took %s", d)
	}
	for _, want := range []string{"412 stale_token (newer_issued)", "10 of 10 kept", "\n6. A wakes"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if len(line) > 100 || strings.TrimRight(line, " ") != line {
			t.Errorf("a line that does not look well: %q", line)
		}
	}
	wantNothingLeft(t, bin, tmp)
}

// Ended in the middle, with A stopped, it leaves nothing behind either.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	bin, tmp := build(t), t.TempDir()
	for _, tt := range []struct {
		signal syscall.Signal
		at     string
	}{{syscall.SIGHUP, "1."}, {syscall.SIGTERM, "2."}, {syscall.SIGINT, "3."}} {
		cmd, _, errs := startDemo(t, bin, tmp)
		cmd.Stdout = nil
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var told strings.Builder
		for buf := make([]byte, 4096); !strings.Contains(told.String(), "\n"+tt.at); {
			n, err := out.Read(buf)
			told.Write(buf[:n])
			if err != nil {
				t.Fatalf("%v after %q: %s", err, told.String(), errs)
			}
		}
		if err := cmd.Process.Signal(tt.signal); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitRefused || !strings.Contains(errs.String(), "was ended") {
			t.Errorf("%s at %s: %v: %s", tt.signal, tt.at, err, errs)
		}
		wantNothingLeft(t, bin, tmp)
	}
}

// A demo that is killed takes its processes along.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	bin, tmp := build(t), t.TempDir()
	cmd, _, _ := startDemo(t, bin, tmp)
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its servers run", func() bool { return len(running(t, bin)) >= 4 })
	t.Cleanup(func() { // none, unless the test has failed
		for _, p := range running(t, bin) {
			if pid, err := strconv.Atoi(p); err == nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	cmd.Process.Kill()
	out.Close()
	cmd.Wait()
	eventually(t, "they are gone", func() bool { return len(running(t, bin)) == 0 })
}

func TestDemoJudgesBrokenPromises(t *testing.T) {
	for _, output := range []string{outputText, outputJSON} {
		var out bytes.Buffer
		d := &demo{env: &environment{stdout: &out, output: output}}
		d.found("P1", true, "order")
		d.found("P4", false, "fence")
		if err := d.judge(time.Second); exitCode(err) != exitRefused {
			t.Errorf("%s: exit %d with a broken promise: %v", output, exitCode(err), err)
		}
		if output == outputText {
			if !strings.Contains(out.String(), "BROKEN  P4  fence") || !strings.Contains(out.String(), "1 of 2 kept") {
				t.Errorf("got:\n%s", &out)
			}
			continue
		}
		var got struct {
			Kept     bool
			Promises []finding
			TookMS   int `json:"took_ms"`
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Kept || len(got.Promises) != 2 || got.TookMS != 1000 {
			t.Errorf("got %+v, %v", got, err)
		}
	}
}
