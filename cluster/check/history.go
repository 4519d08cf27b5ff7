package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"fencepost/fsm/fsmpb"
)

// An Exchange is one HTTP request and its answer, if one came: one attempt, so a
// call that was repeated is several, with one Key. It is never changed once it is in
// a history.
type Exchange struct {
	ID     int    `json:"id"`     // in the order of sending, from 1
	Client string `json:"client"` // who sent it

	// Start is just before it was sent, End just after its answer was read whole, in
	// nanoseconds on one clock for all; End 0: no whole answer came.
	Start int64 `json:"start"`
	End   int64 `json:"end,omitempty"`

	Method string            `json:"method"`
	Path   string            `json:"path"` // escaped, with the query
	Key    string            `json:"key,omitempty"`
	Header map[string]string `json:"header,omitempty"` // of the request: Fencing-…, If-…, Content-Type
	Body   []byte            `json:"body,omitempty"`

	// Unsent: no connection was made, so surely nothing arrived.
	Unsent bool `json:"unsent,omitempty"`
	// Sent is how many connections it was given, if that is known: net/http by itself
	// repeats what has a key when a kept connection breaks.
	Sent int `json:"sent,omitempty"`

	Status int               `json:"status,omitempty"` // 0: no answer
	Index  uint64            `json:"index,omitempty"`  // Fencepost-Index
	Node   string            `json:"node,omitempty"`   // that answered
	Told   map[string]string `json:"told,omitempty"`   // of the answer: ETag, Fencing-…, Idempotency-Key
	Answer []byte            `json:"answer,omitempty"` // the body
}

// Took is from the sending to the answer.
func (x *Exchange) Took() time.Duration { return time.Duration(x.End - x.Start) }

// A Stream is one request of /v1/watch, and what came before it ended.
type Stream struct {
	Watcher string `json:"watcher"` // streams of one watcher go on where the last ended
	Start   int64  `json:"start"`
	From    uint64 `json:"from"`           // first index asked for, by from or Last-Event-ID; 0: from now on
	Kind    string `json:"kind,omitempty"` // of ?kind
	Prefix  string `json:"prefix,omitempty"`
	// Renewals: they were asked for, too.
	Renewals bool            `json:"renewals,omitempty"`
	Events   []StreamedEvent `json:"events"`
	// Reached is the last id seen, of an event or alone: all up to there has come.
	Reached uint64 `json:"reached"`
	Status  int    `json:"status"`
}

// A StreamedEvent is one event of a Stream.
type StreamedEvent struct {
	At    int64           `json:"at"`
	Event string          `json:"event"`
	Last  bool            `json:"last"` // it carried an id
	Data  json.RawMessage `json:"data"`
}

// An Entry is a committed entry of the log, as one node has it.
type Entry struct {
	Index   uint64 // the public one
	Term    uint64
	Command *fsmpb.Command // nil: Raft's own, which change nothing
}

// A History is the evidence of one run.
type History struct {
	Exchanges []*Exchange
	Streams   []*Stream
	// Drift is by which part of a time the nodes' clocks may run fast against the
	// one of Start and End. It is not written.
	Drift float64
	// Punctual is how long after an end is due it may come, in cluster time, while one
	// node leads; 0: that is not judged. It is not written.
	Punctual time.Duration
}

// A Verdict is what one check found. No finding is a pass, unless there was nothing to
// look at: see DemandEvidence.
type Verdict struct {
	Name     string
	Findings []string
	Note     string // how much was looked at
}

func (v *Verdict) Find(format string, args ...any) {
	v.Findings = append(v.Findings, fmt.Sprintf(format, args...))
}

// Count says how much was looked at.
func (v *Verdict) Count(format string, n int) {
	v.Note = none
	if n > 0 {
		v.Note = fmt.Sprintf(format, n)
	}
}

// none is the Note of a check that had nothing to look at.
const none = "none"

// DemandEvidence makes that a finding, where a run must have had some of everything:
// what nothing was seen of has not been shown to hold.
func (v *Verdict) DemandEvidence() {
	if v.Note == none {
		v.Find("there was nothing to look at")
	}
}

// line is one line of a written history.
type line struct {
	Exchange *Exchange `json:"exchange,omitempty"`
	Stream   *Stream   `json:"stream,omitempty"`
}

// Write writes the history as lines of JSON.
func (h *History) Write(to io.Writer) error {
	w := bufio.NewWriter(to)
	e := json.NewEncoder(w)
	var errs []error
	for _, x := range h.Exchanges {
		errs = append(errs, e.Encode(line{Exchange: x}))
	}
	for _, s := range h.Streams {
		errs = append(errs, e.Encode(line{Stream: s}))
	}
	return errors.Join(append(errs, w.Flush())...)
}

// ReadHistory reads what Write wrote, also in several parts, one after the other.
func ReadHistory(from io.Reader) (*History, error) {
	h := new(History)
	d := json.NewDecoder(bufio.NewReader(from))
	for {
		var l line
		err := d.Decode(&l)
		switch {
		case errors.Is(err, io.EOF):
			return h, nil
		case err != nil:
			return nil, fmt.Errorf("read history: %w", err)
		case l.Exchange != nil:
			h.Exchanges = append(h.Exchanges, l.Exchange)
		case l.Stream != nil:
			h.Streams = append(h.Streams, l.Stream)
		}
	}
}
