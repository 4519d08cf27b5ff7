package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"fencepost/httpapi/wire"
)

// A Backup is a backup that is being read from a node. It ends with a checksum: only
// who reads it as one (fencepost snapshot inspect does) knows that it is whole. A
// stream that is cut off ends with an error and not with io.EOF.
type Backup struct {
	io.ReadCloser
	Index uint64 // that it is at
	Node  string // that takes it
}

// Backup begins to read a backup from any node; ctx bounds all of it. The caller
// must Close it.
func (c *Client) Backup(ctx context.Context) (*Backup, error) {
	o := &OutcomeError{Call: "take a backup"}
	pause := backOff{next: firstBackOff, free: c.nodes.spare()}
	for {
		n := c.nodes.pick()
		o.Attempts++
		b, v, err := c.backupFrom(ctx, n)
		if v == answered {
			return b, nil
		}
		if v == refused || v == hopeless {
			return nil, fmt.Errorf("%s: %w", o.Call, err)
		}
		if o.Last = err; c.once {
			return nil, o
		}
		if o.cause = pause.wait(ctx, true); o.cause != nil {
			return nil, o
		}
	}
}

func (c *Client) backupFrom(ctx context.Context, n *endpoint) (*Backup, verdict, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(c.attempt, cancel) // its header comes at once, or not at all
	req, err := c.request(ctx, http.MethodGet, n.base+"/v1/snapshot", nil)
	if err != nil {
		cancel()
		return nil, hopeless, err
	}
	resp, err := c.http.Do(req)
	if err == nil && !late.Stop() {
		resp.Body.Close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		c.left(n, true)
		return nil, notNow, err
	}
	if resp.StatusCode != http.StatusOK {
		defer cancel()
		e := c.refusal(n, resp)
		if e.Status == http.StatusTooManyRequests {
			return nil, notNow, e
		}
		return nil, judge(e), e
	}
	c.nodes.answered(n, "")
	index, _ := strconv.ParseUint(resp.Header.Get(wire.HeaderIndex), 10, 64)
	return &Backup{&cancelled{resp.Body, cancel}, index, resp.Header.Get(wire.HeaderNode)}, answered, nil
}

// cancelled is a body whose request ends with it.
type cancelled struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelled) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// RestoreOptions say how to restore.
type RestoreOptions struct {
	Force bool   // also another cluster's backup
	Above uint64 // no token afterwards is at or below it; 0: what the cluster knows is enough
}

// Restore replaces the contents of the cluster by those of a backup of so many
// bytes, which open opens anew for each attempt. All tokens from before are void
// then. It is sent until it is decided, under one Idempotency-Key, so that it is
// done once (P11), or until ctx ends: give it time. A 409 or 400 changed nothing.
func (c *Client) Restore(ctx context.Context, size int64, open func() (io.ReadCloser, error), o RestoreOptions) (*wire.Restored, error) {
	key, _ := ctx.Value(keyInContext{}).(string)
	if key == "" {
		key = rand.Text()
	}
	path := "/v1/snapshot/restore?force=" + strconv.FormatBool(o.Force) + "&above=" + strconv.FormatUint(o.Above, 10)
	out := &OutcomeError{Call: "restore a backup", Key: key}
	pause := backOff{next: firstBackOff, free: c.nodes.spare()}
	for {
		body, err := open()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", out.Call, err)
		}
		out.Attempts++
		done, v, sent, err := c.upload(ctx, path, key, size, body)
		switch v {
		case answered:
			return done, nil
		case refused:
			return nil, fmt.Errorf("%s: %w", out.Call, err)
		case hopeless:
			if !out.Unknown {
				return nil, fmt.Errorf("%s: %w", out.Call, err)
			}
			out.Last = err
			return nil, out
		case maybe:
			out.Unknown = true
		}
		if out.Last = err; c.once {
			return nil, out
		}
		if out.cause = pause.wait(ctx, sent); out.cause != nil {
			return nil, out
		}
	}
}

// upload is one attempt. It closes the body.
func (c *Client) upload(ctx context.Context, path, key string, size int64, body io.ReadCloser) (done *wire.Restored, v verdict, sent bool, err error) {
	defer body.Close()
	sent = c.foreign
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }}
	n := c.nodes.pick()
	read := &countedReader{r: body}
	req, err := c.request(httptrace.WithClientTrace(ctx, trace), http.MethodPost, n.base+path, io.NopCloser(read))
	if err != nil {
		return nil, hopeless, false, err
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", wire.ContentTypeBackup)
	req.Header.Set(wire.HeaderIdempotencyKey, key)
	resp, err := c.http.Do(req)
	if err != nil {
		c.left(n, !sent)
		if !sent || read.n.Load() < size { // nobody restores half a backup
			return nil, notNow, sent, err
		}
		return nil, maybe, true, err
	}
	if resp.StatusCode != http.StatusOK {
		e := c.refusal(n, resp)
		return nil, judge(e), true, e
	}
	defer resp.Body.Close()
	done = new(wire.Restored)
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(done); err != nil || !done.Restored {
		return nil, maybe, true, fmt.Errorf("answer is not the API's: %w", err)
	}
	c.nodes.answered(n, resp.Header.Get(wire.HeaderLeader))
	return done, answered, true, nil
}

// countedReader counts what was taken from it. The transport may go on reading when
// the exchange is over.
type countedReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func (c *Client) request(ctx context.Context, method, url string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err == nil && c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	return req, err
}

// refusal reads an answer that is none.
func (c *Client) refusal(n *endpoint, resp *http.Response) *Error {
	defer resp.Body.Close()
	got, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // what is cut off has no code
	e := problem(resp, got)
	c.nodes.failed(n, false, e.Leader)
	return e
}
