package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"fencepost/cluster"
	"fencepost/cluster/bubble"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// block is what stands between two empty lines of a stream.
type block struct {
	event, data, id string
	comment         string
}

// document decodes the event, and holds it against the OpenAPI document.
func (b block) document(t *testing.T, schema *openapi3.Schema) (e wire.Event) {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(b.data), &v); err != nil {
		t.Fatalf("%v in %q", err, b.data)
	}
	if err := schema.VisitJSON(v); err != nil {
		t.Errorf("%s is not as documented: %v", b.data, err)
	}
	if err := json.Unmarshal([]byte(b.data), &e); err != nil {
		t.Fatal(err)
	}
	if e.Kind != b.event {
		t.Errorf("event %q has kind %q", b.event, e.Kind)
	}
	return e
}

// watching reads one stream, by HTTP/1.0 so that it comes without chunks.
type watching struct {
	t      *testing.T
	conn   net.Conn
	lines  *bufio.Reader
	status int
	header http.Header
}

func watchOn(t *testing.T, conn net.Conn, target string, headers ...string) *watching {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.0\r\n", target)
	for i := 0; i < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	if _, err := io.WriteString(conn, b.String()+"\r\n"); err != nil {
		t.Fatal(err)
	}
	w := &watching{t: t, conn: conn, lines: bufio.NewReader(conn)}
	resp, err := http.ReadResponse(w.lines, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.status, w.header = resp.StatusCode, resp.Header
	return w
}

// next reads a block; io.EOF at the end of the stream.
func (w *watching) next() (b block, err error) {
	w.t.Helper()
	for {
		line, err := w.lines.ReadString('\n')
		if err != nil {
			return b, err
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			return b, nil
		}
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "event":
			b.event = value
		case "data":
			b.data = value
		case "id":
			b.id = value
		case "":
			b.comment = value
		case "retry":
		default:
			w.t.Fatalf("line %q", line)
		}
	}
}

func (w *watching) mustNext() block {
	w.t.Helper()
	b, err := w.next()
	if err != nil {
		w.t.Fatalf("the stream ended early: %v", err)
	}
	return b
}

// until reads up to the block that has this id.
func (w *watching) until(id uint64) (blocks []block) {
	w.t.Helper()
	for {
		b := w.mustNext()
		blocks = append(blocks, b)
		if b.id == token10(id) {
			return blocks
		}
	}
}

// watchServer serves a node on connections in memory; it belongs into a bubble
// of synctest, which also sees to it that nothing is left behind.
type watchServer struct {
	t    *testing.T
	node *memory
	l    *pipeListener
	stop func()
}

func newWatchServer(t *testing.T, feed *cluster.Feed) *watchServer {
	node := newMemory("n1")
	if feed != nil {
		node.feed = feed
	}
	h := New(node, Options{})
	s := &watchServer{t: t, node: node, l: newPipeListener()}
	server := NewServer(h)
	served := make(chan error, 1)
	go func() { served <- server.Serve(s.l) }()
	s.stop = func() { server.Close(); h.Close(); <-served }
	return s
}

func (s *watchServer) watch(target string, headers ...string) *watching {
	s.t.Helper()
	return watchOn(s.t, s.l.dial(), target, headers...)
}

func (m *memory) index() uint64 { return m.Status().Index }

func (m *memory) grant(name, holder string, ttlMS uint64) uint64 {
	return m.apply(&fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: &fsmpb.Acquire{Name: name, Holder: holder, TtlMs: ttlMS}}}).Outcome.Token
}

func (m *memory) free(name string, token uint64) {
	m.apply(&fsmpb.Command{Op: &fsmpb.Command_Release{Release: &fsmpb.Release{Name: name, Token: token}}})
}

func (m *memory) change(token uint64, ops ...*fsmpb.WriteOp) *fsmpb.Outcome {
	return m.apply(&fsmpb.Command{Op: &fsmpb.Command_Write{Write: &fsmpb.Write{Token: token, Ops: ops}}}).Outcome
}

func putOp(key string) *fsmpb.WriteOp {
	return &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_PUT, Key: key, Value: []byte("v")}
}

func deleteOp(key string) *fsmpb.WriteOp {
	return &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_DELETE, Key: key}
}

func fenceOp(key string) *fsmpb.WriteOp {
	return &fsmpb.WriteOp{Kind: fsmpb.WriteOp_KIND_FENCE, Key: key}
}

// tick is an entry without events.
func (m *memory) tick() {
	m.apply(&fsmpb.Command{Op: &fsmpb.Command_Tick{Tick: &fsmpb.Tick{}}})
}

