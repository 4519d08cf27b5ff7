package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/cluster/bubble"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// Known cases of what grows without a bound, and of what goes on at a bound.

// size is how much a node has of what can grow.
type size struct {
	log      uint64 // entries
	state    fsm.Counts
	events   int
	snapshot int64 // bytes
}

func (n *simNode) size(t *testing.T) (s size) {
	t.Helper()
	first, err := n.store.FirstIndex()
	last, err2 := n.store.LastIndex()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	s.log = last - first + 1
	n.machine.view(func(st *fsm.State) { s.state = st.Counts() })
	f := n.machine.feed
	f.mu.Lock()
	s.events = f.history.events + f.renewals.events
	f.mu.Unlock()
	list, err := n.snaps.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, meta := range list {
		s.snapshot += meta.Size
	}
	return s
}

func (s size) within(bound size) bool {
	return s.log <= bound.log && s.events <= bound.events && s.snapshot <= bound.snapshot &&
		s.state.Leases <= bound.state.Leases && s.state.Records <= bound.state.Records &&
		s.state.Requests <= bound.state.Requests && s.state.DataBytes <= bound.state.DataBytes
}

// alone runs a cluster of one in fake time, with timers so slow that a week is half a
// minute.
func alone(t *testing.T, run func(t *testing.T, n *simNode)) {
	bubble.Test(t, func(t *testing.T) {
		s := &sim{t: t, servers: []raftServer{{ID: "id1", Addr: "n1"}}}
		n := &simNode{s: s, id: "id1", store: &simStore{InmemStore: raft.NewInmemStore()}, snaps: raft.NewInmemSnapshotStore()}
		s.nodes = []*simNode{n}
		n.boot(s.servers[0], func(c *Config) {
			c.Heartbeat, c.Election, c.LeaderLease, c.Commit = 10*time.Second, 10*time.Second, 10*time.Second, time.Second
			c.DiskBound, c.WatchHistory = time.Minute, 4096
		})
		defer func() {
			n.stop()
			time.Sleep(time.Minute)
		}()
		for n.ready.term() == 0 {
			time.Sleep(time.Second)
		}
		run(t, n)
	})
}

// Days of holders that come, renew, write under keys of their own, delete, and go.
// After the first, or the first two of a week (FENCEPOST_TEST_DAYS=7), nothing is larger
// than it had been until then.
func TestB72_DaysOfSteadyLoad(t *testing.T) {
	days := testDays(t)
	alone(t, func(t *testing.T, n *simNode) {
		const holders, day = 10, 24 * time.Hour
		run, first := time.Duration(days)*day, time.Duration((days+1)/3)*day
		var wg sync.WaitGroup
		began := time.Now()
		for h := range holders {
			wg.Go(func() {
				for round := 0; time.Since(began) < run; round++ {
					n.work(t, fmt.Sprintf("h%d/%d", h, round), fmt.Sprint("lease", h))
				}
			})
		}
		var bound, most size
		for time.Since(began) < run {
			time.Sleep(20 * time.Minute)
			s := n.size(t)
			if time.Since(began) < first {
				bound = greater(bound, s)
			} else {
				most = greater(most, s)
			}
		}
		wg.Wait()
		t.Logf("%s: %+v", first, bound)
		t.Logf("the others: %+v", most)
		slack := bound
		slack.log += bound.log / 20
		slack.events += bound.events / 20
		slack.snapshot += bound.snapshot / 20
		slack.state.Leases += 2
		slack.state.Records += bound.state.Records / 20
		slack.state.Requests += bound.state.Requests / 20
		slack.state.DataBytes += bound.state.DataBytes / 20
		if !most.within(slack) {
			t.Error("it grew")
		}
		if limit := n.cfg.SnapshotEntries + n.cfg.TrailingEntries; most.log > limit || most.events > 2*n.cfg.WatchHistory {
			t.Errorf("%d entries in the log, %d events kept", most.log, most.events)
		}
		if index := n.Status().Index; index < 10*most.log {
			t.Errorf("%d entries in all: that was no load", index)
		}
	})
}

// testDays is how many days of cluster time the tests of bounds take.
func testDays(t *testing.T) int {
	s := os.Getenv("FENCEPOST_TEST_DAYS")
	if s == "" {
		return 2
	}
	days, err := strconv.Atoi(s)
	if err != nil || days < 2 {
		t.Fatal("FENCEPOST_TEST_DAYS is the number of days, 2 or more")
	}
	return days
}

