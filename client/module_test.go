package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const program = `package main

import (
	"context"
	"fmt"
	"os"

	"fencepost/client"
)

func main() {
	c, err := client.New(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer c.Close()
	err = c.Do(context.Background(), "jobs/nightly", func(ctx context.Context, l *client.Lease) error {
		_, err := c.Put(ctx, "reports/today", []byte("done"), l.Guard(client.Held))
		return err
	})
	fmt.Println(err)
}
`

// A module of somebody else's that imports this package by a replace builds with
// nothing but the standard library and ours: no Raft, no third party, no network.
func TestAnotherModuleBuildsWithoutRaft(t *testing.T) {
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.go": program,
		"go.mod":  "module example.com/user\n\ngo 1.26.0\n\nrequire fencepost v0.0.0\n\nreplace fencepost => " + repository + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GOPROXY=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("build", "-o", filepath.Join(dir, "program"), ".")
	var ours []string
	for _, p := range strings.Fields(run("list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")) {
		switch p {
		case "fencepost/client", "fencepost/httpapi/wire", "example.com/user":
			ours = append(ours, p)
		default:
			t.Errorf("the build needs %s", p)
		}
	}
	if len(ours) != 3 {
		t.Errorf("the build has %q", ours)
	}
}