// story makes one of each event.
func (m *memory) story() {
	first := m.grant("jobs/a", "one", 5000)
	m.change(first, putOp("k/1"), putOp("k/2"))
	m.tick()
	m.free("jobs/a", first)
	second := m.grant("jobs/a", "two \"quoted\"\n", 1000)
	m.change(second, putOp("k/1"), deleteOp("k/2"), fenceOp("k/3"))
	m.change(first, putOp("k/1"))
	m.change(1<<40, putOp("k/1"))
	m.grant("other", "three", 5000)
	m.pass(1000)
}

func TestP13_AStreamShowsWhatHappens(t *testing.T) {
	schema := loadSpec(t).doc.Components.Schemas["WatchEvent"].Value
	bubble.Test(t, func(t *testing.T) {
		s := newWatchServer(t, nil)
		defer s.stop()
		start := s.node.index()
		w := s.watch("/v1/watch")
		defer w.conn.Close()
		for name, want := range map[string]string{
			"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no",
			"Fencepost-Node": "n1", "Fencepost-Index": token10(start), "Fencepost-Cluster": "c1",
		} {
			if got := w.header.Get(name); got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		if b := w.mustNext(); b != (block{id: token10(start)}) {
			t.Errorf("the stream begins with %+v, want its position", b)
		}
		s.node.story()
		var got []string
		for _, b := range w.until(s.node.index()) {
			e := b.document(t, schema)
			id := "-"
			if b.id != "" {
				id = fmt.Sprint(e.Index - start)
				if b.id != token10(e.Index) {
					t.Errorf("event of %d has id %s", e.Index, b.id)
				}
			}
			rel := func(n uint64) int { return int(n) - int(start) }
			switch e.Kind {
			case wire.EventGranted:
				prev := "none"
				if e.PreviousToken > 0 {
					prev = fmt.Sprintf("%s %d", e.PreviousHolder, rel(e.PreviousToken))
				}
				got = append(got, fmt.Sprintf("%s granted %s to %s %d after %s", id, e.Name, e.Holder, rel(e.Token), prev))
			case wire.EventReleased, wire.EventExpired:
				got = append(got, fmt.Sprintf("%s %s %s of %s %d, now %q %d", id, e.Kind, e.Name, e.PreviousHolder, rel(e.PreviousToken), e.Holder, e.Token))
			case wire.EventRefused:
				got = append(got, fmt.Sprintf("%s refused %s: %s below %d", id, e.Key, e.Reason, rel(e.Watermark)))
			default:
				got = append(got, fmt.Sprintf("%s %s %s by %d version %d", id, e.Kind, e.Key, rel(e.Token), max(rel(e.Version), 0)))
			}
		}
		want := []string{
			"1 granted jobs/a to one 1 after none",
			"- put k/1 by 1 version 2",
			"2 put k/2 by 1 version 2",
			`4 released jobs/a of one 1, now "" 0`,
			"5 granted jobs/a to two \"quoted\"\n 5 after one 1",
			"- put k/1 by 5 version 6",
			"- deleted k/2 by 5 version 0",
			"6 fenced k/3 by 5 version 0",
			"7 refused k/1: not_on_record below 5",
			"8 refused k/1: token_not_issued below 5",
			"9 granted other to three 9 after none",
			`10 expired jobs/a of two "quoted"` + "\n" + ` 5, now "" 0`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// Cut anywhere and resumed after the last id, a watcher has had each event, and
// those of an entry that it had in part once more.
func TestP13_ResumeGivesExactlyTheRest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newWatchServer(t, nil)
		defer s.stop()
		s.node.story()
		end := s.node.index()
		w := s.watch("/v1/watch?from=0")
		all := w.until(end)[1:]
		w.conn.Close()
		for at, b := range all {
			if b.id == "" || b.id == token10(end) {
				continue
			}
			id, _ := strconv.ParseUint(b.id, 10, 64)
			for _, resume := range []*watching{
				s.watch("/v1/watch", "Last-Event-ID", b.id),
				s.watch("/v1/watch?from=1", "Last-Event-ID", b.id), // which a browser repeats
				s.watch("/v1/watch?from=" + token10(id+1)),
			} {
				if first := resume.mustNext(); first != (block{id: b.id}) {
					t.Errorf("resumed after %s the stream begins with %+v", b.id, first)
				}
				if got := resume.until(end); !slices.Equal(got, all[at+1:]) {
					t.Errorf("after %s: got %v, want %v", b.id, got, all[at+1:])
				}
				resume.conn.Close()
			}
		}
	})
}

func TestWatchIsNarrowedToKindsAndPrefix(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newWatchServer(t, nil)
		defer s.stop()
		s.node.story()
		end := s.node.index()
		for query, want := range map[string]string{
			"kind=lease":              "granted released granted granted expired",
			"kind=kv":                 "put put put deleted fenced",
			"kind=refusal":            "refused refused",
			"kind=refusal&kind=lease": "granted released granted refused refused granted expired",
			"kind=kv,refusal":         "put put put deleted fenced refused refused",
			"prefix=k/1":              "put put refused refused",
			"prefix=jobs/":            "granted released granted expired",
			"prefix=k/2&kind=kv":      "put deleted",
			"prefix=nothing":          "",
		} {
			w := s.watch("/v1/watch?from=1&" + query)
			w.mustNext()
			var got []string
			var last string
			for _, b := range w.until(end) { // the beat moves even those on that see nothing
				if b.event != "" {
					got = append(got, b.event)
				}
				last = b.id
			}
			if strings.Join(got, " ") != want || last != token10(end) {
				t.Errorf("%s: got %q up to %s, want %q up to %d", query, got, last, want, end)
			}
			w.conn.Close()
		}
		// The id stands on the last event of an entry that passes, here the only one.
		w := s.watch("/v1/watch?from=1&prefix=k/1&kind=kv")
		w.mustNext()
		for range 2 {
			if b := w.mustNext(); b.id == "" {
				t.Errorf("no id on %+v", b)
			}
		}
		w.conn.Close()
	})
}

