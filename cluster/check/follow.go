package check

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Follow reads one stream of events from the node at a base URL until it ends or ctx
// does, as its watcher, From and so on say, and fills in what came.
func (r *Recorder) Follow(ctx context.Context, rt http.RoundTripper, base string, s *Stream) {
	s.Start = r.Now()
	defer r.AddStream(s)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/watch?"+s.query(), nil)
	if err != nil {
		return
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	s.Status = resp.StatusCode
	if s.Status != http.StatusOK {
		return
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
}

// query asks for the stream.
func (s *Stream) query() string {
	q := make(url.Values)
	if s.From > 0 {
		q.Set("from", strconv.FormatUint(s.From, 10))
	}
	if s.Kind != "" {
		q.Set("kind", s.Kind)
	}
	if s.Prefix != "" {
		q.Set("prefix", s.Prefix)
	}
	if s.Renewals {
		q.Set("renewals", "true")
	}
	return q.Encode()
}