// work is a holder's life: an hour of renewals and writes.
func (n *simNode) work(t *testing.T, id, lease string) {
	key := func(what string) *fsmpb.Request {
		return &fsmpb.Request{Key: id + what, Path: what, Digest: []byte(id)}
	}
	ok := func(what string, o *fsmpb.Outcome, err error) {
		if err != nil || o.Code != fsmpb.Code_CODE_OK {
			t.Errorf("%s of %s: %v %v", what, id, o, err)
		}
	}
	r, err := n.Acquire(t.Context(), time.Now(), &fsmpb.Acquire{Name: lease, Holder: id, TtlMs: 120_000, Request: key("acquire")})
	ok("acquire", r.Outcome, err)
	if t.Failed() {
		time.Sleep(time.Hour)
		return
	}
	token := r.Outcome.Token
	op := func(kind fsmpb.WriteOp_Kind, minute int) {
		w := &fsmpb.WriteOp{Kind: kind, Key: fmt.Sprint(id, "/", minute)}
		if kind == fsmpb.WriteOp_KIND_PUT {
			w.Value = make([]byte, 100)
		}
		r, err := n.Write(t.Context(), time.Now(), &fsmpb.Write{Token: token, Ops: []*fsmpb.WriteOp{w}, Request: key(fmt.Sprint("write", kind, minute))})
		ok("write", r.Outcome, err)
	}
	for minute := range 60 {
		op(fsmpb.WriteOp_KIND_PUT, minute)
		time.Sleep(time.Minute)
		o, err := n.renew(lease, token)
		ok("renewal", o, err)
		op(fsmpb.WriteOp_KIND_DELETE, minute)
	}
	rel, err := n.Release(t.Context(), time.Now(), &fsmpb.Release{Name: lease, Token: token, Request: key("release")})
	ok("release", rel.Outcome, err)
}

func greater(a, b size) size {
	a.log, a.events, a.snapshot = max(a.log, b.log), max(a.events, b.events), max(a.snapshot, b.snapshot)
	a.state.Leases, a.state.Records = max(a.state.Leases, b.state.Leases), max(a.state.Records, b.state.Records)
	a.state.Requests, a.state.DataBytes = max(a.state.Requests, b.state.Requests), max(a.state.DataBytes, b.state.DataBytes)
	return a
}

// Days in which nothing happens: an entry every ten seconds, and no more of them in
// the log than stay behind a snapshot, and come in an hour.
func TestB72_QuietDays(t *testing.T) {
	alone(t, func(t *testing.T, n *simNode) {
		n.mustAcquire("short", time.Second)
		days := testDays(t)
		for range days * 24 {
			time.Sleep(time.Hour)
			if s := n.size(t); s.log > n.cfg.TrailingEntries+400 || s.events > 10 {
				t.Fatalf("%+v", s)
			}
		}
		s := n.size(t)
		if s.state.Leases+s.state.Requests+s.state.Records > 0 || s.snapshot > 10_000 {
			t.Errorf("left of one lease of a second: %+v", s)
		}
		if index := n.Status().Index; index > uint64(days)*24*3600/9 {
			t.Errorf("%d entries in %d quiet days", index, days)
		}
	})
}

// 50 leases that are renewed each second, also with one node down: the log has a
// ceiling in entries, and in bytes.
func TestB72_RenewalsDoNotFillTheLog(t *testing.T) {
	for what, set := range map[string]func(*Config){
		"entries": func(c *Config) { c.SnapshotEntries, c.TrailingEntries = 1000, 300 },
		"bytes":   func(c *Config) { c.SnapshotBytes, c.TrailingBytes, c.TrailingEntries = 200<<10, 1, 300 },
		"time":    func(c *Config) { c.SnapshotEvery, c.TrailingEntries = time.Minute, 300 },
	} {
		t.Run(what, func(t *testing.T) {
			inSim(t, func(t *testing.T, s *sim) {
				l := s.leader()
				for _, n := range s.nodes {
					set(&n.cfg)
				}
				renewals := make([]*fsmpb.Renewal, 50)
				for i := range renewals {
					name := fmt.Sprint("lease", i)
					renewals[i] = &fsmpb.Renewal{Name: name, Token: l.mustAcquire(name, 10*time.Second).Token}
				}
				down := s.nodes[0]
				if down == l {
					down = s.nodes[1]
				}
				for second := range 1800 {
					if second == 600 {
						down.crash()
					}
					time.Sleep(time.Second)
					if _, err := l.Renew(t.Context(), renewals); err != nil {
						t.Fatal(err)
					}
					for _, n := range s.nodes {
						if n.down {
							continue
						}
						if size := n.size(t); size.log > 1700 {
							t.Fatalf("second %d: %d entries in the log", second, size.log)
						}
					}
				}
				if first, _ := l.store.FirstIndex(); first < 1000 {
					t.Errorf("the log begins at %d: it was hardly cut", first)
				}
				if _, held, _ := l.lease("lease0"); held == 0 {
					t.Error("a lease that was renewed has ended")
				}
			})
		})
	}
}

