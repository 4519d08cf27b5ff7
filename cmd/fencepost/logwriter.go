package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

const (
	logBacklog = 1024                   // lines that wait for whoever reads the log
	logFlush   = 200 * time.Millisecond // that an ending process waits for the rest
)

// logWriter passes a node's log on without ever waiting for its reader. A pipe that
// nobody reads would otherwise stop Raft, whose goroutines log, and with it the
// cluster. What does not fit into the backlog is left out, and the log says how much.
type logWriter struct {
	to    io.Writer
	json  bool
	lines chan logLine
	left  atomic.Int64 // lines left out since the last one taken
}

// logLine is a line, or, with a channel, the end of those to wait for.
type logLine struct {
	left    int64 // lines left out just before it
	text    []byte
	reached chan struct{}
}

// newLogWriter starts passing on, for as long as the process lives.
func newLogWriter(to io.Writer, json bool) *logWriter {
	w := &logWriter{to: to, json: json, lines: make(chan logLine, logBacklog)}
	go w.run()
	return w
}

// Write takes one line. It may be called from any goroutine.
func (w *logWriter) Write(line []byte) (int, error) {
	left := w.left.Swap(0)
	select {
	case w.lines <- logLine{left: left, text: append([]byte(nil), line...)}:
	default:
		w.left.Add(left + 1)
	}
	return len(line), nil
}

func (w *logWriter) run() {
	for l := range w.lines {
		if l.reached != nil {
			close(l.reached)
			continue
		}
		if l.left > 0 {
			text := fmt.Sprintf("%d lines of this log are left out: nobody read it", l.left)
			if w.json {
				text = fmt.Sprintf(`{"@level":"warn","@message":%q}`, text)
			}
			fmt.Fprintln(w.to, text)
		}
		_, _ = w.to.Write(l.text) // there is nowhere to tell it
	}
}

// flush waits for what was written, for a moment.
func (w *logWriter) flush() {
	late := time.After(logFlush)
	end := logLine{reached: make(chan struct{})}
	select {
	case w.lines <- end:
	case <-late:
		return
	}
	select {
	case <-end.reached:
	case <-late:
	}
}
