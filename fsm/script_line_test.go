package fsm

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"fencepost/fsm/fsmpb"
)

// scriptLine is a command's words: verb, name, and name=value arguments.
type scriptLine struct {
	verb, name string
	args       map[string]string
	used       map[string]bool
	names      map[string]uint64
	fail       func(format string, args ...any)
}

func (r *scriptRun) parse(line string) *scriptLine {
	l := &scriptLine{args: map[string]string{}, used: map[string]bool{}, names: r.names}
	r.names["next"] = r.next
	l.fail = func(format string, args ...any) {
		r.t.Helper()
		r.t.Fatalf("%s: %s", r.where, fmt.Sprintf(format, args...))
	}
	for i, word := range strings.Fields(line) {
		name, value, ok := strings.Cut(word, "=")
		switch {
		case i == 0:
			l.verb = word
		case ok || i > 1:
			l.args[name] = value
		default:
			l.name = word
		}
	}
	return l
}

func (l *scriptLine) arg(name string) string { l.used[name] = true; return l.args[name] }
func (l *scriptLine) has(name string) bool   { l.used[name] = true; _, ok := l.args[name]; return ok }

func (l *scriptLine) num(name string) uint64 {
	if !l.has(name) {
		return 0
	}
	base, plus, _ := strings.Cut(l.arg(name), "+")
	n, ok := l.names[base]
	if !ok {
		n = parseNum(l, base)
	}
	if plus != "" {
		n += parseNum(l, plus)
	}
	return n
}

func parseNum(l *scriptLine, s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		l.fail("%v", err)
	}
	return n
}

func (l *scriptLine) ms(name string) uint64 {
	if !l.has(name) {
		return 0
	}
	return parseMS(l, l.arg(name))
}

func parseMS(l *scriptLine, s string) uint64 {
	d, err := time.ParseDuration(s)
	if err != nil {
		l.fail("%v", err)
	}
	return uint64(d.Milliseconds())
}

// request is what the edge makes of an Idempotency-Key: the digest is of
// everything that was asked but the key, and how long to wait. A cancel has the
// key and the path of its acquire, and no digest.
func (l *scriptLine) request(below []string) *fsmpb.Request {
	if !l.has("key") {
		return nil
	}
	if l.verb == "cancel" {
		return &fsmpb.Request{Key: l.arg("key"), Path: "acquire " + l.name, ServerMade: l.has("server")}
	}
	asked, unasked := []string{}, []string{"key", "server", "principal", "read-term", "as", "wait"}
	for _, name := range slices.Sorted(maps.Keys(l.args)) {
		if !slices.Contains(unasked, name) {
			asked = append(asked, name+"="+l.args[name])
		}
	}
	asked = append(asked, below...)
	return &fsmpb.Request{
		Key: l.arg("key"), Path: l.verb + " " + l.name, Digest: []byte(strings.Join(asked, " ")), ServerMade: l.has("server"),
	}
}