// model is what a watcher knows after a list and the events since.
type model struct {
	leases map[string]string // who holds what
	keys   map[string]string
}

func (m model) equal(other model) bool {
	return maps.Equal(m.leases, other.leases) && maps.Equal(m.keys, other.keys)
}

func listed(s *fsm.State) model {
	m := model{map[string]string{}, map[string]string{}}
	leases, _ := s.Leases("", "", 1000)
	for _, l := range leases {
		for _, h := range l.Holders {
			m.leases[l.Name] = fmt.Sprint(h.Holder, " ", h.Token)
		}
	}
	keys, _ := s.Keys("", "", 1000)
	for _, k := range keys {
		m.keys[k.Key] = fmt.Sprint(k.Token, " ", k.Version, " ", k.Watermark)
	}
	return m
}

// see follows one event.
func (m model) see(e *wire.Event) {
	switch e.Kind {
	case wire.EventGranted:
		m.leases[e.Name] = fmt.Sprint(e.Holder, " ", e.Token)
	case wire.EventReleased, wire.EventExpired:
		delete(m.leases, e.Name)
	case wire.EventPut:
		m.keys[e.Key] = fmt.Sprint(e.Token, " ", e.Version, " ", e.Watermark)
	case wire.EventDeleted:
		delete(m.keys, e.Key)
	case wire.EventFenced:
		if old, ok := m.keys[e.Key]; ok {
			m.keys[e.Key] = old[:strings.LastIndex(old, " ")] + fmt.Sprint(" ", e.Watermark)
		}
	}
}

// A list, and the events from its index on, make every later list, at every
// index; whichever list it began with.
func TestP13_RebuiltFromEventsEqualsTheListAtEveryIndex(t *testing.T) {
	schema := loadSpec(t).doc.Components.Schemas["WatchEvent"].Value
	bubble.Test(t, func(t *testing.T) {
		s := newWatchServer(t, nil)
		defer s.stop()
		lists := map[uint64]model{}
		note := func() { _, _ = s.node.Read(t.Context(), true, func(st *fsm.State) { lists[st.Index()] = listed(st) }) }
		first := s.node.index()
		note()
		for round := range 12 {
			name := fmt.Sprint("l", round%4)
			token := s.node.grant(name, fmt.Sprint("h", round), 1000)
			note()
			for _, ops := range [][]*fsmpb.WriteOp{{putOp("a"), putOp("b")}, {fenceOp("a"), fenceOp("c")}, {deleteOp("b")}} {
				s.node.change(token, ops...)
				note()
			}
			if round%3 == 0 {
				s.node.free(name, token)
				note()
			}
			s.node.pass(400)
			note()
		}
		end := s.node.index()
		if len(lists) != int(end-first)+1 {
			t.Fatalf("%d lists of %d indexes", len(lists), end-first+1)
		}
		for begin := first; begin < end; begin += 7 {
			m := model{maps.Clone(lists[begin].leases), maps.Clone(lists[begin].keys)}
			at := begin
			w := s.watch("/v1/watch?from=" + token10(begin+1))
			for _, b := range w.until(end)[1:] {
				var e wire.Event
				if b.event == "" {
					e.Index, _ = strconv.ParseUint(b.id, 10, 64)
				} else {
					e = b.document(t, schema)
				}
				for ; at+1 < e.Index; at++ { // no event: as it was
					if !m.equal(lists[at+1]) {
						t.Fatalf("from %d, at %d: rebuilt %v, listed %v", begin, at+1, m, lists[at+1])
					}
				}
				m.see(&e)
				if b.id == "" {
					continue
				}
				if at = e.Index; !m.equal(lists[at]) {
					t.Fatalf("from %d, at %d: rebuilt %v, listed %v", begin, at, m, lists[at])
				}
			}
			w.conn.Close()
		}
	})
}

