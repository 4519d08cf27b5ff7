package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/cluster/bubble"
	"fencepost/httpapi/wire"
)

// stream answers with these lines, and then ends.
func stream(lines string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", wire.ContentTypeEvents)
		io.WriteString(w, lines)
	}
}

// entry is what an entry's events look like, all of them and with the id.
func entry(index uint64, names ...string) (messages []string) {
	for i, name := range names {
		m := fmt.Sprintf("event: granted\ndata: {\"index\":%d,\"kind\":\"granted\",\"name\":%q}\n", index, name)
		if i == len(names)-1 {
			m += fmt.Sprintf("id: %d\n", index)
		}
		messages = append(messages, m+"\n")
	}
	return messages
}

// log is a node whose streams are cut after so many bytes, again and again.
type log struct {
	*httptest.Server
	mu      sync.Mutex // guards what follows
	resumed []string   // Last-Event-ID of each request
}

// newLog serves entries from 1 on; each stream ends after cutAfter bytes of it.
func newLog(t *testing.T, entries [][]string, cutAfter int) *log {
	l := new(log)
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last := r.Header.Get("Last-Event-ID")
		l.mu.Lock()
		l.resumed = append(l.resumed, last)
		l.mu.Unlock()
		done, err := strconv.Atoi(last)
		if err != nil {
			t.Errorf("Last-Event-ID %q", last)
		}
		all := fmt.Sprintf("retry: 1000\nid: %d\n\n", done)
		for _, e := range entries[min(done, len(entries)):] {
			all += strings.Join(e, "")
		}
		stream(all[:min(len(all), cutAfter)])(w, r)
	}))
	t.Cleanup(l.Close)
	return l
}

// Wherever streams are cut, also in the middle of an entry or of a line, each
// event comes once and in order.
func TestP13_B54_CutsNeitherLoseNorRepeatEvents(t *testing.T) {
	entries := [][]string{entry(1, "a"), entry(2, "b", "c", "d", "e"), entry(3, "f"), entry(4, "g", "h")}
	whole := len(strings.Join(entries[1], "")) + 40 // a stream must hold an entry, else nobody gets on
	for cutAfter := whole; cutAfter < 2*whole; cutAfter += 17 {
		a, b := newLog(t, entries, cutAfter), newLog(t, entries, cutAfter+5)
		c := newClient(t, []string{a.URL, b.URL})
		var got []string
		var last []uint64
		for e, err := range c.Watch(within(t, 20*time.Second), Watch{From: 1}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e.Name)
			if e.Last {
				last = append(last, e.Index)
			}
			if e.Index == 4 && e.Last {
				break
			}
		}
		if strings.Join(got, "") != "abcdefgh" || fmt.Sprint(last) != "[1 2 3 4]" {
			t.Errorf("cut after %d: got %v, last of %v", cutAfter, got, last)
		}
		if cutAfter == whole && len(a.resumed)+len(b.resumed) < 3 {
			t.Errorf("only %d streams", len(a.resumed)+len(b.resumed))
		}
	}
}

func TestWatchSendsWhatIsAskedFor(t *testing.T) {
	n := newNode(t, stream("id: 41\n\n"), stream(strings.Join(entry(42, "x"), "")))
	c := newClient(t, []string{n.URL}, WithBearerToken("s3cret"))
	for e, err := range c.Watch(within(t, 10*time.Second), Watch{Prefix: "a/b&c", Kinds: []string{"lease", "kv"}, Renewals: true}) {
		if err != nil || e.Index != 42 || string(e.Raw) != `{"index":42,"kind":"granted","name":"x"}` {
			t.Fatalf("got %+v, %v", e, err)
		}
		break
	}
	asked := n.requests()
	if got := asked[0].URL.RawQuery; got != "kind=lease&kind=kv&prefix=a%2Fb%26c&renewals=true" {
		t.Errorf("query %q", got)
	}
	if first, second := asked[0].Header.Get("Last-Event-ID"), asked[1].Header.Get("Last-Event-ID"); first != "" || second != "41" {
		t.Errorf("Last-Event-ID %q, then %q; want none, then 41", first, second)
	}
	if asked[0].Header.Get("Accept") != "text/event-stream" || asked[0].Header.Get("Authorization") != "Bearer s3cret" {
		t.Errorf("headers %v", asked[0].Header)
	}
}

