package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/cluster/bubble"
	"fencepost/fsm/fsmpb"
)

// line is a gate of one slot, and those that wait at it in fake time.
type line struct {
	t    *testing.T
	gate *gate
	in   chan string // who has the slot
}

func newLine(t *testing.T) *line {
	l := &line{t: t, gate: newGate(1), in: make(chan string, 4096)}
	if err := l.gate.enter(t.Context(), classWrite, time.Second); err != nil {
		t.Fatal(err)
	}
	return l
}

// wait puts somebody at the end of its class's queue.
func (l *line) wait(who string, c class) {
	go func() {
		if err := l.gate.enter(l.t.Context(), c, time.Hour); err == nil {
			l.in <- who
		}
	}()
	synctest.Wait()
}

// next is who gets the slot when it is given back.
func (l *line) next() string {
	l.t.Helper()
	l.gate.leave()
	synctest.Wait()
	if len(l.in) != 1 {
		l.t.Fatalf("%d went in for one slot", len(l.in))
	}
	return <-l.in
}

// Renewals go ahead of everything, then releases, Advance, writes, acquisitions;
// within a class it is first come, first served.
func TestP7_GateAdmitsByClass(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLine(t)
		for _, who := range []struct {
			name  string
			class class
		}{
			{"acquire1", classAcquire}, {"write1", classWrite}, {"acquire2", classAcquire}, {"advance", classAdvance},
			{"release1", classEnding}, {"renew", classLeader}, {"write2", classWrite}, {"release2", classEnding},
		} {
			l.wait(who.name, who.class)
		}
		var got []string
		for range 8 {
			got = append(got, l.next())
		}
		want := []string{"renew", "release1", "release2", "advance", "write1", "write2", "acquire1", "acquire2"}
		if !slices.Equal(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	})
}

func TestP7_ClassesOfCommands(t *testing.T) {
	for want, commands := range map[class][]*fsmpb.Command{
		classLeader: {
			{Op: &fsmpb.Command_Renew{}}, {Op: &fsmpb.Command_Tick{}}, {Op: &fsmpb.Command_SetNode{}}, {Op: &fsmpb.Command_RemoveNode{}},
		},
		classEnding:  {{Op: &fsmpb.Command_Release{}}},
		classAdvance: {{Op: &fsmpb.Command_Advance{}}},
		classWrite:   {{Op: &fsmpb.Command_Write{}}},
		classAcquire: {{Op: &fsmpb.Command_Acquire{}}, {}},
	} {
		for _, c := range commands {
			if got := classOf(c); got != want {
				t.Errorf("%T: class %d, want %d", c.Op, got, want)
			}
		}
	}
}

// With all slots taken by writes and 500 acquisitions waiting, a renewal is the
// next to go in.
func TestP7_RenewalOvertakesWhatWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		g := newGate(maxProposals)
		for i := range maxProposals {
			if err := g.enter(t.Context(), classWrite, time.Nanosecond); err != nil {
				t.Fatalf("write %d waited below the bound: %v", i, err)
			}
		}
		var acquisitions atomic.Int64
		renewed := make(chan int64, 1)
		for range 500 {
			go func() {
				if g.enter(t.Context(), classAcquire, time.Hour) == nil {
					acquisitions.Add(1)
				}
			}()
		}
		synctest.Wait()
		go func() {
			if g.enter(t.Context(), classLeader, time.Hour) == nil {
				renewed <- acquisitions.Load()
			}
		}()
		synctest.Wait()
		g.leave()
		synctest.Wait()
		select {
		case before := <-renewed:
			if before != 0 {
				t.Fatalf("%d acquisitions went in before the renewal", before)
			}
		default:
			t.Fatal("the slot did not go to the renewal")
		}
		g.close(ErrShuttingDown)
	})
}