// A watch that waits for an index begins there; entries without events move a
// quiet watcher on, every ten seconds, and keep its stream alive.
func TestP13_QuietWatchersAreMovedOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newWatchServer(t, nil)
		defer s.stop()
		now := s.node.index()
		w := s.watch("/v1/watch")
		ahead := s.watch("/v1/watch?from=" + token10(now+8))
		w.mustNext()
		ahead.mustNext()
		s.node.tick()
		s.node.tick()
		begin := time.Now()
		if b := w.mustNext(); b != (block{id: token10(now + 2)}) || time.Since(begin) != watchBeat {
			t.Errorf("got %+v after %s, want id %d after %s", b, time.Since(begin), now+2, watchBeat)
		}
		if b := ahead.mustNext(); b != (block{id: token10(now + 7)}) {
			t.Errorf("a watch from %d on got %+v", now+8, b)
		}
		for range 6 {
			s.node.grant(fmt.Sprint("l", s.node.index()), "h", 5000)
		}
		if blocks := w.until(now + 8); len(blocks) != 6 {
			t.Errorf("got %v, want 6 grants", blocks)
		}
		if b := ahead.mustNext(); b.event != wire.EventGranted || b.id != token10(now+8) {
			t.Errorf("a watch from %d on got %+v", now+8, b)
		}
		w.conn.Close()
		ahead.conn.Close()
	})
}

func TestP13_GoneFromTheBufferIs410(t *testing.T) {
	a := newAPI(t)
	a.node.feed = cluster.NewFeed(10, 100)
	for i := range 30 {
		a.node.grant(fmt.Sprint("l", i), "h", 5000)
	}
	end := a.node.index()
	oldest := end - 9
	a.do("GET", "/v1/watch?from="+token10(oldest-1), "").is(410, "compacted").has("oldest", oldest)
	a.do("GET", "/v1/watch", "", "Last-Event-ID", token10(oldest-2)).is(410, "compacted").has("oldest", oldest)
	a.do("HEAD", "/v1/watch?from="+token10(oldest-1), "").is(410, "")
	if got := a.do("HEAD", "/v1/watch?from="+token10(oldest), ""); got.status != 200 || got.header.Get("Content-Type") != "text/event-stream" || len(got.raw) != 0 {
		t.Errorf("HEAD: got %d %v %q", got.status, got.header, got.raw)
	}
	a.node.feed.Reset(end + 20)
	got := a.do("GET", "/v1/watch?from="+token10(end), "").is(410, "compacted").has("oldest", end+21)
	if detail, _ := got.body["detail"].(string); !strings.Contains(detail, "list again") {
		t.Errorf("detail %q does not say what to do", detail)
	}
	if a.node.feed.Watchers() != 0 {
		t.Errorf("%d watchers are left", a.node.feed.Watchers())
	}
}

// A reader that falls behind further than the buffer reaches is told so, with
// the index that it reached, and has missed nothing up to there.
func TestP13_AWatchThatIsOvertakenSaysSo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newWatchServer(t, cluster.NewFeed(100, 100))
		defer s.stop()
		now := s.node.index()
		w := s.watch("/v1/watch?kind=lease")
		w.mustNext()
		for i := range 1000 {
			s.node.grant(fmt.Sprint("l", i), "h", 5000)
			synctest.Wait() // the stream has written what the reader lets it
		}
		last := now
		for {
			b := w.mustNext()
			if b.event == wire.EventCompacted {
				var c wire.Compacted
				if err := json.Unmarshal([]byte(b.data), &c); err != nil || b.id != "" {
					t.Fatal(err, b)
				}
				if want := (wire.Compacted{Code: wire.CodeCompacted, Reached: last, Oldest: s.node.index() - 99}); c != want {
					t.Errorf("got %+v, want %+v", c, want)
				}
				break
			}
			if last++; b.id != token10(last) {
				t.Fatalf("got %+v, want id %d", b, last)
			}
		}
		if last == now {
			t.Error("it had nothing at all before")
		}
		if _, err := w.next(); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
	})
}

