package httpapi

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fencepost/cluster"
	"fencepost/cluster/bubble"
	"fencepost/fsm/fsmpb"
)

// However many requests are under way, one look is shared by all, which ends
// those whose leader is none any more, and is gone when there are none.
func TestForwardedRequestsShareOneLook(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var leader atomic.Value
		leader.Store("a")
		var looks, ended atomic.Int64
		u := newUnderway(func() string { looks.Add(1); return leader.Load().(string) })
		time.Sleep(time.Minute)
		if looks.Load() != 0 {
			t.Fatalf("%d looks before there was a request", looks.Load())
		}
		const each = 5000
		var done []func()
		for range each {
			done = append(done, u.add("a", func() { ended.Add(1) }))
		}
		time.Sleep(100*leaderLook + time.Millisecond)
		if looks.Load() != 100 || ended.Load() != 0 {
			t.Fatalf("%d looks in 100 intervals, %d ended", looks.Load(), ended.Load())
		}
		leader.Store("b")
		for range each {
			done = append(done, u.add("b", func() { t.Error("ended though its leader leads") }))
		}
		time.Sleep(leaderLook)
		if ended.Load() != each {
			t.Fatalf("%d ended, want the %d to the former leader", ended.Load(), each)
		}
		for _, d := range done {
			d()
		}
		before := looks.Load()
		time.Sleep(time.Minute)
		if looks.Load() != before || len(u.calls) != 0 {
			t.Fatalf("%d looks with nothing under way, %d kept", looks.Load()-before, len(u.calls))
		}
		u.add("b", func() { ended.Add(1) }) // and it begins again
		leader.Store("")
		time.Sleep(leaderLook + time.Millisecond)
		if ended.Load() != each+1 {
			t.Fatal("the later request did not end with its leader")
		}
		last := u.add("c", func() { ended.Add(1) })
		u.close()
		u.close()
		last()
		u.add("c", func() { ended.Add(1) })
		if before = looks.Load(); ended.Load() != each+3 {
			t.Fatalf("%d ended after close, want both", ended.Load()-each-1)
		}
		time.Sleep(time.Minute)
		if looks.Load() != before {
			t.Fatal("it looks after it was closed")
		}
	})
}

// Many at once, ending in every order: nothing is kept, nothing ends twice.
func TestForwardedRequestsComeAndGo(t *testing.T) {
	var changes atomic.Int64
	u := newUnderway(func() string { return fmt.Sprint(changes.Add(1) % 2) })
	var wg sync.WaitGroup
	for client := range 32 {
		wg.Go(func() {
			for range 500 {
				ctx, cancel := context.WithCancel(context.Background())
				done := u.add(fmt.Sprint(client%2), cancel)
				if client%8 == 0 {
					u.look()
				}
				for client%16 == 1 && ctx.Err() == nil {
					u.look() // until it is this one's turn to end
				}
				done()
				cancel()
			}
		})
	}
	wg.Wait()
	if len(u.calls) != 0 || u.timer.Stop() {
		t.Fatalf("%d kept, or the timer still runs", len(u.calls))
	}
}

// pipes is a listener in memory, for servers in fake time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// follower is a Handler that forwards to one that runs in fake time.
type follower struct {
	t    *testing.T
	node *memory
	*Handler
}

// inFakeTime runs a test with a follower of the leader, and fails if anything of
// it is left at its end.
func inFakeTime(t *testing.T, leader http.Handler, run func(t *testing.T, f *follower)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		server := NewServer(leader)
		served := make(chan error, 1)
		go func() { served <- server.Serve(p) }()
		f := &follower{t: t, node: newMemory("n2")}
		f.node.status.IsLeader = false
		f.leadTo("http://n1.test")
		f.Handler = New(f.node, Options{})
		f.nodes.Transport.(*http.Transport).DialContext = p.dial
		run(t, f)
		f.Close()
		server.Close()
		<-served
	})
}

func (f *follower) leadTo(url string) {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	f.node.status.LeaderURL = url
}

// forward forwards an acquisition that asks to be kept waiting so long, and
// returns the answer's status and how long it took.
func (f *follower) forward(ctx context.Context, patience time.Duration) (int, time.Duration) {
	f.t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, "POST", "/v1/leases/l/acquire", nil)
	x := &exchange{
		h: f.Handler, w: recorder{ResponseWriter: w}, r: r, received: time.Now(), status: f.node.Status(),
		route: f.metrics.unrouted, body: []byte(acquireBody), patience: patience,
	}
	x.begin()
	x.forward(true)
	return w.Code, time.Since(x.received)
}

// answersAfter is a leader that takes so long; 0: it never answers.
func answersAfter(d time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		var answer <-chan time.Time
		if d > 0 {
			answer = time.After(d)
		}
		select {
		case <-answer:
			w.Header().Set("Fencepost-Node", "n1")
			io.WriteString(w, "{}")
		case <-r.Context().Done():
		}
	})
}

