package client

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"

	"fencepost/httpapi/wire"
)

// A Guard says what a write's token must be.
type Guard string

const (
	GuardLatest Guard = wire.GuardLatest // on record, and not below the key's watermark; the default
	GuardHeld   Guard = wire.GuardHeld   // and its lease must be live

	Latest, Held = GuardLatest, GuardHeld // the same, for Lease.Guard
)

// Write is what a guarded write carries beside key and value. A write without a
// token is refused.
type Write struct {
	Token       uint64
	Guard       Guard   // "": GuardLatest
	Lease       string  // the token must be this lease's; "": any
	IfVersion   *uint64 // the key must have this version; 0: it must not exist
	ContentType string  // stored with the value

	lease *Lease // from Lease.Guard: nothing is sent once it has ended
}

// If is the write on the condition that the key has this version.
func (w Write) If(version uint64) Write { w.IfVersion = &version; return w }

// IfAbsent is the write on the condition that the key has no value.
func (w Write) IfAbsent() Write { return w.If(0) }

func (w Write) call(what, method, path string, value []byte) *call {
	h := make(http.Header)
	if w.Token != 0 {
		h.Set(wire.HeaderFencingToken, strconv.FormatUint(w.Token, 10))
	}
	if w.Guard != "" {
		h.Set(wire.HeaderFencingGuard, string(w.Guard))
	}
	if w.Lease != "" {
		h.Set(wire.HeaderFencingLease, w.Lease)
	}
	switch {
	case w.IfVersion == nil:
	case *w.IfVersion == 0:
		h.Set("If-None-Match", "*")
	default:
		h.Set("If-Match", `"`+strconv.FormatUint(*w.IfVersion, 10)+`"`)
	}
	if w.ContentType != "" {
		h.Set("Content-Type", w.ContentType)
	}
	return &call{what: what, method: method, path: path, header: h, body: value, lease: w.lease}
}

func keyPath(key string) string { return "/v1/kv/" + escape(key) }

// Put writes a value of up to 512 KiB. ErrStale: the fence refused it and nothing
// was written (P4).
func (c *Client) Put(ctx context.Context, key string, value []byte, w Write) (*wire.Put, error) {
	r := new(wire.Put)
	if _, err := c.into(ctx, w.call("put "+key, http.MethodPut, keyPath(key), value), r); err != nil {
		return nil, err
	}
	return r, nil
}

// Delete removes a value; the watermark stays (P5).
func (c *Client) Delete(ctx context.Context, key string, w Write) (*wire.Deleted, error) {
	r := new(wire.Deleted)
	if _, err := c.into(ctx, w.call("delete "+key, http.MethodDelete, keyPath(key), nil), r); err != nil {
		return nil, err
	}
	return r, nil
}

// Fence raises a key's watermark to the token and leaves its value: older tokens
// are refused from then on.
func (c *Client) Fence(ctx context.Context, key string, w Write) (*wire.Fenced, error) {
	r := new(wire.Fenced)
	if _, err := c.into(ctx, w.call("fence "+key, http.MethodPost, keyPath(key)+"/fence", nil), r); err != nil {
		return nil, err
	}
	return r, nil
}

// A Key is a key and its value.
type Key struct {
	Key         string
	Value       []byte
	Version     uint64 // index of the write
	Token       uint64 // that wrote it
	Watermark   uint64
	ContentType string
}

// Get reads a key, linearizably. ErrNotFound; the Error then carries the
// watermark, if one is kept.
func (c *Client) Get(ctx context.Context, key string) (*Key, error) {
	q := readCall("get "+key, keyPath(key))
	r := new(wire.Key)
	a, err := c.into(ctx, q, r)
	if err != nil {
		return nil, err
	}
	return keyOf(q, a, r)
}

// List returns one page of keys in key order, with or without their values. next
// is "" on the last page.
func (c *Client) List(ctx context.Context, p Page, values bool) (keys []*Key, next string, err error) {
	query := p.query()
	if values {
		query.Set("values", "true")
	}
	q := readCall("list keys", withQuery("/v1/kv", query))
	var r wire.Keys
	a, err := c.into(ctx, q, &r)
	if err != nil {
		return nil, "", err
	}
	for i := range r.Keys {
		k, err := keyOf(q, a, &r.Keys[i])
		if err != nil {
			return nil, "", err
		}
		keys = append(keys, k)
	}
	return keys, r.Next, nil
}

// Txn makes several guarded writes, all or nothing. A refusal's OpIndex names the
// operation that was refused.
func (c *Client) Txn(ctx context.Context, t wire.TxnRequest) (*wire.Txn, error) {
	return c.txn(ctx, t, nil)
}

func (c *Client) txn(ctx context.Context, t wire.TxnRequest, l *Lease) (*wire.Txn, error) {
	q, err := jsonCall("transaction", "/v1/txn", t)
	if err != nil {
		return nil, err
	}
	q.lease = l
	r := new(wire.Txn)
	if _, err := c.into(ctx, q, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Cluster tells about the cluster and its nodes. From then on the client follows
// hints to a leader also to the nodes that it names.
func (c *Client) Cluster(ctx context.Context) (*wire.Cluster, error) {
	r := new(wire.Cluster)
	a, err := c.into(ctx, readCall("get cluster", "/v1/cluster"), r)
	if err != nil {
		return nil, err
	}
	c.nodes.learn(a.base, r.Nodes)
	return r, nil
}

func keyOf(q *call, a *answer, k *wire.Key) (*Key, error) {
	out := &Key{Key: k.Key, Version: k.Version, Token: k.Token, Watermark: k.Watermark, ContentType: k.ContentType}
	if k.ValueBase64 != nil {
		value, err := base64.StdEncoding.DecodeString(*k.ValueBase64)
		if err != nil {
			return nil, unreadable(q, a, err)
		}
		out.Value = value
	}
	return out, nil
}
