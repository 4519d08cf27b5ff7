package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"fencepost/client"
)

// What an operation was.
const (
	kindAcquire  = "acquire"
	kindRelease  = "release"
	kindPut      = "put"
	kindStalePut = "stale_put" // a put with a token that was superseded before it began
	kindRepeat   = "repeat"    // an acknowledged request once more, under its key; Of names it
	kindFinal    = "final"     // a key as it was read at the end
)

// How it ended.
const (
	endOK      = "ok"
	endRefused = "refused"
	endNone    = "none"    // surely not applied
	endUnknown = "unknown" // perhaps applied
)

// op is one operation as its caller saw it.
type op struct {
	ID       int    `json:"id"`
	Kind     string `json:"kind"`
	Of       int    `json:"of,omitempty"`
	Name     string `json:"name,omitempty"` // of the lease
	Key      string `json:"key,omitempty"`  // of the store
	Value    string `json:"value,omitempty"`
	Request  string `json:"request,omitempty"` // Idempotency-Key
	Token    uint64 `json:"token,omitempty"`   // got by acquire, given by the others
	Version  uint64 `json:"version,omitempty"`
	Released bool   `json:"released,omitempty"`
	TTLMS    uint64 `json:"ttl_ms,omitempty"` // promised by acquire, from Start on
	Start    int64  `json:"start"`            // ns
	End      int64  `json:"end"`
	Result   string `json:"result"`
	Code     string `json:"code,omitempty"` // of the refusal
	Reason   string `json:"reason,omitempty"`
	Text     string `json:"text,omitempty"` // of the error
}

// kill is one kill of a leader as the script saw it.
type kill struct {
	Node      string `json:"node"`
	Term      uint64 `json:"term"` // in which it led
	At        int64  `json:"at"`   // ns, just after the signal was sent
	Gone      bool   `json:"gone"` // the process was seen gone
	NewLeader string `json:"new_leader"`
	NewTerm   uint64 `json:"new_term"`
}

// recorder collects operations from all workers.
type recorder struct {
	wall  int64 // ns, at start
	start time.Time
	mu    sync.Mutex // guards ops
	ops   []op
}

func newRecorder() *recorder {
	now := time.Now()
	return &recorder{wall: now.UnixNano(), start: now}
}

func (r *recorder) now() int64 { return r.wall + int64(time.Since(r.start)) }

// add gives the operation its number.
func (r *recorder) add(o op) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.ID = len(r.ops) + 1
	r.ops = append(r.ops, o)
	return o.ID
}

func (r *recorder) all() []op {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]op(nil), r.ops...)
}

// ended fills in how an operation ended.
func (o *op) ended(at int64, err error) {
	o.End = at
	if err == nil {
		o.Result = endOK
		return
	}
	o.Text = err.Error()
	var e *client.Error
	switch {
	case errors.Is(err, client.ErrUnknown):
		o.Result = endUnknown
	case errors.Is(err, client.ErrUnavailable):
		o.Result = endNone
	case errors.As(err, &e):
		o.Result, o.Code, o.Reason = endRefused, string(e.Code), e.Reason
		if e.Token != 0 && o.Kind == kindRepeat {
			o.Token = e.Token
		}
	default:
		o.Result = endUnknown // nothing that the client promises to return: assume the worst
	}
}

func writeHistory(path string, ops []op) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	for i := range ops {
		if err := enc.Encode(&ops[i]); err != nil {
			f.Close()
			return fmt.Errorf("write history: %w", err)
		}
	}
	return errors.Join(w.Flush(), f.Close())
}
