package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"fencepost/cluster/check"
	"fencepost/httpapi/wire"
)

// A watcher follows all events from the first on, over as many streams as it takes,
// each at another node. It reads the streams itself, since what they are is judged.
type watcher struct {
	name string
	at   int // node to ask next
	c    *cluster
	next uint64 // first index wanted
}

// streamSilence is longer than the ten seconds after which a live stream says
// something.
const streamSilence = 15 * time.Second

func (w *watcher) watch(ctx context.Context) {
	w.next = 1
	for ; ctx.Err() == nil; sleep(ctx, 50*time.Millisecond) {
		n := w.c.nodes[w.at%len(w.c.nodes)]
		s := w.stream(ctx, n)
		if s.Status == 0 {
			w.at++
			continue
		}
		w.c.recorder.AddStream(s)
		if s.Reached >= w.next {
			w.next = s.Reached + 1
		}
		if ctx.Err() == nil {
			w.at++
		}
	}
}

// stream is one stream, to its end.
func (w *watcher) stream(ctx context.Context, n *node) *check.Stream {
	s := &check.Stream{Watcher: w.name, Start: w.c.recorder.Now(), From: w.next, Renewals: w.at%2 == 1}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(streamSilence, cancel)
	defer silent.Stop()
	url := fmt.Sprintf("%s/v1/watch?from=%d", n.url(), w.next)
	if s.Renewals {
		url += "&renewals=true"
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return s
	}
	q.Header.Set("Accept", wire.ContentTypeEvents)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(q)
	if err != nil {
		return s
	}
	defer resp.Body.Close()
	s.Status = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		return s
	}
	var m check.StreamedEvent
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	id := uint64(0)
	for lines.Scan() {
		silent.Reset(streamSilence)
		field, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			m.Event = string(value)
		case "id":
			id, _ = strconv.ParseUint(string(value), 10, 64)
		case "data":
			m.Data = append(m.Data, value...)
		case "":
			if len(m.Data) > 0 && json.Valid(m.Data) {
				m.At, m.Last = w.c.recorder.Now(), id != 0
				s.Events = append(s.Events, m)
			}
			s.Reached = max(s.Reached, id)
			m, id = check.StreamedEvent{}, 0
		}
	}
	return s
}
