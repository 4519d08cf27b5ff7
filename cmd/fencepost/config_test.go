package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fencepost.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A flag goes before the environment, and that before the file.
func TestConfigPrecedence(t *testing.T) {
	n := workingNode(t)
	file := writeConfig(t, `
endpoints: ["`+n.URL+`", "http://127.0.0.1:1"]
auth-token: file
acquire:
  holder: file
  metadata: {team: blue}
kv:
  put:
    guard: held
`)
	for _, tt := range []struct {
		name   string
		env    map[string]string
		args   []string
		bearer string
		body   string
	}{
		{"file", nil, nil, "Bearer file", `{"holder":"file","ttl_ms":10000,"metadata":{"team":"blue"},"slots":1,"take":1}`},
		{"environment", map[string]string{"FENCEPOST_HOLDER": "env", "FENCEPOST_AUTH_TOKEN": "env"}, nil, "Bearer env", `{"holder":"env","ttl_ms":10000,"metadata":{"team":"blue"},"slots":1,"take":1}`},
		{"flag", map[string]string{"FENCEPOST_HOLDER": "env", "FENCEPOST_AUTH_TOKEN": "env"}, []string{"--holder", "flag", "--auth-token", "flag"}, "Bearer flag", `{"holder":"flag","ttl_ms":10000,"metadata":{"team":"blue"},"slots":1,"take":1}`},
		{"empty variable", map[string]string{"FENCEPOST_HOLDER": ""}, nil, "Bearer file", `{"holder":"file","ttl_ms":10000,"metadata":{"team":"blue"},"slots":1,"take":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("FENCEPOST_CONFIG", file)
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			code, _, stderr := command(t, "", append([]string{"acquire", "jobs/a"}, tt.args...)...)
			if code != 0 {
				t.Fatalf("exit %d: %s", code, stderr)
			}
			r, body := n.last(t)
			if got := r.Header.Get("Authorization"); got != tt.bearer || body != tt.body {
				t.Errorf("got %q and %s", got, body)
			}
		})
	}
	t.Run("nested", func(t *testing.T) {
		code, _, stderr := command(t, "", "kv", "put", "k", "v", "--token", "5", "--config", file)
		if code != 0 {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		if r, _ := n.last(t); r.Header.Get("Fencing-Guard") != "held" {
			t.Errorf("guard %q", r.Header.Get("Fencing-Guard"))
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"endpoint: [a]", `unknown key "endpoint"`},
		{"kv:\n  put:\n    gard: held", `line 3: unknown key "gard"`},
		{"server:\n  nam: n1", `unknown key "nam"`},
		{"timeout: 5s\ntimeout: 6s", "timeout"},
		{"timeout: soon", "line 1: timeout"},
		{"- a", "must be a mapping"},
		{"kv: 3", "must be a mapping"},
		{"config: other", `unknown key "config"`},
		{"endpoints: [[a]]", "list of plain values"},
		{"a: [", "yaml"},
	} {
		code, _, stderr := command(t, "", "leases", "--config", writeConfig(t, tt.text))
		if code != exitUsage || !strings.Contains(stderr, tt.want) {
			t.Errorf("%q: exit %d, want %d with %q: %s", tt.text, code, exitUsage, tt.want, stderr)
		}
	}
	for _, text := range []string{"", "# nothing", "kv:\n"} {
		if code, stdout, stderr := command(t, "", "version", "--config", writeConfig(t, text)); code != 0 || stdout == "" {
			t.Errorf("%q: exit %d: %s", text, code, stderr)
		}
	}
	t.Setenv("FENCEPOST_TIMEOUT", "soon")
	if code, _, stderr := command(t, "", "leases"); code != exitUsage || !strings.Contains(stderr, "FENCEPOST_TIMEOUT") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
