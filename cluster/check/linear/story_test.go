package linear

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

// A story is a history made by hand. Its instants are milliseconds.
type story struct{ h check.History }

// ask adds an exchange without an answer.
func (s *story) ask(start int64, method, path, body string) *check.Exchange {
	x := &check.Exchange{ID: len(s.h.Exchanges) + 1, Client: "c", Start: start * milli, Method: method, Path: path, Body: []byte(body), Header: map[string]string{}, Told: map[string]string{}}
	s.h.Exchanges = append(s.h.Exchanges, x)
	return x
}

// answer gives an exchange its answer.
func answered(x *check.Exchange, end int64, status int, doc any) *check.Exchange {
	x.End, x.Status = end*milli, status
	x.Answer, _ = json.Marshal(doc)
	return x
}

func refused(x *check.Exchange, end int64, p wire.Problem) *check.Exchange {
	p.Status, _ = p.Code.HTTP()
	return answered(x, end, p.Status, p)
}

func keyed(x *check.Exchange, key string) *check.Exchange { x.Key = key; return x }

func with(x *check.Exchange, header, value string) *check.Exchange {
	x.Header[header] = value
	return x
}

func (s *story) acquire(start int64, name string, waitMS uint64) *check.Exchange {
	b, _ := json.Marshal(wire.AcquireRequest{Holder: "h", TTLMS: 1000, WaitMS: waitMS})
	return s.ask(start, http.MethodPost, "/v1/leases/"+name+"/acquire", string(b))
}

// granted is the answer to an acquire, with the whole TTL of a second.
func granted(x *check.Exchange, end int64, name string, token, previous, waitedMS uint64) *check.Exchange {
	return answered(x, end, http.StatusOK, wire.Acquired{Name: name, Holder: "h", Token: token, TTLMS: 1000, ExpiresInMS: 1000, WaitedMS: waitedMS, PreviousToken: previous, OldestToken: token, Slots: 1, Take: 1})
}

// lease is an acquire that is granted at once.
func (s *story) lease(start, end int64, name string, token, previous uint64) *check.Exchange {
	return granted(s.acquire(start, name, 0), end, name, token, previous, 0)
}

func taken(x *check.Exchange, end int64, token uint64) *check.Exchange {
	return refused(x, end, wire.Problem{Code: wire.CodeLeaseHeld, Holder: new("h"), Token: token, ExpiresInMS: new(uint64(500)), QueueLength: new(uint64), WaitedMS: new(uint64)})
}

func lost(x *check.Exchange, end int64, token, last uint64, reason string) *check.Exchange {
	return refused(x, end, wire.Problem{Code: wire.CodeLeaseLost, Token: token, LastToken: &last, Reason: reason})
}

func (s *story) renew(start int64, name string, token uint64) *check.Exchange {
	return s.ask(start, http.MethodPost, "/v1/leases/"+name+"/renew", fmt.Sprintf(`{"token":%d}`, token))
}

func renewed(x *check.Exchange, end int64, name string, token uint64) *check.Exchange {
	return answered(x, end, http.StatusOK, wire.Renewed{Name: name, Token: token, TTLMS: 1000, ExpiresInMS: 1000})
}

func (s *story) release(start int64, name string, token uint64) *check.Exchange {
	return s.ask(start, http.MethodPost, "/v1/leases/"+name+"/release", fmt.Sprintf(`{"token":%d}`, token))
}

func released(x *check.Exchange, end int64, was bool) *check.Exchange {
	return answered(x, end, http.StatusOK, wire.Released{Released: was})
}

func (s *story) cancel(start, end int64, name, key string, was bool) *check.Exchange {
	return answered(keyed(s.ask(start, http.MethodPost, "/v1/leases/"+name+"/cancel", ""), key), end, http.StatusOK, wire.Cancelled{Cancelled: was})
}

// see is a read of a lease; token 0: it is free.
func (s *story) see(start, end int64, name string, token, last uint64) *check.Exchange {
	l := wire.Lease{Name: name, Held: token != 0, Token: token, LastToken: last, Slots: 1, ExpiresInMS: 1}
	if l.Held {
		l.Holder = "h"
	}
	return answered(s.ask(start, http.MethodGet, "/v1/leases/"+name, ""), end, http.StatusOK, l)
}

func (s *story) put(start int64, key, value string, token uint64) *check.Exchange {
	return with(s.ask(start, http.MethodPut, "/v1/kv/"+key, value), wire.HeaderFencingToken, strconv.FormatUint(token, 10))
}

func done(x *check.Exchange, end int64, key string, version, watermark uint64) *check.Exchange {
	return answered(x, end, http.StatusOK, wire.Put{Key: key, Version: version, Watermark: watermark})
}

func stale(x *check.Exchange, end int64, token, watermark uint64, reason string) *check.Exchange {
	return refused(x, end, wire.Problem{Code: wire.CodeStaleToken, Token: token, Watermark: &watermark, Reason: reason})
}

func (s *story) remove(start, end int64, key string, token uint64, was bool) *check.Exchange {
	x := with(s.ask(start, http.MethodDelete, "/v1/kv/"+key, ""), wire.HeaderFencingToken, strconv.FormatUint(token, 10))
	return answered(x, end, http.StatusOK, wire.Deleted{Key: key, Deleted: was, Watermark: token})
}

func (s *story) fence(start, end int64, key string, token uint64) *check.Exchange {
	x := with(s.ask(start, http.MethodPost, "/v1/kv/"+key+"/fence", ""), wire.HeaderFencingToken, strconv.FormatUint(token, 10))
	return answered(x, end, http.StatusOK, wire.Fenced{Key: key, Watermark: token})
}

// get is a read of a key's value.
func (s *story) get(start, end int64, key, value string, version, token, watermark uint64) *check.Exchange {
	x := s.ask(start, http.MethodGet, "/v1/kv/"+key, "")
	x.End, x.Status, x.Answer = end*milli, http.StatusOK, []byte(value)
	x.Told = map[string]string{
		"Etag": `"` + strconv.FormatUint(version, 10) + `"`, wire.HeaderFencingToken: strconv.FormatUint(token, 10),
		wire.HeaderWatermark: strconv.FormatUint(watermark, 10), "Content-Type": "application/octet-stream",
	}
	return x
}

// none is a read of a key without a value.
func (s *story) none(start, end int64, key string, watermark uint64) *check.Exchange {
	x := s.ask(start, http.MethodGet, "/v1/kv/"+key, "")
	p := wire.Problem{Code: wire.CodeNotFound}
	if watermark != 0 {
		x.Told[wire.HeaderWatermark] = strconv.FormatUint(watermark, 10)
		p.Watermark = &watermark
	}
	return refused(x, end, p)
}

func (s *story) txn(start int64, q wire.TxnRequest) *check.Exchange {
	b, _ := json.Marshal(q)
	return s.ask(start, http.MethodPost, "/v1/txn", string(b))
}

func putOp(key, value string) wire.TxnOp {
	return wire.TxnOp{Op: wire.OpPut, Key: key, ValueBase64: new(base64.StdEncoding.EncodeToString([]byte(value)))}
}
