package cluster

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"testing"
	"time"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// eventsOf are all events of a node from an index on, up to one that its state
// has reached.
func eventsOf(t *testing.T, n *simNode, from, upTo uint64) (events []fsm.Event) {
	t.Helper()
	w, err := n.Watch(from, true)
	if err != nil {
		t.Fatalf("watch %s from %d: %v", n.cfg.Name, from, err)
	}
	defer w.Close()
	for w.Reached() < upTo {
		entries, err := w.Next(t.Context(), 10*time.Second)
		if err != nil {
			t.Fatalf("watch %s: %v", n.cfg.Name, err)
		}
		for _, e := range entries {
			events = append(events, e.Events...)
		}
	}
	return events
}

// holdings are the leases that are held and the keys that have a value.
type holdings struct {
	leases map[string]string
	keys   map[string]uint64 // the token of the value
}

func (h holdings) equal(o holdings) bool {
	return maps.Equal(h.leases, o.leases) && maps.Equal(h.keys, o.keys)
}

func listState(s *fsm.State) holdings {
	h := holdings{map[string]string{}, map[string]uint64{}}
	leases, _ := s.Leases("", "", 10_000)
	for _, l := range leases {
		for _, holder := range l.Holders {
			h.leases[l.Name] = fmt.Sprint(holder.Holder, holder.Token)
		}
	}
	keys, _ := s.Keys("", "", 10_000)
	for _, k := range keys {
		h.keys[k.Key] = k.Token
	}
	return h
}

func (h holdings) see(e *fsm.Event) {
	switch e.Kind {
	case fsm.EventGranted:
		h.leases[e.Name] = fmt.Sprint(e.Holder, e.Token)
	case fsm.EventReleased, fsm.EventExpired:
		delete(h.leases, e.Name)
	case fsm.EventPut:
		h.keys[e.Name] = e.Token
	case fsm.EventDeleted:
		delete(h.keys, e.Name)
	}
}

// All nodes tell the same events, also one that was started again and has them
// from its log; and they make every list of the state, at its index.
func TestP13_EventsMakeTheStateOnEveryNode(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		lists := map[uint64]holdings{}
		note := func(n *simNode) { n.machine.view(func(st *fsm.State) { lists[st.Index()] = listState(st) }) }
		for round := range 12 {
			l := s.leader()
			g := l.mustAcquire(fmt.Sprint("l", round%5), 200*time.Millisecond)
			note(l)
			for i := range 3 {
				if o, err := l.put(fmt.Sprint("k", (round+i)%7), g.Token, "v"); err != nil || o.Code != fsmpb.Code_CODE_OK {
					t.Fatal(o, err)
				}
				note(l)
			}
			if o, err := l.put("k0", 1<<40, "v"); err != nil || o.Code != fsmpb.Code_CODE_TOKEN_NOT_ISSUED {
				t.Fatal(o, err)
			}
			if round%4 == 3 {
				l.crash()
				s.leader(l)
				l.restart()
				continue
			}
			time.Sleep(time.Duration(100+50*round) * time.Millisecond) // some expire, some do not
			note(l)
		}
		s.sameEverywhere()
		l := s.leader()
		note(l)
		end := l.Status().Index
		want := eventsOf(t, l, 1, end)
		for _, n := range s.nodes {
			if got := eventsOf(t, n, 1, end); !reflect.DeepEqual(got, want) {
				t.Errorf("%s tells other events than the leader:\n%v\n%v", n.cfg.Name, got, want)
			}
		}
		h := holdings{map[string]string{}, map[string]uint64{}}
		compared := 0
		for index := uint64(1); index <= end; index++ {
			for ; len(want) > 0 && want[0].Index == index; want = want[1:] {
				h.see(&want[0])
			}
			if list, ok := lists[index]; ok {
				compared++
				if !h.equal(list) {
					t.Fatalf("at %d: rebuilt %v, listed %v", index, h, list)
				}
			}
		}
		if compared < 40 {
			t.Errorf("only %d lists were compared", compared)
		}
	})
}

