// Package bubble is for tests: it runs one in fake time.
package bubble

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// Test is synctest.Test on one processor. The race detector keeps one context for
// all timers of a bubble, and crashes when two processors are in it at once
// (Go issue 78156; a few goroutines that poll timers show it). It still sees every
// race, since it compares what is ordered and not what met.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, f)
}
