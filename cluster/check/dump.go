package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"

	"fencepost/fsm/fsmpb"
)

// dumpLine is a line of 'fencepost debug log -o json': the first has Info, each
// other one is an entry.
type dumpLine struct {
	Info *struct {
		Entries uint64 `json:"entries"` // lines that follow
	} `json:"info"`
	Index   uint64          `json:"index"`
	Term    uint64          `json:"term"`
	Type    string          `json:"type"`
	Command json.RawMessage `json:"command"`
	Error   string          `json:"error"`
}

// ReadEntries reads what 'fencepost debug log -o json' printed of one node. It
// fails unless all lines that the first one announces are there and no other, each
// entry can be decoded, indexes go up one by one, but for a restore, which jumps,
// and terms never fall: what is judged must be whole. The last entries may not have been committed; the dump's
// info, and the logs of the other nodes, tell.
func ReadEntries(r io.Reader) ([]Entry, error) {
	d := json.NewDecoder(bufio.NewReader(r))
	var head dumpLine
	if err := d.Decode(&head); err != nil {
		return nil, fmt.Errorf("read dump: %w", err)
	}
	if head.Info == nil {
		return nil, errors.New("read dump: the first line has no info")
	}
	var entries []Entry
	for {
		var l dumpLine
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read dump after %d entries: %w", len(entries), err)
		}
		e, err := l.entry()
		if err != nil {
			return nil, fmt.Errorf("read dump: entry %d: %w", l.Index, err)
		}
		if n := len(entries); n > 0 && (!follows(e, entries[n-1].Index) || e.Term < entries[n-1].Term) {
			return nil, fmt.Errorf("read dump: entry %d of term %d follows entry %d of term %d", e.Index, e.Term, entries[n-1].Index, entries[n-1].Term)
		}
		entries = append(entries, e)
	}
	if got := uint64(len(entries)); got != head.Info.Entries {
		return nil, fmt.Errorf("read dump: it has %d entries, and announces %d", got, head.Info.Entries)
	}
	return entries, nil
}

// follows says whether the entry can be the next one after an index.
func follows(e Entry, index uint64) bool {
	return e.Index == index+1 || e.Index > index && e.Command.GetRestoreCommit() != nil
}

func (l *dumpLine) entry() (e Entry, err error) {
	e = Entry{Index: l.Index, Term: l.Term}
	switch {
	case l.Info != nil || l.Index == 0 || l.Type == "":
		return e, errors.New("the line is no entry")
	case l.Error != "":
		return e, fmt.Errorf("it could not be decoded: %s", l.Error)
	case (l.Type == "command") != (l.Command != nil):
		return e, fmt.Errorf("of type %q, with a command: %t", l.Type, l.Command != nil)
	case l.Command == nil:
		return e, nil
	}
	e.Command = new(fsmpb.Command)
	if err := protojson.Unmarshal(l.Command, e.Command); err != nil {
		return e, err
	}
	if e.Command.Op == nil {
		return e, errors.New("the command is empty")
	}
	return e, nil
}