// At the quota for keys and leases only what adds is refused. Renewals, releases,
// expiries, deletes and waiters' grants go on, and with room again all does, without
// anybody who clears an alarm.
func TestB71_AtTheQuota(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		g := l.mustAcquire("guard", time.Hour)
		l.mustAcquire("ends", 5*time.Second)
		for _, n := range s.nodes {
			n.cfg.MaxDataBytes, n.cfg.MaxLeases = 2000, 3
		}
		var quota *QuotaError
		filled := 0
		for ; ; filled++ {
			_, err := l.put(fmt.Sprintf("k%03d", filled), g.Token, "0123456789")
			if errors.As(err, &quota) {
				break
			}
			if err != nil || filled > 1000 {
				t.Fatalf("%d keys, %v", filled, err)
			}
		}
		other := l.mustAcquire("other", time.Minute)
		refused := func(what string, err error) {
			t.Helper()
			if !errors.As(err, &quota) {
				t.Errorf("%s: %v", what, err)
			}
		}
		done := func(what string, o *fsmpb.Outcome, err error) {
			t.Helper()
			if err != nil || o.Code != fsmpb.Code_CODE_OK {
				t.Errorf("%s: %v %v", what, o, err)
			}
		}
		_, err := l.acquire("new", time.Minute, "")
		refused("a new lease", err)
		o, err := l.renew("guard", g.Token)
		done("renew", o, err)
		r, err := l.Release(t.Context(), time.Now(), &fsmpb.Release{Name: "other", Token: other.Token})
		done("release", r.Outcome, err)
		o, err = l.acquire("other", time.Minute, "")
		done("an acquire of a lease on record", o, err)
		time.Sleep(6 * time.Second)
		if lease, _, err := l.lease("ends"); err != nil || lease.Live() {
			t.Errorf("an expiry: %+v %v", lease, err)
		}
		for i := range filled {
			w, err := l.Write(t.Context(), time.Now(), &fsmpb.Write{Token: g.Token, Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_DELETE, Key: fmt.Sprintf("k%03d", i)}}})
			done("delete", w.Outcome, err)
		}
		o, err = l.put("k000", g.Token, "with room again")
		done("a put after the deletes", o, err)
		time.Sleep(11 * time.Minute) // ended leases are on record for ten
		o, err = l.acquire("new", time.Minute, "")
		done("a new lease when old ones are gone", o, err)
		s.sameEverywhere()
	})
}

// A follower that was away comes back under load, with a disk that is barely fast
// enough, and more to catch up with than the log has: one snapshot, and it stays.
func TestB73_ALaggingFollowerCatchesUp(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		behind := s.nodes[0]
		if behind == l {
			behind = s.nodes[1]
		}
		for _, n := range s.nodes {
			n.cfg.SnapshotEntries, n.cfg.TrailingEntries, n.cfg.TrailingBytes = 2000, 500, 64<<20
		}
		g := l.mustAcquire("guard", time.Hour)
		behind.crash()
		stop := crowd(5, func(client, round int) {
			if o, err := l.put(fmt.Sprint("k", client), g.Token, fmt.Sprint(round)); err != nil || o.Code != fsmpb.Code_CODE_OK {
				t.Errorf("put: %v %v", o, err)
			}
			time.Sleep(10 * time.Millisecond) // 500 a second
		})
		defer stop()
		time.Sleep(20 * time.Second)
		if first, _ := l.store.FirstIndex(); first < 2000 {
			t.Fatalf("the log still begins at %d", first)
		}
		behind.store.each.Store(int64(5 * time.Millisecond))
		behind.restart()
		returned := time.Now()
		lag := func() uint64 { return l.Status().Index - min(l.Status().Index, behind.Status().Index) }
		for lag() > 50 {
			if time.Since(returned) > time.Minute {
				t.Fatalf("%d entries behind after a minute", lag())
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("caught up after %s", time.Since(returned))
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if lag() > 500 {
				t.Fatalf("it is %d entries behind again", lag())
			}
		}
		if n := behind.machine.restored.Load(); n != 1 {
			t.Errorf("%d snapshots were installed", n)
		}
	})
}