// What a node has only as a snapshot it cannot tell, and says so.
func TestP13_AfterASnapshotANodeSaysWhatIsGone(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		for i := range 5 {
			l.mustAcquire(fmt.Sprint("l", i), time.Minute)
		}
		if err := l.member.Load().raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		at := l.Status().Index
		after := l.mustAcquire("after", time.Minute)
		l.crash()
		other := s.leader(l)
		l.restart()
		s.sameEverywhere()
		var c *CompactedError
		if _, err := l.Watch(1, false); !errors.As(err, &c) || c.Oldest == 0 || c.Oldest > at+1 {
			t.Fatalf("from 1 on: %v, want what is from %d on", err, at+1)
		}
		upTo := l.Status().Index
		got, want := eventsOf(t, l, c.Oldest, upTo), eventsOf(t, other, c.Oldest, upTo)
		if !reflect.DeepEqual(got, want) || len(got) == 0 || got[0].Token != after.Token {
			t.Errorf("after the snapshot: got %v, want %v", got, want)
		}
	})
}

// A node that is cut off from the others ends its watches, whatever it was, and
// takes none until it is back; the others go on.
func TestP13_B54_ANodeWithoutALeaderEndsItsWatches(t *testing.T) {
	for _, leads := range []bool{true, false} {
		inSim(t, func(t *testing.T, s *sim) {
			lost := s.leader()
			for _, n := range s.nodes {
				if !leads && n != lost {
					lost = n
					break
				}
			}
			watchers := map[*simNode]*Watcher{}
			ends := map[*simNode]chan error{}
			for _, n := range s.nodes {
				w, err := n.Watch(0, false)
				if err != nil {
					t.Fatal(err)
				}
				end := make(chan error, 1)
				watchers[n], ends[n] = w, end
				go func() {
					defer w.Close()
					for {
						if _, err := w.Next(t.Context(), time.Hour); err != nil {
							end <- err
							return
						}
					}
				}()
			}
			began := time.Now()
			s.cut(lost)
			if err := <-ends[lost]; !errors.Is(err, ErrNoLeader) {
				t.Errorf("the watch of the lost node ended with %v", err)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("it took %s", took)
			}
			if _, err := lost.Watch(0, false); !errors.Is(err, ErrNoLeader) {
				t.Errorf("a new watch there: %v", err)
			}
			s.leader(lost).mustAcquire("l", time.Minute)
			time.Sleep(5 * time.Second)
			for n, end := range ends {
				if leads {
					break // without a leader for as long as the election takes
				}
				select {
				case err := <-end:
					t.Errorf("the watch of %s, which has a leader, ended with %v", n.cfg.Name, err)
				default:
				}
			}
			s.connectAll()
			s.sameEverywhere()
			for range 100 {
				if lost.knowsLeader() {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			w, err := lost.Watch(watchers[lost].Reached()+1, false)
			if err != nil {
				t.Fatalf("resume at the node that is back: %v", err)
			}
			defer w.Close()
			if entries, err := w.Next(t.Context(), time.Minute); err != nil || len(entries) != 1 || entries[0].Events[0].Name != "l" {
				t.Errorf("resumed: %v %v", entries, err)
			}
		})
	}
}

func TestClosingEndsWatches(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		w, err := l.Watch(0, false)
		if err != nil {
			t.Fatal(err)
		}
		end := make(chan error, 1)
		go func() {
			_, err := w.Next(t.Context(), time.Hour)
			end <- err
		}()
		began := time.Now()
		l.stop()
		if err := <-end; !errors.Is(err, ErrShuttingDown) || time.Since(began) > 5*time.Second {
			t.Errorf("ended with %v after %s", err, time.Since(began))
		}
		if _, err := l.Watch(0, false); !errors.Is(err, ErrShuttingDown) {
			t.Errorf("a new watch: %v", err)
		}
	})
}
