package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/cluster/check"
)

// What is not known of another process's clock makes its exchanges longer, and an
// exchange without an answer gets none.
func TestShiftedHistoryClaimsNoMore(t *testing.T) {
	h := &check.History{Exchanges: []*check.Exchange{{ID: 1, Start: 100, End: 200}, {ID: 2, Start: 300}}}
	got := shifted(h, 1000, 5).Exchanges
	if got[0].Start != 1095 || got[0].End != 1205 || got[1].Start != 1295 || got[1].End != 0 {
		t.Errorf("got %+v, %+v", got[0], got[1])
	}
	if h.Exchanges[0].Start != 100 {
		t.Error("the original was changed")
	}
}

func TestClockOffset(t *testing.T) {
	r := check.NewRecorder()
	offset, doubt := clockOffset(r)
	before := monotonic()
	now := r.Now() + offset
	after := monotonic()
	if now < before-doubt || now > after+doubt {
		t.Errorf("%d is not between %d and %d, give or take %d", now, before, after, doubt)
	}
}

func TestWhatASleeperIsToldIsJudged(t *testing.T) {
	const stopped, woken = 100, 200
	for _, tt := range []struct {
		what  string
		newer uint64
		told  []news
		found bool
	}{
		{"loss first, then refused", 9, []news{{What: newsLost, Began: 90, At: 210}, {What: newsRefused, Began: 220, At: 230}, {What: newsAcquired, Began: 240, At: 250}}, false},
		{"a late answer to what was sent before", 9, []news{{What: newsWrote, Began: 90, At: 210}, {What: newsLost, Began: 211, At: 212}}, false},
		{"a write after it woke", 9, []news{{What: newsWrote, Began: 201, At: 210}, {What: newsLost, Began: 211, At: 212}}, true},
		{"a failure before the loss", 9, []news{{What: newsFailed, Began: 201, At: 210}, {What: newsLost, Began: 211, At: 212}}, true},
		{"an old token accepted under a newer one", 9, []news{{What: newsLost, Began: 201, At: 210}, {What: newsSlipped, Began: 211, At: 212, Token: 5}}, true},
		{"an old token that nobody superseded", 0, []news{{What: newsLost, Began: 201, At: 210}, {What: newsSlipped, Began: 211, At: 212, Token: 5}}, false},
	} {
		a := &pauseHolder{told: journal{all: tt.told}}
		a.judge(stopped, woken, tt.newer)
		if (len(a.found) > 0) != tt.found {
			t.Errorf("%s: found %q", tt.what, a.found)
		}
	}
}

// Each fault is done to one mutation, and what the proxy sends of its own is
// recorded as that.
func TestReplyProxy(t *testing.T) {
	for _, tt := range []struct {
		what     badReply
		answered bool // the client
		before   int32
		after    int32 // requests at the node once what was held has been sent
		own      int   // exchanges recorded
	}{
		{answerLost, false, 1, 1, 0},
		{askedTwice, true, 2, 2, 1},
		{heldBack, false, 0, 1, 1},
	} {
		var asked atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			body, _ := io.ReadAll(q.Body)
			if q.Method == http.MethodPut && (string(body) != "v" || q.Header.Get("Idempotency-Key") != "k") {
				t.Errorf("%s: the node got %q under %q", tt.what, body, q.Header.Get("Idempotency-Key"))
			}
			if q.Method == http.MethodPut {
				asked.Add(1)
			}
			w.Header().Set("X-Told", "yes")
			io.WriteString(w, "answer")
		}))
		rec := check.NewRecorder()
		p, err := newReplyProxy(&node{name: "n1", http: strings.TrimPrefix(server.URL, "http://")}, "127.0.0.1:0", rec)
		if err != nil {
			t.Fatal(err)
		}
		o := p.order(tt.what)
		get, err := http.Get(p.url() + "/v1/kv/a")
		if err != nil || get.Header.Get("X-Told") != "yes" {
			t.Errorf("%s: a read was spoilt: %v", tt.what, err)
		}
		get.Body.Close()
		q, _ := http.NewRequest(http.MethodPut, p.url()+"/v1/kv/a", strings.NewReader("v"))
		q.Header.Set("Idempotency-Key", "k")
		// Not the default transport, which would send it again.
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(q)
		if err == nil {
			resp.Body.Close()
		}
		if (err == nil) != tt.answered {
			t.Errorf("%s: the client got %v, %v", tt.what, resp, err)
		}
		<-o.met
		if got := asked.Load(); tt.what != askedTwice && got != tt.before {
			t.Errorf("%s: the node was asked %d times before, want %d", tt.what, got, tt.before)
		}
		o.send(t.Context())
		if got := asked.Load(); got != tt.after {
			t.Errorf("%s: the node was asked %d times in all, want %d", tt.what, got, tt.after)
		}
		own := rec.History().Exchanges
		if len(own) != tt.own {
			t.Errorf("%s: %d exchanges are recorded, want %d", tt.what, len(own), tt.own)
		}
		for _, x := range own {
			if x.Client != proxyClient+"n1" || x.Key != "k" || x.Status != http.StatusOK {
				t.Errorf("%s: recorded %+v", tt.what, x)
			}
		}
		p.close()
		server.Close()
	}
}