// A leader that was cut off with entries of its own comes back to a cluster whose log
// no longer has the place where they part.
func TestB73_ADivergentTailGivesWay(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		old := s.leader()
		for _, n := range s.nodes {
			n.cfg.SnapshotEntries, n.cfg.TrailingEntries, n.cfg.TrailingBytes = 500, minTrailing, 1
		}
		old.mustAcquire("guard", time.Hour)
		s.cut(old)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if r, err := old.Acquire(ctx, time.Now(), &fsmpb.Acquire{Name: fmt.Sprint("never", i), Holder: "h", TtlMs: 1000}); err == nil {
					t.Errorf("acknowledged by a leader without a quorum: %v", r.Outcome)
				}
			})
		}
		wg.Wait()
		l := s.leader(old)
		g := l.mustAcquire("more", time.Hour)
		for i := range 1500 {
			if o, err := l.put(fmt.Sprint("k", i%10), g.Token, "v"); err != nil || o.Code != fsmpb.Code_CODE_OK {
				t.Fatal(o, err)
			}
		}
		time.Sleep(3 * compactLook)
		if first, _ := l.store.FirstIndex(); first < 500 {
			t.Fatalf("the log still begins at %d", first)
		}
		s.connectAll()
		healed := time.Now()
		s.sameEverywhere()
		if took := time.Since(healed); took > time.Minute {
			t.Errorf("equal only after %s", took)
		}
		if n := old.machine.restored.Load(); n > 1 {
			t.Errorf("%d snapshots were installed", n)
		}
	})
}

// A node that was started with the wrong peers, or wiped, with the smallest name of
// all: it never forms a cluster beside one that exists, and never goes from one to
// another.
func TestP9_B75_NoSecondCluster(t *testing.T) {
	form := func(self identity, peers ...Formation) (identity, string) {
		cfg := DefaultConfig()
		cfg.Name, cfg.RaftAddr, cfg.HTTPAddr, cfg.Expect = self.Name, self.Name+":1", self.Name+":2", 1
		n := newNode(cfg)
		defer n.close()
		n.id = self
		var joined []string
		for _, f := range append(peers, n.Formation()) {
			n.cfg.Peers = append(n.cfg.Peers, peer(t, f, &joined))
		}
		return n.formOnce(t.Context())
	}
	n1 := Formation{Name: "n1", ID: "n1-id", ClusterID: "X", Members: []string{"n1-id", "n2-old"}}
	id, _ := form(identity{Name: "a", ID: "a-id"}, n1)
	if id.ClusterID != "X" || len(id.Bootstrap) > 0 {
		t.Errorf("an empty node beside a cluster: %+v", id)
	}
	fresh := Formation{Name: "n3", ID: "n3-id", RaftAddr: "n3:1"}
	id, _ = form(identity{Name: "a", ID: "a-id"}, fresh, n1)
	if id.ClusterID != "X" || len(id.Bootstrap) > 0 {
		t.Errorf("beside a cluster and an empty node: %+v", id)
	}
}

// More holders than there is room for, and a slow disk: new ones are refused, and
// those that there are lose nothing for five minutes.
func TestP7_B81_OverTheCapacity(t *testing.T) {
	inSim(t, func(t *testing.T, s *sim) {
		l := s.leader()
		const room, ttl = 2000, 20 * time.Second
		for _, n := range s.nodes {
			n.cfg.MaxLeases = room
		}
		s.slowDown(20 * time.Millisecond)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		var mu sync.Mutex // guards what follows
		var held, refused int
		for client := range room * 11 / 10 {
			wg.Go(func() {
				name := fmt.Sprint("holder", client)
				time.Sleep(time.Duration(client) * 10 * time.Millisecond) // one by one: what is in flight is not counted yet
				for {
					o, err := l.acquire(name, ttl, "")
					var quota *QuotaError
					mu.Lock()
					if err == nil {
						held++
					} else if errors.As(err, &quota) {
						refused++
					}
					mu.Unlock()
					switch {
					case err == nil && o.Code == fsmpb.Code_CODE_OK:
						if err := l.keep(name, o.Token, ttl, stop); err != nil {
							t.Error(err)
						}
						return
					case errors.As(err, &quota):
						return
					case !errors.Is(err, ErrOverloaded):
						t.Errorf("%s: %v %v", name, o, err)
						return
					}
					time.Sleep(time.Second)
				}
			})
		}
		time.Sleep(5 * time.Minute)
		var counts fsm.Counts
		l.machine.view(func(st *fsm.State) { counts = st.Counts() })
		mu.Lock()
		if held < room || held > room*105/100 || refused == 0 || counts.Held != held {
			t.Errorf("%d were granted and %d refused; %d are held, of %d", held, refused, counts.Held, room)
		}
		mu.Unlock()
		close(stop)
		wg.Wait()
	})
}
