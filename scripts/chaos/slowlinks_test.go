package main

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"
)

// What goes through a relay arrives whole and in order, and not before it may.
func TestRelayDelaysAndKeepsOrder(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, err := newRelay("127.0.0.1:0", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	const late = 50 * time.Millisecond
	r.delay.Store(int64(late))
	from, err := net.Dial("tcp", r.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	sent := time.Now()
	for i := range 200 {
		fmt.Fprintln(from, i)
	}
	lines := bufio.NewScanner(to)
	for i := range 200 {
		if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d: %v", lines.Text(), i, lines.Err())
		}
		if took := time.Since(sent); i == 0 && took < late {
			t.Errorf("the first came after %s, want at least %s", took, late)
		}
	}
	if r.delayed.Load() == 0 {
		t.Error("nothing was counted as late")
	}
	// The end of one side is the end of the other.
	from.Close()
	if lines.Scan() {
		t.Errorf("got %q after the end", lines.Text())
	}
}