// However steady the stream of a higher class, the lowest that waits gets every
// sixteenth slot, and where several wait below it, each gets its turn.
func TestGateStarvesNoClass(t *testing.T) {
	for _, lower := range [][]class{{classAcquire}, {classWrite}, {classWrite, classAcquire}, {classEnding, classAdvance, classWrite, classAcquire}} {
		bubble.Test(t, func(t *testing.T) {
			l := newLine(t)
			const rounds = 3
			for range rounds * lowerTurn * int(classes) {
				l.wait("above", classLeader)
			}
			for range rounds {
				for _, c := range lower {
					l.wait(fmt.Sprint(c), c)
				}
			}
			want := slices.Clone(lower)
			slices.Reverse(want) // the lowest first
			for range rounds {
				for _, c := range want {
					for range lowerTurn - 1 {
						if got := l.next(); got != "above" {
							t.Fatalf("class %s went in before its turn", got)
						}
					}
					if got := l.next(); got != fmt.Sprint(c) {
						t.Fatalf("the sixteenth slot went to %s, want class %d of %v", got, c, lower)
					}
				}
			}
			l.gate.close(ErrShuttingDown)
		})
	}
}

// P10: whoever comes out without a slot has handed nothing over, and the error
// says so: it is none that means an unknown outcome.
func TestP10_GateErrorsAreDefinite(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := newLine(t)
		began := time.Now()
		err := l.gate.enter(t.Context(), classWrite, 2*time.Second)
		if !errors.Is(err, ErrOverloaded) || time.Since(began) != 2*time.Second {
			t.Errorf("beyond the bound: %v after %s", err, time.Since(began))
		}
		for _, early := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan error, 1)
			if early {
				cancel()
			}
			go func() { got <- l.gate.enter(ctx, classWrite, time.Hour) }()
			synctest.Wait()
			cancel()
			if err := <-got; !errors.Is(err, ErrOverloaded) || errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("cancelled (before: %v): %v", early, err)
			}
		}
		ended := make(chan error, 2)
		for _, end := range []func(){func() { l.gate.turnAway(ErrNoLeader) }, func() { l.gate.close(ErrShuttingDown) }} {
			for _, c := range []class{classLeader, classAcquire} {
				go func() { ended <- l.gate.enter(t.Context(), c, time.Hour) }()
			}
			synctest.Wait()
			end()
			first, second := <-ended, <-ended
			if first != second || first != ErrNoLeader && first != ErrShuttingDown {
				t.Errorf("turned away: %v, %v", first, second)
			}
		}
		l.gate.leave()
		if err := l.gate.enter(t.Context(), classLeader, time.Hour); err != ErrShuttingDown {
			t.Errorf("after it was closed, with a free slot: %v", err)
		}
	})
}

// Whatever waits end how and when, no slot is lost and none is made.
func TestGateLosesNoSlot(t *testing.T) {
	const slots, clients, rounds = 4, 64, 300
	g := newGate(slots)
	var inside, admitted, refused atomic.Int64
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(client)))
			for range rounds {
				ctx, cancel := context.WithCancel(context.Background())
				left := make(chan struct{})
				if random.IntN(2) == 0 {
					go func() { cancel(); close(left) }()
				} else {
					close(left)
				}
				bound := time.Hour
				if random.IntN(4) == 0 {
					bound = time.Duration(random.IntN(20)) * time.Microsecond
				}
				if g.enter(ctx, class(random.IntN(int(classes))), bound) == nil {
					if now := inside.Add(1); now > slots {
						t.Errorf("%d are inside", now)
					}
					admitted.Add(1)
					for range random.IntN(8) {
						runtime.Gosched() // so that others come meanwhile, and wait
					}
					inside.Add(-1)
					g.leave()
				} else {
					refused.Add(1)
				}
				if random.IntN(50) == 0 {
					g.turnAway(ErrNoLeader)
				}
				cancel()
				<-left
			}
		})
	}
	wg.Wait()
	for c := range g.waiting {
		if n := g.waiting[c].Len(); n != 0 {
			t.Errorf("%d are left waiting in class %d", n, c)
		}
	}
	if g.free != slots {
		t.Errorf("%d slots are free, want %d", g.free, slots)
	}
	if admitted.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d admitted, %d refused: nothing was tried", admitted.Load(), refused.Load())
	}
}
