package check

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// Follow reads one stream of events from the node at a base URL until it ends or ctx
// does, and fills in what came. from 0: from now on.
func (r *Recorder) Follow(ctx context.Context, rt http.RoundTripper, base, watcher string, from uint64) *Stream {
	s := &Stream{Watcher: watcher, Start: r.Now(), From: from}
	defer r.AddStream(s)
	url := base + "/v1/watch"
	if from > 0 {
		url += "?from=" + strconv.FormatUint(from, 10)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return s
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return s
	}
	defer resp.Body.Close()
	s.Status = resp.StatusCode
	if s.Status != http.StatusOK {
		return s
	}
	var e StreamedEvent
	id := uint64(0)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "event":
			e.Event = value
		case "data":
			e.Data = json.RawMessage(value)
		case "id":
			id, _ = strconv.ParseUint(value, 10, 64)
		case "": // the end of a message
			if e.Event != "" {
				e.At, e.Last = r.Now(), id > 0
				s.Events = append(s.Events, e)
			}
			if id > 0 {
				s.Reached = id
			}
			e, id = StreamedEvent{}, 0
		}
	}
	return s
}
