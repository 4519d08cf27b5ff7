package onenode_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"fencepost/httpapi/wire"
)

// lossy is a network that takes its time, and loses requests and answers. A request
// may also arrive after its client has given up.
type lossy struct {
	node   http.Handler
	random *rand.Rand // of the one client that sends
	late   *sync.WaitGroup
}

var errLost = errors.New("connection reset")

func (n *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	there, back := n.delay(), n.delay()
	fate := n.random.IntN(100)
	serve := func(ctx context.Context) *http.Response {
		time.Sleep(there)
		w := httptest.NewRecorder()
		served := r.Clone(ctx)
		served.RequestURI = r.URL.RequestURI()
		n.node.ServeHTTP(w, served)
		time.Sleep(back)
		return w.Result()
	}
	switch {
	case fate < 2:
		return nil, errLost
	case fate < 4:
		serve(r.Context())
		return nil, errLost
	case fate < 6:
		there += n.delay() * 20
		n.late.Go(func() { serve(context.Background()) })
		return nil, errLost
	}
	return serve(r.Context()), nil
}

func (n *lossy) delay() time.Duration {
	return time.Duration(n.random.Int64N(int64(3 * time.Millisecond)))
}

// player is one client, on one goroutine.
type player struct {
	name   string
	random *rand.Rand
	names  int
	http   http.RoundTripper
	keys   map[string]string   // Idempotency-Key of the last acquire, by lease
	tokens map[string][]uint64 // that it got, by lease
	count  int
}

func (p *player) one(of ...string) string { return of[p.random.IntN(len(of))] }

// turn is one call, most of the time with what the player got last.
func (p *player) turn() {
	time.Sleep(time.Duration(p.random.Int64N(int64(20 * time.Millisecond))))
	name := fmt.Sprint("jobs/", p.random.IntN(p.names))
	key := fmt.Sprint(name, "/k", p.random.IntN(3))
	tokens := p.tokens[name]
	if len(tokens) == 0 {
		p.acquire(name)
		return
	}
	token := tokens[len(tokens)-1]
	if p.random.IntN(10) == 0 {
		token = tokens[p.random.IntN(len(tokens))] + uint64(p.random.IntN(30)/28)
	}
	body := fmt.Sprintf(`{"token":%d}`, token)
	switch p.random.IntN(14) {
	case 0, 1:
		p.acquire(name)
	case 2:
		p.send("POST", "/v1/leases/"+name+"/release", body, p.newKey(), nil)
	case 3:
		p.send("POST", "/v1/leases/"+name+"/renew", body, "", nil)
	case 4:
		p.send("GET", "/v1/leases/"+name, "", "", nil)
	case 5, 6, 7:
		p.write("PUT", key, token)
	case 8:
		p.write(p.one("DELETE", "FENCE"), key, token)
	case 9:
		p.txn(name, token)
	case 10, 11, 12:
		accept := map[string]string{}
		if p.random.IntN(3) == 0 {
			accept["Accept"] = "application/json"
		}
		p.send("GET", "/v1/kv/"+key, "", "", accept)
	case 13:
		if p.random.IntN(4) == 0 {
			p.send("POST", "/v1/leases/"+name+"/cancel", "", p.keys[name], nil)
		} else {
			p.send("GET", p.one("/v1/leases", "/v1/kv?values=true"), "", "", nil)
		}
	}
}

func (p *player) acquire(name string) {
	wait, ttl := 0, 100+p.random.IntN(900)
	if p.random.IntN(2) == 0 {
		wait = p.random.IntN(400)
	}
	p.keys[name] = p.newKey()
	r := p.send("POST", "/v1/leases/"+name+"/acquire", fmt.Sprintf(`{"holder":%q,"ttl_ms":%d,"wait_ms":%d}`, p.name, ttl, wait), p.keys[name], nil)
	var a wire.Acquired
	if r != nil && r.StatusCode == http.StatusOK && json.NewDecoder(r.Body).Decode(&a) == nil {
		p.tokens[name] = append(p.tokens[name], a.Token)
	}
}

func (p *player) write(method, key string, token uint64) {
	h := map[string]string{wire.HeaderFencingToken: fmt.Sprint(token)}
	switch p.random.IntN(8) {
	case 0:
		h[wire.HeaderFencingGuard] = wire.GuardHeld
	case 1:
		h[wire.HeaderFencingLease] = key[:strings.LastIndexByte(key, '/')]
	case 2:
		h["If-None-Match"] = "*"
	}
	body := ""
	path := "/v1/kv/" + key
	switch method {
	case "PUT":
		body = p.newKey()
	case "FENCE":
		method, path = "POST", path+"/fence"
	}
	p.send(method, path, body, p.newKey(), h)
}

func (p *player) txn(name string, token uint64) {
	q := wire.TxnRequest{Token: token, Ops: []wire.TxnOp{
		{Op: wire.OpPut, Key: name + "/k0", ValueBase64: new(base64.StdEncoding.EncodeToString([]byte(p.newKey())))},
		{Op: wire.OpDelete, Key: name + "/k1"},
		{Op: wire.OpPut, Key: name + "/k2", ValueBase64: new("")},
	}}
	if p.random.IntN(2) == 0 {
		q.Ops[1] = wire.TxnOp{Op: wire.OpCheck, Key: name + "/k1", IfVersion: new(uint64(0))}
	}
	b, _ := json.Marshal(q)
	p.send("POST", "/v1/txn", string(b), p.newKey(), nil)
}

func (p *player) newKey() string {
	p.count++
	return fmt.Sprint(p.name, "-", p.count)
}

// send sends a call, and repeats most of those that were lost, some that were not.
func (p *player) send(method, path, body, key string, header map[string]string) *http.Response {
	for {
		r, err := http.NewRequest(method, "http://n1"+path, strings.NewReader(body))
		if err != nil {
			panic(err) // a mistake in this file
		}
		for k, v := range header {
			r.Header.Set(k, v)
		}
		if key != "" {
			r.Header.Set(wire.HeaderIdempotencyKey, key)
		}
		r.Body = io.NopCloser(strings.NewReader(body))
		resp, err := p.http.RoundTrip(r)
		if key == "" || err == nil && p.random.IntN(30) > 0 || err != nil && p.random.IntN(3) == 0 {
			return resp
		}
	}
}
