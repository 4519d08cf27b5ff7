package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"fencepost/cluster/check"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// largeRun is 20 clients that take a lease each, write, renew, read and release, one
// call after another, so many calls in all: made without HTTP, since only its size
// counts.
func largeRun(calls int) (*check.History, []check.Entry) {
	h, s := &check.History{}, fsm.New()
	var log []check.Entry
	tokens := map[string]uint64{}
	for i := range calls {
		name := fmt.Sprint("n", i%20)
		x := &check.Exchange{ID: i + 1, Client: name, Start: int64(i)*1e6 + 1, End: int64(i)*1e6 + 2, Method: http.MethodPost, Status: http.StatusOK, Key: fmt.Sprint("key", i), Told: map[string]string{}}
		c := &fsmpb.Command{NowMs: uint64(i), Term: 1}
		request := func(path string) *fsmpb.Request {
			x.Path = path
			return &fsmpb.Request{Key: x.Key, Path: x.Method + " " + path, Digest: []byte("0123456789abcdef")}
		}
		step := i / 20 % 5
		switch step {
		case 0:
			x.Body = []byte(`{"holder":"h","ttl_ms":5000}`)
			c.Op = &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{Name: name, Holder: "h", TtlMs: 5000, Slots: 1, Take: 1, Request: request("/v1/leases/" + name + "/acquire")}}
		case 1:
			x.Method, x.Body = http.MethodPut, []byte(x.Key)
			x.Header = map[string]string{wire.HeaderFencingToken: fmt.Sprint(tokens[name])}
			c.Op = &fsmpb.Command_Write{Write: &fsmpb.Write{Token: tokens[name], Request: request("/v1/kv/" + name), Ops: []*fsmpb.WriteOp{{Kind: fsmpb.WriteOp_KIND_PUT, Key: name, Value: x.Body}}}}
		case 2:
			x.Path, x.Body = "/v1/leases/"+name+"/renew", fmt.Appendf(nil, `{"token":%d}`, tokens[name])
			c.Op = &fsmpb.Command_Renew{Renew: &fsmpb.Renew{Renewals: []*fsmpb.Renewal{{Name: name, Token: tokens[name]}}}}
		case 3:
			k, _ := s.Key(name)
			x.Method, x.Path, x.Key, x.Index, x.Answer = http.MethodGet, "/v1/kv/"+name, "", s.Index(), k.Value
			x.Told = map[string]string{"Etag": fmt.Sprintf(`"%d"`, k.Version), "Fencing-Token": fmt.Sprint(k.Token), "Fencing-Watermark": fmt.Sprint(k.Watermark), "Content-Type": "application/octet-stream"}
		case 4:
			x.Body = fmt.Appendf(nil, `{"token":%d}`, tokens[name])
			c.Op = &fsmpb.Command_Release{Release: &fsmpb.Release{Name: name, Token: tokens[name], Request: request("/v1/leases/" + name + "/release")}}
		}
		h.Exchanges = append(h.Exchanges, x)
		if c.Op == nil {
			continue
		}
		x.Index = s.Index() + 1
		log = append(log, check.Entry{Index: x.Index, Term: 1, Command: c})
		o, _, err := s.Apply(x.Index, 1, c)
		if err != nil {
			panic(err)
		}
		switch step {
		case 0:
			tokens[name] = o.Token
			x.Answer, _ = json.Marshal(wire.Acquired{Name: name, Holder: "h", Token: o.Token, TTLMS: o.TtlMs, ExpiresInMS: o.ExpiresInMs, PreviousToken: o.PreviousToken, OldestToken: o.OldestToken, Slots: 1, Take: 1, Metadata: map[string]string{}})
		case 1:
			x.Answer, _ = json.Marshal(wire.Put{Key: name, Version: o.Version, Watermark: o.Ops[0].Watermark})
		case 2:
			o = o.Renewals[0]
			x.Answer, _ = json.Marshal(wire.Renewed{Name: name, Token: o.Token, TTLMS: o.TtlMs, ExpiresInMS: o.ExpiresInMs})
		case 4:
			x.Answer, _ = json.Marshal(wire.Released{Released: o.Released})
		}
		if i%100 == 99 { // and what is due
			advance := &fsmpb.Command{NowMs: uint64(i), Term: 1, Op: &fsmpb.Command_Advance{Advance: &fsmpb.Advance{}}}
			log = append(log, check.Entry{Index: s.Index() + 1, Term: 1, Command: advance})
			if _, _, err := s.Apply(s.Index()+1, 1, advance); err != nil {
				panic(err)
			}
		}
	}
	return h, log
}

// TestALargeRunTakesSeconds: 100,000 exchanges. The bound is far above what a busy
// machine needs for work that grows with the run, and far below what it would need
// for work that grows with its square.
func TestALargeRunTakesSeconds(t *testing.T) {
	h, log := largeRun(100_000)
	began := time.Now()
	for _, v := range Judge(h, log) {
		if len(v.Findings) > 0 {
			t.Errorf("%s: %d findings, the first: %s", v.Name, len(v.Findings), v.Findings[0])
		}
	}
	took := time.Since(began)
	t.Logf("%d exchanges and %d entries took %v", len(h.Exchanges), len(log), took)
	if took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// TestARepetitionsRefusedDialIsNotTheWholeStory: net/http has written the request to a
// kept connection, which broke, and was refused when it dialled for the repetition.
func TestARepetitionsRefusedDialIsNotTheWholeStory(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, connected := range []bool{false, true} {
		rec := check.NewRecorder()
		next := roundTrip(func(q *http.Request) (*http.Response, error) {
			if connected {
				httptrace.ContextClientTrace(q.Context()).GotConn(httptrace.GotConnInfo{Reused: true})
			}
			return nil, refused
		})
		q, _ := http.NewRequest(http.MethodPost, "http://n/v1/leases/a/release", nil)
		if _, err := rec.Transport("c", next).RoundTrip(q); !errors.Is(err, refused) {
			t.Fatal(err)
		}
		if x := rec.History().Exchanges[0]; x.Unsent == connected {
			t.Errorf("connected %v, unsent %v", connected, x.Unsent)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }
