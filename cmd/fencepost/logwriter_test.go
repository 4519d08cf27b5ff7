package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A log that nobody reads stops nobody; what does not fit is left out, and that is
// said once somebody reads again.
func TestALogThatNobodyReads(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w := newLogWriter(out, false)
	for i := range 10 * logBacklog { // more than the pipe and the backlog take
		fmt.Fprintln(w, i, strings.Repeat("x", 200))
	}
	w.flush() // gives up
	read := make(chan string)
	go func() {
		all := new(strings.Builder)
		buf := make([]byte, 1<<16)
		for !strings.Contains(all.String(), "the end") {
			n, err := in.Read(buf)
			if err != nil {
				break
			}
			all.Write(buf[:n])
		}
		read <- all.String()
	}()
	for w.left.Load() > 0 {
		w.flush() // until there is room
		fmt.Fprintln(w, "the end")
	}
	got := <-read
	if !strings.HasPrefix(got, "0 x") || !strings.Contains(got, "lines of this log are left out") {
		t.Errorf("got %.200q and so on", got)
	}
	out.Close()
	in.Close()
}
