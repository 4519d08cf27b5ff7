package fsm

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"fencepost/fsm/fsmpb"
)

// neverInTheFormat are enum values that no entry, outcome or record ever has.
func neverInTheFormat() []protoreflect.FullName {
	return []protoreflect.FullName{ // only events tell why somebody left a queue
		"fencepost.fsm.v1.REASON_TIMEOUT", "fencepost.fsm.v1.REASON_CANCELLED",
	}
}

// TestP14_VectorsHaveTheWholeSchema: every field of every command, outcome and
// record, and every value of an enum, is in the vectors, and first in those of the
// version that it came with. So what is added to the schema cannot be forgotten in
// the vectors, nor in the table that keeps a leader from proposing it too early.
func TestP14_VectorsHaveTheWholeSchema(t *testing.T) {
	first := map[protoreflect.FullName]int{}
	for i, dir := range vectorDirs(t) {
		see := func(name protoreflect.FullName) {
			if _, ok := first[name]; !ok {
				first[name] = i + 1
			}
		}
		for _, e := range jsonLines[vectorEntry](t, readVector(t, dir, "log.jsonl")) {
			eachName(parsed(t, e.Command, new(fsmpb.Command)), see)
			eachName(parsed(t, e.Outcome, new(fsmpb.Outcome)), see)
		}
		for _, name := range []string{"state.jsonl", "fields.jsonl"} {
			for _, line := range jsonLines[json.RawMessage](t, readVector(t, dir, name)) {
				eachName(parsed(t, line, new(fsmpb.Record)), see)
			}
		}
	}
	want := map[protoreflect.FullName]bool{}
	for _, m := range []proto.Message{new(fsmpb.Command), new(fsmpb.Outcome), new(fsmpb.Record)} {
		schemaOf(m.ProtoReflect().Descriptor(), want)
	}
	if len(want) < 150 {
		t.Fatalf("the schema has only %d names: the walk is wrong", len(want))
	}
	for name := range want {
		version, ok := first[name]
		switch never := slices.Contains(neverInTheFormat(), name); {
		case strings.HasPrefix(string(name), "fencepost.fsm.v1.BackupHeader.") || name == "fencepost.fsm.v1.Record.backup": // of backups alone
		case never && ok:
			t.Errorf("%s is in the vectors, and is said to be never in them", name)
		case !never && !ok:
			t.Errorf("%s is in no vector: add it to %s, and see docs/architecture.md, \"Upgrades\"", name, filepath.Join(formatDir, "story.txt"))
		case ok && since(name) != uint32(version):
			t.Errorf("%s came with version %d, and the table says %d", name, version, since(name))
		}
	}
}

func parsed[M proto.Message](t *testing.T, b []byte, m M) protoreflect.Message {
	t.Helper()
	if err := protojson.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	return m.ProtoReflect()
}

// schemaOf collects the names of all fields below a message, and of enum values
// that can be seen: 0 is not told from nothing.
func schemaOf(d protoreflect.MessageDescriptor, into map[protoreflect.FullName]bool) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if into[f.FullName()] {
			continue
		}
		into[f.FullName()] = true
		if f.Message() != nil {
			schemaOf(f.Message(), into)
		}
		for i := 0; f.Enum() != nil && i < f.Enum().Values().Len(); i++ {
			if v := f.Enum().Values().Get(i); v.Number() != 0 {
				into[v.FullName()] = true
			}
		}
	}
}

// TestP14_NeedsTheNewestOfItsFields: a command needs the version of the newest
// thing in it, at any depth.
func TestP14_NeedsTheNewestOfItsFields(t *testing.T) {
	for _, c := range someCommands() {
		names := map[protoreflect.FullName]bool{}
		eachName(c.ProtoReflect(), func(name protoreflect.FullName) { names[name] = true })
		newest := uint32(1)
		for name := range names {
			newest = max(newest, since(name))
		}
		if got := Needs(c); got != newest || got > Understands {
			t.Errorf("%v needs version %s, want %d, and %d at most", c, strconv.Itoa(int(got)), newest, Understands)
		}
		// Whatever is set is looked at.
		set := 0
		eachMessage(c.ProtoReflect(), func(m protoreflect.Message) {
			m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
				set++
				if !names[f.FullName()] {
					t.Errorf("%s is not looked at", f.FullName())
				}
				if f.Enum() != nil && !names[f.Enum().Values().ByNumber(v.Enum()).FullName()] {
					t.Errorf("the value of %s is not looked at", f.FullName())
				}
				return true
			})
		})
		if set == 0 {
			t.Errorf("%v has nothing set", c)
		}
	}
}