// An order that nothing meets can be taken back, and does nothing then.
func TestAnOrderCanBeTakenBack(t *testing.T) {
	p := &replyProxy{}
	o := p.order(answerLost)
	if !p.cancel(o) {
		t.Error("it is said to have been met")
	}
	if p.take(&http.Request{Method: http.MethodPut}) != nil {
		t.Error("it is still there")
	}
	o = p.order(heldBack)
	if p.take(&http.Request{Method: http.MethodPut}) != o || p.cancel(o) {
		t.Error("it was met, and could be taken back")
	}
}

// A pipe that nobody reads fills, and what was in it arrives later.
func TestLogPipeBlocks(t *testing.T) {
	log := t.TempDir() + "/log"
	p, err := newLogPipe(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.block(t.Context()); err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		p.w.WriteString(strings.Repeat("x", pipeBytes))
	}()
	select {
	case <-written:
		t.Error("the pipe took what it has no room for")
	case <-time.After(50 * time.Millisecond):
	}
	p.unblock()
	<-written
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
}

func TestFreePortsAreFree(t *testing.T) {
	ports, err := freePorts("127.0.0.1", 2)
	if err != nil || len(ports) != 2 || ports[0] == ports[1] {
		t.Fatalf("got %v, %v", ports, err)
	}
}

// The reader of news stops with its process, and has all until then.
func TestJournalFollows(t *testing.T) {
	r, w := net.Pipe()
	var j journal
	done := make(chan struct{})
	go func() {
		defer close(done)
		j.follow(r)
	}()
	io.WriteString(w, `{"what":"wrote","at":5}`+"\n"+`{"what":"lost","at":7}`+"\n"+`{"what":"cut`)
	w.Close()
	<-done
	if got := j.since(5); len(got) != 1 || got[0].What != newsLost {
		t.Errorf("got %+v", got)
	}
	a := &pauseHolder{told: journal{all: j.all}, exited: make(chan struct{})}
	if err := a.hears(context.Background(), 0, newsLost); err != nil {
		t.Error(err)
	}
	close(a.exited)
	if a.hears(context.Background(), 7, newsLost) == nil {
		t.Error("heard of what was not told")
	}
}

// Two attacks at once must not take each other's order away.
func TestAProxyTakesOneOrderAtATime(t *testing.T) {
	p := new(replyProxy)
	first := p.order(answerLost)
	if first == nil || p.order(heldBack) != nil {
		t.Fatal("a second order was taken beside the first")
	}
	if !p.cancel(first) || p.order(heldBack) == nil {
		t.Error("no order is taken after the first was taken back")
	}
}
