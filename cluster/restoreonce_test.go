package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/fsm"
)

// P10: a restore that is asked for again while its first attempt goes on, because that
// one's connection broke, is not told "refused": it waits, and hears what became of it.
func TestP10_P11_RestoreRepeatedWhileItRuns(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustWrite(l.mustAcquire("a", time.Hour).Token, "k", "v", 3)
		backup := l.backedUp()
		resume := l.store.stall()
		type answer struct {
			Restored
			error
		}
		answers := make(chan answer, 3)
		ask := func(ctx context.Context, key string) {
			r, err := l.restore(ctx, backup, restoreUnder(key, 1))
			answers <- answer{r, err}
		}
		for range 2 {
			go ask(t.Context(), "mine")
			time.Sleep(10 * time.Millisecond)
		}
		impatient, leave := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer leave()
		ask(impatient, "mine")
		if a := <-answers; !errors.Is(a.error, ErrOutcomeUnknown) {
			t.Errorf("who did not wait was told %v", a.error)
		}
		ask(t.Context(), "another")
		if a := <-answers; !errors.Is(a.error, ErrRestoreRunning) {
			t.Errorf("under another key: %v", a.error)
		}
		resume()
		a, b := <-answers, <-answers
		if a.error != nil || b.error != nil || a.Index != b.Index {
			t.Errorf("told %d %v, and %d %v", a.Index, a.error, b.Index, b.error)
		}
		var floor uint64
		l.machine.view(func(st *fsm.State) { floor = st.RestoreFloor() })
		if floor != a.Index {
			t.Errorf("restored at %d, told %d", floor, a.Index)
		}
	})
}

// P10: a restore that has filled the leader's disk, and whose answer was lost, is not
// told "refused, and nothing was changed" when it is asked for again.
func TestP10_P11_RestoreRepeatedOnADiskThatItFilled(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		l.mustWrite(l.mustAcquire("a", time.Hour).Token, "k", "v", 3)
		backup := l.backedUp()
		var room atomic.Uint64
		room.Store(1 << 40)
		l.diskFree = func(string) (uint64, bool) { return room.Load(), true }
		done := l.mustRestore(backup, restoreUnder("mine", 1))
		room.Store(0)
		if _, err := l.restore(t.Context(), backup, restoreUnder("another", 1)); !errors.Is(err, ErrDiskFull) {
			t.Errorf("a new one: %v", err)
		}
		if again := l.mustRestore(backup, restoreUnder("mine", 1)); again.Index != done.Index {
			t.Errorf("at %d, repeated at %d", done.Index, again.Index)
		}
		if _, err := l.restore(t.Context(), backup, restoreUnder("mine", 2)); !errors.Is(err, ErrKeyReused) {
			t.Errorf("another restore under that key: %v", err)
		}
		room.Store(1 << 40)
		resume := l.store.stall()
		first := make(chan error, 1)
		go func() {
			_, err := l.restore(t.Context(), backup, restoreUnder("third", 1))
			first <- err
		}()
		time.Sleep(10 * time.Millisecond)
		room.Store(0)
		if _, err := l.restore(t.Context(), backup, restoreUnder("third", 1)); !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("while the first attempt goes on: %v", err)
		}
		resume()
		if err := <-first; err != nil {
			t.Error(fmt.Errorf("the first: %w", err))
		}
	})
}
