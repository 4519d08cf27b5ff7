package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
)

const workWatch = "watch"

// stoppedReadBytes is the socket's buffer of a reader that does not read, so that
// the server soon feels it.
const stoppedReadBytes = 4 << 10

// prepareWatch opens the client's own stream of what happens to its key.
func (c *benchClient) prepareWatch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.setup.duration+2*benchCallBound)
	body, err := openWatch(ctx, &http.Client{Transport: &http.Transport{TLSClientConfig: c.setup.tls}}, c.setup, "?kind=kv&prefix="+c.name)
	if err != nil {
		cancel()
		return err
	}
	c.events = bufio.NewReader(body.Body)
	c.endWatch = func() { cancel(); body.Body.Close() }
	return nil
}

func openWatch(ctx context.Context, h *http.Client, s benchSetup, query string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/v1/watch"+query, nil)
	if err != nil {
		return nil, err
	}
	if s.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+s.bearer)
	}
	resp, err := h.Do(r)
	if err == nil && resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		err = fmt.Errorf("GET /v1/watch: %s", resp.Status)
	}
	return resp, err
}

// writeAndSee writes, and waits until the client's stream tells of that write.
func (c *benchClient) writeAndSee() error {
	if err := c.send(c.again); err != nil {
		return err
	}
	for {
		line, err := c.events.ReadString('\n')
		if err != nil {
			return fmt.Errorf("the stream ended: %w", err)
		}
		if id, ok := strings.CutPrefix(line, "id:"); ok && strings.TrimSpace(id) == c.index {
			return nil
		}
	}
}

// stopReaders opens streams of everything, of which nobody reads more than the head.
func stopReaders(ctx context.Context, s benchSetup, n int) (end func(), err error) {
	ctx, end = context.WithCancel(ctx)
	h := &http.Client{Transport: &http.Transport{
		TLSClientConfig: s.tls, ReadBufferSize: stoppedReadBytes,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if tcp, ok := conn.(*net.TCPConn); ok {
				err = tcp.SetReadBuffer(stoppedReadBytes)
			}
			return conn, err
		},
	}}
	for range n {
		if _, err := openWatch(ctx, h, s, ""); err != nil { // it ends with ctx
			end()
			return nil, fmt.Errorf("bench: a stopped reader: %w", err)
		}
	}
	return end, nil
}