// A reader that has stopped is cut after the write bound, and nobody else
// notices.
func TestStoppedReadersAreCut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newWatchServer(t, nil)
		defer s.stop()
		stopped := s.watch("/v1/watch")
		live := s.watch("/v1/watch")
		stopped.mustNext()
		live.mustNext()
		s.node.grant("l", "h", 5000)
		begin := time.Now()
		live.until(s.node.index())
		if took := time.Since(begin); took != 0 {
			t.Errorf("the live reader waited %s for the stopped one", took)
		}
		time.Sleep(watchWriteBound - time.Second)
		if got := s.node.feed.Watchers(); got != 2 {
			t.Errorf("%d watchers after %s, want 2", got, time.Since(begin))
		}
		go func() { // the live one reads on
			for {
				if _, err := live.next(); err != nil {
					return
				}
			}
		}()
		time.Sleep(2 * time.Second)
		if got := s.node.feed.Watchers(); got != 1 {
			t.Errorf("%d watchers after %s, want 1", got, time.Since(begin))
		}
		stopped.conn.Close()
		live.conn.Close()
	})
}

func TestWatchesOfANodeAreLimited(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newWatchServer(t, cluster.NewFeed(100, 2))
		defer s.stop()
		a, b := s.watch("/v1/watch"), s.watch("/v1/watch")
		defer b.conn.Close()
		c := s.watch("/v1/watch")
		if c.status != 429 || c.header.Get("Retry-After") == "" {
			t.Errorf("the third of two: got %d, Retry-After %q", c.status, c.header.Get("Retry-After"))
		}
		if body, _ := io.ReadAll(c.lines); !strings.Contains(string(body), `"too_many_requests"`) {
			t.Errorf("got %s", body)
		}
		a.conn.Close()
		synctest.Wait()
		d := s.watch("/v1/watch")
		if d.status != 200 {
			t.Errorf("after one has gone: got %d", d.status)
		}
		d.conn.Close()
	})
}

// A node that has lost the leader, or stops, ends its streams and says so.
func TestStreamsEndWithTheirNode(t *testing.T) {
	for _, why := range []error{cluster.ErrNoLeader, cluster.ErrShuttingDown} {
		bubble.Test(t, func(t *testing.T) {
			s := newWatchServer(t, nil)
			defer s.stop()
			w := s.watch("/v1/watch")
			w.mustNext()
			s.node.feed.End(why)
			if b := w.mustNext(); !strings.Contains(b.comment, why.Error()) || b.id != "" {
				t.Errorf("got %+v, want a comment that says %q", b, why)
			}
			if _, err := w.next(); err != io.EOF {
				t.Errorf("got %v, want the end", err)
			}
			synctest.Wait()
			if got := s.node.feed.Watchers(); got != 0 {
				t.Errorf("%d watchers are left", got)
			}
		})
	}
}

func TestWatchChecksItsParameters(t *testing.T) {
	a := newAPI(t)
	for query, field := range map[string]string{
		"kind=": "kind", "kind=leases": "kind", "kind=lease,": "kind", "kind=kv&kind=x": "kind", "from=": "from", "from=-1": "from", "from=1.0": "from", "from=x": "from",
		"from=9007199254740992": "from", "from=1&from=1": "from", "renewals=1": "renewals", "renewals=": "renewals", "limit=1": "limit",
		"prefix=" + strings.Repeat("p", 513): "prefix", "consistency=stale": "consistency", "prefix=%ff": "prefix",
	} {
		a.do("GET", "/v1/watch?"+query, "").is(400, "invalid_request").has("field", field)
	}
	for _, id := range []string{"", "x", "-1", "01", "9007199254740991", "9007199254740992"} {
		a.do("GET", "/v1/watch", "", "Last-Event-ID", id).is(400, "invalid_request").has("field", "Last-Event-ID")
	}
	a.do("GET", "/v1/watch", "", "Last-Event-ID", "1", "Last-Event-ID", "1").is(400, "invalid_request").has("field", "Last-Event-ID")
	if got := a.do("POST", "/v1/watch", ""); got.status != 405 || got.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: got %d, Allow %q", got.status, got.header.Get("Allow"))
	}
}