const gone = `{"title":"gone","status":410,"code":"compacted","oldest":90,"detail":"list again"}`

// What one node does not keep another may; only when none does the watch ends.
func TestP13_CompactedIsSaidWhenNoNodeKeepsIt(t *testing.T) {
	a := newNode(t, refuse(410, gone))
	b := newNode(t, stream("id: 6\n\n"+strings.Join(entry(7, "x"), "")+"event: compacted\ndata: {\"code\":\"compacted\",\"reached\":7,\"oldest\":95}\n\n"), refuse(410, gone))
	c := newClient(t, []string{a.URL, b.URL})
	var got []string
	var end error
	for e, err := range c.Watch(within(t, 10*time.Second), Watch{From: 7}) {
		if err != nil {
			end = err
			continue
		}
		got = append(got, e.Name)
	}
	var e *Error
	if !errors.Is(end, ErrCompacted) || !errors.As(end, &e) || e.Oldest != 90 || strings.Join(got, "") != "x" {
		t.Errorf("got %v and %v (%+v)", got, end, e)
	}
	if got := b.requests()[0].Header.Get("Last-Event-ID"); got != "6" {
		t.Errorf("from 7 on is asked for as after %q", got)
	}
}

func TestWatchGoesOnOverWhatPasses(t *testing.T) {
	busy := refuse(429, `{"title":"busy","status":429,"code":"too_many_requests"}`)
	n := newNode(t, noLeader, busy, cut, stream(strings.Join(entry(5, "x"), "")))
	c := newClient(t, []string{n.URL})
	for e, err := range c.Watch(within(t, 10*time.Second), Watch{From: 5}) {
		if err != nil || e.Name != "x" {
			t.Fatalf("got %+v, %v", e, err)
		}
		break
	}
	// What does not pass ends it at once.
	for status, body := range map[int]string{400: `{"status":400,"code":"invalid_request","field":"kind"}`, 401: `{"status":401,"code":"unauthenticated"}`, 404: ``} {
		n := newNode(t, refuse(status, body))
		c := newClient(t, []string{n.URL})
		for _, err := range c.Watch(within(t, 10*time.Second), Watch{}) {
			var e *Error
			if !errors.As(err, &e) || e.Status != status {
				t.Errorf("%d: got %v", status, err)
			}
		}
		if got := len(n.requests()); got != 1 {
			t.Errorf("%d: asked %d times", status, got)
		}
	}
}

// Nobody answers: patience ends the watch, or else the context does.
func TestWatchGivesUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, err := New([]string{"http://a", "http://b"}, WithTransport(refusing{}))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, err := range c.Watch(t.Context(), Watch{Patience: time.Minute}) {
			if !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		}
		if took := time.Since(began); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("gave up after %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		for _, err := range c.Watch(ctx, Watch{}) {
			if !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
	})
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

// mute answers with a stream that says its position and then nothing more.
type mute struct{ asked []time.Time }

func (m *mute) RoundTrip(r *http.Request) (*http.Response, error) {
	m.asked = append(m.asked, time.Now())
	in, out := io.Pipe()
	go func() {
		io.WriteString(out, "id: 3\n\n")
		<-r.Context().Done()
		out.CloseWithError(r.Context().Err())
	}()
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: in}, nil
}

// A stream that has died without a word is given up after a while.
func TestSilentStreamsAreLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := new(mute)
		c, err := New([]string{"http://a"}, WithTransport(m))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*streamSilence)
		defer cancel()
		for e, err := range c.Watch(ctx, Watch{}) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %+v, %v", e, err)
			}
		}
		if len(m.asked) < 9 || len(m.asked) > 11 {
			t.Errorf("%d streams in %s", len(m.asked), 10*streamSilence)
		}
	})
}
