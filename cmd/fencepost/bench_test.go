package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/httpapi/wire"
)

// benchNode is a leader that checks what the load sends: that a lease is released
// with the token that was given, before it is acquired again.
type benchNode struct {
	tokens   atomic.Uint64
	mu       sync.Mutex // guards held and acquired
	held     map[string]uint64
	acquired map[string]time.Time
	early    time.Duration // leases end by so much before their time
	faults   atomic.Int64
	streams  atomic.Int64
	written  sync.Map // key: the channel of its stream
	refuse   bool
	address  string
}

func (n *benchNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := func(format string, args ...any) {
		n.faults.Add(1)
		http.Error(w, fmt.Sprintf(format, args...), http.StatusBadRequest)
	}
	path := r.URL.Path
	switch {
	case path == "/v1/cluster":
		jsonAnswer(wire.Cluster{Leader: "n1", Nodes: []wire.Node{{Name: "n1", Leader: true, HTTPAddr: n.address}}})(w, r)
	case n.refuse:
		problemAnswer(wire.Problem{Code: wire.CodeOverloaded})(w, r)
	case strings.HasSuffix(path, "/acquire"):
		token := n.tokens.Add(1)
		n.mu.Lock()
		defer n.mu.Unlock()
		name := strings.TrimSuffix(path, "/acquire")
		if n.held[name] != 0 {
			fault("%s is held", name)
			return
		}
		n.held[name], n.acquired[name] = token, time.Now()
		jsonAnswer(wire.Acquired{Token: token, PreviousToken: 999})(w, r)
	case strings.HasSuffix(path, "/release"), strings.HasSuffix(path, "/renew"):
		var body wire.ReleaseRequest
		err := json.NewDecoder(r.Body).Decode(&body)
		n.mu.Lock()
		defer n.mu.Unlock()
		name := path[:strings.LastIndex(path, "/")]
		if err != nil || body.Token == 0 || n.held[name] != body.Token {
			fault("token %d, held %d, %v", body.Token, n.held[name], err)
			return
		}
		if strings.HasSuffix(path, "/release") {
			n.held[name] = 0
		}
		jsonAnswer(wire.Released{Released: true})(w, r)
	case r.Method == http.MethodGet && strings.Contains(path, "/"+workExpiry+"/"):
		n.mu.Lock()
		defer n.mu.Unlock()
		over := time.Since(n.acquired[path]) >= benchLeased-n.early
		if over {
			n.held[path] = 0
		}
		jsonAnswer(wire.Lease{Held: !over})(w, r)
	case r.Method == http.MethodPut:
		if r.ContentLength != benchValueBytes || r.Header.Get("Fencing-Token") == "" {
			fault("a write of %d bytes under %q", r.ContentLength, r.Header.Get("Fencing-Token"))
		}
		index := fmt.Sprint(n.tokens.Add(1))
		w.Header().Set("Fencepost-Index", index)
		if c, ok := n.written.Load(strings.TrimPrefix(path, "/v1/kv/")); ok {
			c.(chan string) <- index
		}
	case path == "/v1/watch":
		n.streams.Add(1)
		w.WriteHeader(http.StatusOK)
		c := make(chan string, 1)
		n.written.Store(r.URL.Query().Get("prefix"), c)
		for rc := http.NewResponseController(w); rc.Flush() == nil; {
			select {
			case index := <-c:
				fmt.Fprintf(w, "id: %s\nevent: put\n\n", index)
			case <-r.Context().Done():
				return
			}
		}
	case r.Method != http.MethodGet:
		fault("%s %s", r.Method, path)
	}
}

