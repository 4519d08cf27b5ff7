package check

import (
	"strings"
	"testing"
)

// What is not whole, or in order, is not judged.
func TestReadEntriesTakesOnlyAWholeDump(t *testing.T) {
	const (
		head = `{"info":{"node":"n1","entries":3}}`
		e7   = `{"index":7,"term":2,"type":"noop"}`
		e8   = `{"index":8,"term":2,"type":"command","command":{"now_ms":"9007199254740993","acquire":{"name":"a","ttl_ms":"1000"}}}`
		e9   = `{"index":9,"term":3,"type":"command","command":{"advance":{}}}`
	)
	read := func(lines ...string) ([]Entry, error) {
		return ReadEntries(strings.NewReader(strings.Join(lines, "\n")))
	}
	got, err := read(head, e7, e8, e9)
	if err != nil || len(got) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	if got[0].Index != 7 || got[0].Term != 2 || got[0].Command != nil {
		t.Errorf("%+v", got[0])
	}
	if c := got[1].Command; c.GetNowMs() != 9007199254740993 || c.GetAcquire().GetName() != "a" || c.GetAcquire().GetTtlMs() != 1000 {
		t.Errorf("%+v", got[1])
	}
	if got[2].Term != 3 || got[2].Command.GetAdvance() == nil {
		t.Errorf("%+v", got[2])
	}
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"nothing":             {nil, "EOF"},
		"no head":             {[]string{e7, e8, e9}, "no info"},
		"cut between lines":   {[]string{head, e7, e8}, "has 2 entries, and announces 3"},
		"cut within a line":   {[]string{head, e7, e8, e9[:20]}, "after 2 entries"},
		"a gap":               {[]string{head, e7, e9}, "entry 9 of term 3 follows entry 7"},
		"a falling term":      {[]string{head, e7, e8, strings.Replace(e9, `:3`, `:1`, 1)}, "entry 9 of term 1 follows"},
		"two dumps":           {[]string{head, e7, e8, e9, head}, "no entry"},
		"an unknown field":    {[]string{head, e7, e8, strings.Replace(e9, "advance", "retreat", 1)}, "retreat"},
		"an empty command":    {[]string{head, e7, e8, strings.Replace(e9, `"advance":{}`, "", 1)}, "empty"},
		"a missing command":   {[]string{head, `{"index":7,"term":2,"type":"command"}`}, "with a command: false"},
		"an unwanted one":     {[]string{head, strings.Replace(e8, `"type":"command"`, `"type":"noop"`, 1)}, "with a command: true"},
		"one undecodable":     {[]string{head, `{"index":7,"term":2,"type":"command","error":"no","data":"/w=="}`}, "could not be decoded: no"},
		"more than announced": {[]string{strings.Replace(head, "3", "2", 1), e7, e8, e9}, "announces 2"},
	} {
		if got, err := read(c.lines...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want an error with %q", name, got, err, c.want)
		}
	}
}
