package replay

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"fencepost/cluster/check"
	"fencepost/fsm/model"
	"fencepost/httpapi/wire"
)

// judgeStreams is P13: what each watcher got, over all its streams, are the events of
// the log in their order, from where it began. A resume may bring the events of one
// entry a second time, but then all of them. all are the model's, last the index of
// the last entry.
func judgeStreams(streams []*check.Stream, all []model.Event, last uint64) *check.Verdict {
	v := &check.Verdict{Name: "P13 watchers miss nothing"}
	of := map[string][]*check.Stream{}
	for _, s := range streams {
		of[s.Watcher] = append(of[s.Watcher], s)
	}
	watchers := make([]string, 0, len(of))
	for w := range of {
		watchers = append(watchers, w)
	}
	slices.Sort(watchers)
	events := 0
	for _, w := range watchers {
		slices.SortStableFunc(of[w], func(a, b *check.Stream) int { return cmp.Compare(a.Start, b.Start) })
		var reached uint64 // 0: nowhere yet, or it was told to list again
		for _, s := range of[w] {
			if s.Status != http.StatusOK {
				if s.Status == http.StatusGone {
					reached = 0
				}
				continue
			}
			if reached > 0 && s.From > reached+1 {
				v.Find("%s had all up to index %d and went on from %d", w, reached, s.From)
			}
			if s.Reached > last {
				v.Find("%s was told that it has all up to index %d, and the log ends at %d", w, s.Reached, last)
			}
			if difference := streamDiffers(s, all); difference != "" {
				v.Find("%s, stream from %d: %s", w, s.From, difference)
			}
			events += len(s.Events)
			if n := len(s.Events); n > 0 && s.Events[n-1].Event == wire.EventCompacted {
				reached = 0
			} else if s.Reached > 0 {
				reached = s.Reached
			}
		}
	}
	v.Count("%d events", events)
	return v
}

// differs compares one stream with the events it must have.
func streamDiffers(s *check.Stream, all []model.Event) string {
	got := s.Events
	if n := len(got); n > 0 && got[n-1].Event == wire.EventCompacted {
		got = got[:n-1]
	}
	begin := s.From
	if begin == 0 {
		if len(got) == 0 {
			return "" // from now on, and nothing came
		}
		var first struct{ Index uint64 }
		if err := json.Unmarshal(got[0].Data, &first); err != nil {
			return fmt.Sprintf("event %s cannot be read: %v", got[0].Data, err)
		}
		begin = first.Index
	}
	i, _ := slices.BinarySearchFunc(all, begin, func(e model.Event, index uint64) int { return cmp.Compare(e.Index, index) })
	for _, e := range got {
		for i < len(all) && !selects(s, &all[i]) {
			i++
		}
		if i == len(all) {
			return fmt.Sprintf("%s %s came after all events of the log", e.Event, e.Data)
		}
		if difference := eventDiffers(e, &all[i], isLast(s, all, i)); difference != "" {
			return difference
		}
		i++
	}
	for ; i < len(all) && all[i].Index <= s.Reached; i++ {
		if selects(s, &all[i]) {
			return fmt.Sprintf("it ended at index %d without %+v", s.Reached, all[i])
		}
	}
	return ""
}

// isLast says whether no other event of the entry is selected after this one.
func isLast(s *check.Stream, all []model.Event, i int) bool {
	for k := i + 1; k < len(all) && all[k].Index == all[i].Index; k++ {
		if selects(s, &all[k]) {
			return false
		}
	}
	return true
}

func selects(s *check.Stream, e *model.Event) bool {
	kind := wire.WatchLease
	switch e.Kind {
	case model.Renewed:
		if !s.Renewals {
			return false
		}
	case model.Put, model.Deleted, model.Fenced:
		kind = wire.WatchKV
	case model.Refused:
		kind = wire.WatchRefusal
	case model.Restored:
		return true // it concerns everything
	}
	return strings.HasPrefix(e.Name, s.Prefix) && (s.Kind == "" || slices.Contains(strings.Split(s.Kind, ","), kind))
}

func eventDiffers(got check.StreamedEvent, want *model.Event, last bool) string {
	var event wire.Event
	d := json.NewDecoder(bytes.NewReader(got.Data))
	d.DisallowUnknownFields()
	if err := d.Decode(&event); err != nil {
		return fmt.Sprintf("event %s cannot be read: %v", got.Data, err)
	}
	if len(event.Metadata) == 0 {
		event.Metadata = nil
	}
	expected := eventOf(want)
	switch {
	case got.Event != expected.Kind || !reflect.DeepEqual(event, expected):
		return fmt.Sprintf("got %s %s, want %+v", got.Event, got.Data, expected)
	case got.Last != last:
		return fmt.Sprintf("%s %s: carries an id: %v, want %v", got.Event, got.Data, got.Last, last)
	}
	return ""
}

// eventOf is an event as the contract shows it (see wire.Event).
func eventOf(e *model.Event) wire.Event {
	w := wire.Event{Index: e.Index, Kind: string(e.Kind)}
	switch e.Kind {
	case model.Put, model.Deleted, model.Fenced:
		w.Key, w.Holder, w.Token, w.PreviousHolder, w.PreviousToken = e.Name, e.Holder, e.Token, e.PreviousHolder, e.PreviousToken
		w.Watermark, w.Version = e.Watermark, e.Version
		return w
	case model.Restored:
		return w
	case model.Refused:
		w.Key, w.Holder, w.Principal, w.Token, w.Watermark, w.Reason = e.Name, e.Holder, e.Principal, e.Token, e.Watermark, reasonOf(e.Reason)
		if w.Reason == "" {
			w.Reason = string(wire.CodeTokenNotIssued)
		}
		return w
	}
	w.Name, w.Holder, w.Token, w.QueueLength = e.Name, e.Holder, e.Token, uint64(e.QueueLength)
	switch e.Kind {
	case model.Renewed:
		w.TTLMS, w.QueueLength = e.TTLMS, 0
	case model.Queued, model.Dequeued:
		w.Ticket, w.Reason = e.Ticket, reasonOf(e.Reason)
	case model.Granted:
		w.PreviousHolder, w.PreviousToken, w.Ticket = e.PreviousHolder, e.PreviousToken, e.Ticket
		w.Slots, w.Take, w.TTLMS = e.Slots, e.Take, e.TTLMS
		if len(e.Metadata) > 0 {
			w.Metadata = metadataOf(e.Metadata)
		}
	case model.Released, model.Expired:
		w.PreviousHolder, w.PreviousToken, w.GraceMS = e.PreviousHolder, e.PreviousToken, e.GraceMS
	}
	return w
}