func startBenchNode(t *testing.T, n *benchNode) string {
	t.Helper()
	n.held, n.acquired = make(map[string]uint64), make(map[string]time.Time)
	s := httptest.NewUnstartedServer(n)
	n.address = s.Listener.Addr().String()
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func TestBench(t *testing.T) {
	n := new(benchNode)
	url := startBenchNode(t, n)
	code, stdout, stderr := command(t, "", "bench", "--endpoints", url, "--duration", "600ms", "--clients", "1,3", "-o", "json",
		"--works", "acquire-release,renew,write,read")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var got struct{ Results []benchCell }
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Results) != 8 {
		t.Fatalf("%d cells, want 4 works by 2 numbers of clients", len(got.Results))
	}
	for _, c := range got.Results {
		if c.Ops == 0 || c.OpsPerSec <= 0 || c.Errors != 0 || c.P50MS <= 0 || c.P99MS < c.P50MS {
			t.Errorf("%+v", c)
		}
	}
	if n.faults.Load() != 0 {
		t.Errorf("%d wrong requests", n.faults.Load())
	}
	code, stdout, _ = command(t, "", "bench", "--endpoints", url, "--duration", "600ms", "--clients", "1", "--works", "read")
	if code != 0 || !strings.Contains(stdout, "OPS/S") || !strings.Contains(stdout, "read") {
		t.Errorf("exit %d: %s", code, stdout)
	}
}

// Each write is counted once the client's own stream has told of it, and readers
// that do not read are there beside it.
func TestBenchWatchBesideStoppedReaders(t *testing.T) {
	n := new(benchNode)
	url := startBenchNode(t, n)
	code, stdout, stderr := command(t, "", "bench", "--endpoints", url, "--duration", "600ms", "--clients", "3", "-o", "json",
		"--works", workWatch, "--stopped-readers", "4")
	var got struct{ Results []benchCell }
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || len(got.Results) != 1 {
		t.Fatalf("exit %d: %s %s", code, stdout, stderr)
	}
	if c := got.Results[0]; c.Ops == 0 || c.Errors != 0 || n.faults.Load() != 0 {
		t.Errorf("%+v, %d wrong requests", c, n.faults.Load())
	}
	if got := n.streams.Load(); got != 3+4 {
		t.Errorf("%d streams, want those of 3 clients and 4 stopped readers", got)
	}
}

// A lease that is free before its time is an error, however fast it looks.
func TestP7_BenchSeesEarlyExpiry(t *testing.T) {
	for _, early := range []time.Duration{0, benchWatched / 2} {
		url := startBenchNode(t, &benchNode{early: early})
		code, stdout, stderr := command(t, "", "bench", "--endpoints", url, "--duration", "1s", "--clients", "2", "--works", workExpiry, "-o", "json")
		var got struct{ Results []benchCell }
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || len(got.Results) != 1 {
			t.Fatalf("exit %d: %s %s", code, stdout, stderr)
		}
		c := got.Results[0]
		if early == 0 && (c.Ops == 0 || c.Errors != 0) || early > 0 && (c.Errors == 0 || !strings.Contains(c.Error, "early")) {
			t.Errorf("leases that end %s early: %+v", early, c)
		}
	}
}

func TestBenchWithoutSuccessFails(t *testing.T) {
	url := startBenchNode(t, &benchNode{refuse: true})
	for _, work := range benchWorkNames() {
		code, stdout, stderr := command(t, "", "bench", "--endpoints", url, "--duration", "150ms", "--clients", "2", "--works", work)
		if code != exitRefused || !strings.Contains(stderr, "503") || !strings.Contains(stdout, work) {
			t.Errorf("%s: exit %d: %s%s", work, code, stdout, stderr)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]uint32, 100)
	for i := range hundred {
		hundred[i] = uint32(i + 1)
	}
	for _, tt := range []struct {
		sorted []uint32
		p      int
		want   uint32
	}{{hundred, 50, 50}, {hundred, 99, 99}, {[]uint32{7}, 50, 7}, {[]uint32{7}, 99, 7}, {[]uint32{1, 9}, 50, 1}, {[]uint32{1, 9}, 99, 9}} {
		if got := percentile(tt.sorted, tt.p); got != tt.want {
			t.Errorf("percentile %d of %d values: got %d, want %d", tt.p, len(tt.sorted), got, tt.want)
		}
	}
}