// A leader has 30 s to answer, and as much longer as the request asks to be kept
// waiting. What was sent and not answered is unknown (P10).
func TestP10_ALeaderHasTimeToAnswer(t *testing.T) {
	const long = 5 * time.Minute
	for _, tt := range []struct {
		takes, patience time.Duration
		status          int
		after           time.Duration
	}{
		{answerBound - time.Second, 0, 200, answerBound - time.Second},
		{0, 0, 504, answerBound},
		{long, 0, 504, answerBound},
		{long, long, 200, long},
		{0, long, 504, long + answerBound},
	} {
		inFakeTime(t, answersAfter(tt.takes), func(t *testing.T, f *follower) {
			if status, after := f.forward(t.Context(), tt.patience); status != tt.status || after != tt.after {
				t.Errorf("a leader that takes %s, patience %s: got %d after %s, want %d after %s", tt.takes, tt.patience, status, after, tt.status, tt.after)
			}
		})
	}
}

// The bound is on the beginning of an answer: a client that reads a long one
// slowly gets all of it.
func TestALongAnswerIsNotCut(t *testing.T) {
	leader := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Fencepost-Node", "n1")
		for range 10 {
			io.WriteString(w, "0123456789")
			w.(http.Flusher).Flush()
			time.Sleep(answerBound)
		}
	})
	inFakeTime(t, leader, func(t *testing.T, f *follower) {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/kv/k", nil))
		if w.Code != 200 || w.Body.Len() != 100 {
			t.Fatalf("got %d with %d bytes", w.Code, w.Body.Len())
		}
	})
}

// Requests that wait at a leader which is none any more, or through a node that
// is closed, end at once, and as unknown.
func TestP10_WaitingRequestsEndWithTheirLeader(t *testing.T) {
	for name, end := range map[string]func(f *follower){
		"another leads": func(f *follower) { f.leadTo("http://n3.test") },
		"none is known": func(f *follower) { f.leadTo("") },
		"it is closed":  func(f *follower) { f.Close() },
	} {
		inFakeTime(t, answersAfter(0), func(t *testing.T, f *follower) {
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					if status, after := f.forward(t.Context(), time.Hour); status != 504 || after > time.Minute+leaderLook {
						t.Errorf("%s: got %d after %s", name, status, after)
					}
				})
			}
			time.Sleep(time.Minute)
			end(f)
			wg.Wait()
		})
	}
}

// patient is a leader whose acquisitions wait until their context ends.
type patient struct {
	*memory
	entered chan struct{}
	left    chan struct{}
}

func (p patient) Acquire(ctx context.Context, _ time.Time, _ *fsmpb.Acquire) (cluster.Reply[*fsmpb.Outcome], error) {
	p.entered <- struct{}{}
	<-ctx.Done()
	p.left <- struct{}{}
	return cluster.Reply[*fsmpb.Outcome]{}, cluster.ErrOutcomeUnknown
}

// When clients leave, the leader hears of each at once, in no time by the clock
// of the test, and nothing is left at the node between.
func TestTheLeaderHearsThatClientsLeave(t *testing.T) {
	for _, patience := range []time.Duration{0, 5 * time.Minute} {
		leader := &patient{memory: newMemory("n1")}
		h := New(leader, Options{})
		defer h.Close()
		inFakeTime(t, h, func(t *testing.T, f *follower) {
			leader.entered, leader.left = make(chan struct{}), make(chan struct{}, 100) // of fake time
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { f.forward(ctx, patience) })
			}
			for range 100 {
				<-leader.entered
			}
			time.Sleep(20 * time.Second)
			left := time.Now()
			cancel()
			for range 100 {
				<-leader.left
			}
			wg.Wait()
			if took := time.Since(left); took != 0 {
				t.Errorf("the leader heard of the last one after %s", took)
			}
			if len(f.underway.calls) != 0 {
				t.Error("something is kept of them")
			}
		})
	}
}

// The same over sockets, with real clients that hang up; no goroutine is left.
func TestClientsThatHangUpLeaveNothingBehind(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const clients = 50
	leader := patient{newMemory("n1"), make(chan struct{}), make(chan struct{}, clients)}
	leaderHandler := New(leader, Options{})
	defer leaderHandler.Close()
	leaderURL, stopLeader := serve(t, leaderHandler)
	defer stopLeader()
	node := newMemory("n2")
	node.status.IsLeader, node.status.LeaderURL = false, leaderURL
	h := New(node, Options{})
	defer h.Close()
	url, stop := serve(t, h)
	defer stop()

	var conns []net.Conn
	for range clients {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /v1/leases/l/acquire HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(acquireBody), acquireBody)
		conns = append(conns, conn)
	}
	for range clients {
		<-leader.entered
	}
	for _, conn := range conns {
		conn.Close()
	}
	deadline := time.After(10 * time.Second)
	for i := range clients {
		select {
		case <-leader.left:
		case <-deadline:
			t.Fatalf("the leader has heard of %d of %d clients that left", i, clients)
		}
	}
}
