package onenode_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/client/internal/onenode"
	"fencepost/cluster/bubble"
	"fencepost/cluster/check"
	"fencepost/cluster/check/linear"
)

// What the real state machine answers through the real API to clients that lose
// answers, repeat calls, overstay and write with old tokens has an order.
func TestRealAnswersAreLinearizable(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	h := played(t, crowd{seed: seed, clients: 12, names: 6, calls: 300})
	told(t, h, seed)
	v := linear.Judge(h, t.TempDir())
	t.Log(v.Note)
	if len(v.Findings) > 0 {
		t.Errorf("seed %d: %q", seed, v.Findings)
	}
}

// An answer that is exchanged for another's is found: the proof that the check above
// can fail on such a history.
func TestAForgedAnswerAmongRealOnesIsFound(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	h := played(t, crowd{seed: seed, clients: 12, names: 6, calls: 100})
	forged := 0
	for i, x := range h.Exchanges {
		if x.Method != http.MethodGet || !strings.HasPrefix(x.Path, "/v1/kv/") || x.Status != http.StatusOK {
			continue
		}
		// As a node that is behind would answer: what was there 500 exchanges ago.
		for _, old := range h.Exchanges[:max(0, i-500)] {
			if old.Path == x.Path && old.Status == http.StatusOK && old.Told["Etag"] != x.Told["Etag"] && forged == 0 {
				y := *x
				y.Told, y.Answer = old.Told, old.Answer
				h.Exchanges[i] = &y
				forged = y.ID
			}
		}
	}
	if forged == 0 {
		t.Fatalf("seed %d: no read to forge", seed)
	}
	if v := linear.Judge(h, ""); len(v.Findings) == 0 {
		t.Errorf("seed %d: exchange %d was forged, and not found; %s", seed, forged, v.Note)
	}
}

// told checks that the history is worth judging.
func told(t *testing.T, h *check.History, seed uint64) {
	t.Helper()
	seen := make(map[string]int)
	for _, x := range h.Exchanges {
		call := x.Path[strings.LastIndexByte(x.Path, '/')+1:]
		if strings.HasPrefix(x.Path, "/v1/kv/") && x.Method != http.MethodPost {
			call = x.Method
		}
		seen[fmt.Sprint(call, " ", x.Status)]++
	}
	for _, want := range []string{
		"acquire 200", "acquire 409", "acquire 0", "renew 200", "renew 409", "release 200", "release 0", "cancel 200",
		"PUT 200", "PUT 412", "PUT 0", "GET 200", "GET 404", "DELETE 200", "fence 200", "txn 200", "txn 412", "txn 0",
	} {
		if seen[want] == 0 {
			t.Errorf("seed %d: there is no %q among %v", seed, want, seen)
		}
	}
}

// The size that the check is built for ends in seconds. Its limit is generous, since
// the machine may be busy and the race detector may be on.
func TestTwentyThousandRealAnswersAreJudgedInSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("plays twenty thousand calls")
	}
	h := played(t, crowd{seed: 1, clients: 12, names: 20, calls: 1600})
	began := time.Now()
	v := linear.JudgeWithin(h, t.TempDir(), 10*time.Second)
	t.Logf("%v: %s", time.Since(began), v.Note)
	if len(v.Findings) > 0 {
		t.Errorf("%q", v.Findings)
	}
}

func played(t *testing.T, c crowd) (h *check.History) {
	bubble.Test(t, func(*testing.T) { h = c.play() })
	return h
}

// A crowd is clients that do what they want, each with a choice of its own.
type crowd struct {
	seed                  uint64
	clients, names, calls int
}

// play must run in a bubble, or it takes as long as it says.
func (c crowd) play() *check.History {
	cluster := onenode.New()
	defer cluster.Close()
	node := cluster.Node("n1")
	recorder := check.NewRecorder()
	var all, late sync.WaitGroup
	for i := range c.clients {
		random := rand.New(rand.NewPCG(c.seed, uint64(i)))
		name := fmt.Sprint("c", i)
		p := &player{
			name: name, random: random, names: c.names, keys: make(map[string]string), tokens: make(map[string][]uint64),
			http: recorder.Transport(name, &lossy{node: node, random: rand.New(rand.NewPCG(^c.seed, uint64(i))), late: &late}),
		}
		all.Go(func() {
			for range c.calls {
				p.turn()
			}
		})
	}
	all.Wait()
	late.Wait()
	return recorder.History()
}
