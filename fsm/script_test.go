package fsm

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A script is a text file of cases. A case is commands, a line of dashes, and
// what the commands print, up to the next empty line:
//
//	# who comes first has it
//	acquire db holder=a ttl=10s
//	acquire db holder=b ttl=10s
//	----
//	1: ok holder=a token=1 ttl=10s left=10s
//	  granted db token=1 holder=a
//	2: lease_held holder=a token=1 left=10s
//
// Indented lines before the dashes belong to the command above them, indented
// lines below them to the outcome above them. The commands are those of
// script_commands_test.go. `go test -run TestScripts -update` writes what the
// code prints into the files: read the diff.
var update = flag.Bool("update", false, "rewrite the expected output of the scripts")

const scriptDashes = "----"

// A scriptCase is one case of a script file.
type scriptCase struct {
	head   []string // comments, blank lines and commands, as written
	line   int      // of the first command
	want   []string
	dashes bool // false: what follows the last case
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("find scripts: %d files, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cases := readScript(string(text))
	if len(cases) == 0 || !cases[0].dashes {
		t.Fatalf("%s has no case", file)
	}
	run := newScriptRun(t)
	var out strings.Builder
	for _, c := range cases {
		got := c.run(run, file)
		if !*update && c.dashes {
			if !slices.Equal(got, c.want) {
				t.Errorf("%s:%d: got\n%s\nwant\n%s", file, c.line, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		}
		c.want = got
		c.writeTo(&out)
	}
	switch rewritten := out.String(); {
	case *update:
		if err := os.WriteFile(file, []byte(rewritten), 0o644); err != nil {
			t.Fatal(err)
		}
	case !t.Failed() && rewritten != string(text):
		t.Errorf("%s is not laid out as -update would write it", file)
	}
}

// readScript splits a script into its cases.
func readScript(text string) []*scriptCase {
	var cases []*scriptCase
	c, below := &scriptCase{}, false
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		switch {
		case below && line == "":
			cases = append(cases, c)
			c, below = &scriptCase{}, false
		case below:
			c.want = append(c.want, line)
		case line == scriptDashes:
			c.dashes, below = true, true
		default:
			if c.line == 0 && line != "" && line[0] != '#' {
				c.line = i + 1
			}
			c.head = append(c.head, line)
		}
	}
	if c.dashes || len(c.head) > 0 {
		cases = append(cases, c)
	}
	return cases
}

// run runs the commands of the case, each with the indented lines below it, and
// returns what they print.
func (c *scriptCase) run(r *scriptRun, file string) []string {
	var got []string
	for i := 0; i < len(c.head); {
		line := c.head[i]
		i++
		if line == "" || line[0] == '#' {
			continue
		}
		var below []string
		for i < len(c.head) && strings.HasPrefix(c.head[i], "  ") {
			below = append(below, strings.TrimSpace(c.head[i]))
			i++
		}
		r.where = file + ": " + line
		got = append(got, r.command(line, below)...)
	}
	return got
}

func (c *scriptCase) writeTo(out *strings.Builder) {
	if out.Len() > 0 {
		out.WriteString("\n")
	}
	lines := c.head
	if c.dashes {
		lines = append(append(append([]string(nil), c.head...), scriptDashes), c.want...)
	}
	for _, line := range lines {
		out.WriteString(line + "\n")
	}
}
