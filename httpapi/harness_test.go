package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"fencepost/cluster"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// memory is a node that is a cluster of its own: a real state machine whose
// entries are committed at once, and whose clock only moves when told. A hook
// that is set is called in place of the method.
type memory struct {
	status     cluster.Status
	onAcquire  func(*fsmpb.Acquire) (cluster.Reply[*fsmpb.Outcome], error)
	onWrite    func(*fsmpb.Write) (cluster.Reply[*fsmpb.Outcome], error)
	onRenew    func() error
	onRead     func() error
	onJoin     func(*fsmpb.Node) error
	onBackup   func() (*cluster.Backup, error)
	onRestore  func(*cluster.Spool, cluster.RestoreOptions) (cluster.Restored, error)
	onRemove   func(name string, force bool) error
	onTransfer func(to string) (string, error)
	ready      error
	live       error

	feed *cluster.Feed

	mu      sync.Mutex // guards what follows
	state   *fsm.State
	nowMS   uint64
	entries int
	decided map[string]cluster.Reply[*fsmpb.Outcome] // of requests that waited
	changed chan struct{}                            // closed at each entry
}

func newMemory(name string) *memory {
	m := &memory{
		state: fsm.New(), decided: map[string]cluster.Reply[*fsmpb.Outcome]{}, changed: make(chan struct{}),
		feed:   cluster.NewFeed(1<<16, 10_000),
		status: cluster.Status{Name: name, ID: name + "-id", ClusterID: "c1", IsLeader: true, LeaderURL: "http://" + name + ".test", Term: 3},
	}
	m.apply(&fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{
		ClusterId: "c1", Node: &fsmpb.Node{Name: name, Id: name + "-id", HttpAddr: name + ".test:1", RaftAddr: name + ".test:2", Voter: true},
	}}})
	m.entries = 0
	return m
}

func (m *memory) apply(c *fsmpb.Command) cluster.Reply[*fsmpb.Outcome] {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries++
	index := m.state.Index() + 1
	c.NowMs, c.Term = m.nowMS, 1
	o, events, err := m.state.Apply(index, 1, c)
	if err != nil {
		panic(err)
	}
	for _, e := range events {
		if d := e.Decided; d != nil {
			m.decided[d.RequestKey] = cluster.Reply[*fsmpb.Outcome]{Outcome: d.Outcome, Index: index}
		}
	}
	index = m.state.Index() // a restore jumps
	close(m.changed)
	m.changed = make(chan struct{})
	m.feed.Append(index, events)
	m.feed.Announce()
	return cluster.Reply[*fsmpb.Outcome]{Outcome: o, Index: index}
}

// pass lets cluster time pass, and ends what is due.
func (m *memory) pass(ms uint64) {
	m.mu.Lock()
	m.nowMS += ms
	m.mu.Unlock()
	m.apply(&fsmpb.Command{Op: &fsmpb.Command_Advance{Advance: &fsmpb.Advance{}}})
}

func (m *memory) Status() cluster.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	s.Index, s.Watchers = m.state.Index(), m.feed.Watchers()
	return s
}

func (m *memory) Acquire(ctx context.Context, _ time.Time, c *fsmpb.Acquire) (cluster.Reply[*fsmpb.Outcome], error) {
	if m.onAcquire != nil {
		return m.onAcquire(c)
	}
	r := m.apply(&fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: c}})
	for r.Outcome.Code == fsmpb.Code_CODE_QUEUED {
		m.mu.Lock()
		d, ok := m.decided[fsm.RequestKey(c.Principal, c.Request)]
		changed := m.changed
		m.mu.Unlock()
		if ok {
			return d, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return r, cluster.ErrOutcomeUnknown
		}
	}
	return r, nil
}

func (m *memory) Cancel(_ context.Context, _ time.Time, c *fsmpb.Cancel) (cluster.Reply[*fsmpb.Outcome], error) {
	return m.apply(&fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: c}}), nil
}

func (m *memory) Release(_ context.Context, _ time.Time, c *fsmpb.Release) (cluster.Reply[*fsmpb.Outcome], error) {
	return m.apply(&fsmpb.Command{Op: &fsmpb.Command_Release{Release: c}}), nil
}

func (m *memory) Write(_ context.Context, _ time.Time, c *fsmpb.Write) (cluster.Reply[*fsmpb.Outcome], error) {
	if m.onWrite != nil {
		return m.onWrite(c)
	}
	return m.apply(&fsmpb.Command{Op: &fsmpb.Command_Write{Write: c}}), nil
}

func (m *memory) Renew(_ context.Context, rs []*fsmpb.Renewal) (cluster.Reply[[]*fsmpb.Outcome], error) {
	if m.onRenew != nil {
		return cluster.Reply[[]*fsmpb.Outcome]{}, m.onRenew()
	}
	r := m.apply(&fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: &fsmpb.Renew{Renewals: rs}}})
	return cluster.Reply[[]*fsmpb.Outcome]{Outcome: r.Outcome.Renewals, Index: r.Index}, nil
}

func (m *memory) Read(_ context.Context, stale bool, see func(*fsm.State)) (cluster.ReadInfo, error) {
	if m.onRead != nil && !stale {
		return cluster.ReadInfo{}, m.onRead()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	see(m.state)
	return cluster.ReadInfo{Index: m.state.Index(), Lag: 12 * time.Millisecond}, nil
}

func (m *memory) Watch(from uint64, renewals bool) (*cluster.Watcher, error) {
	return m.feed.Watch(from, renewals)
}

func (m *memory) Members(context.Context) ([]cluster.Member, error) {
	return []cluster.Member{{Name: m.status.Name, ID: m.status.ID, Voter: true, Leader: m.status.IsLeader, Healthy: true}}, nil
}

func (m *memory) Join(_ context.Context, n *fsmpb.Node) error {
	if m.onJoin != nil {
		return m.onJoin(n)
	}
	m.apply(&fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{ClusterId: "c1", Node: n}}})
	return nil
}

func (m *memory) Correct(_ context.Context, n *fsmpb.Node) error {
	known := false
	for _, have := range m.state.Nodes() {
		known = known || have.Id == n.Id
	}
	if !known {
		return cluster.ErrRemoved
	}
	return m.Join(context.Background(), n)
}

func (m *memory) Remove(_ context.Context, name string, force bool) error {
	return m.onRemove(name, force)
}

func (m *memory) Transfer(_ context.Context, to string) (string, error) { return m.onTransfer(to) }

func (m *memory) Formation() cluster.Formation {
	return cluster.Formation{Name: m.status.Name, ID: m.status.ID, ClusterID: "c1"}
}
func (m *memory) Ready() error { return m.ready }
func (m *memory) Live() error  { return m.live }

// api is a handler under test. Every answer is held against the OpenAPI
// document.
type api struct {
	t       *testing.T
	node    *memory
	handler *Handler
	spec    *spec
}

func newAPI(t *testing.T) *api {
	t.Helper()
	return newAPIOf(t, loadSpec(t))
}

func newAPIOf(t *testing.T, s *spec) *api {
	t.Helper()
	node := newMemory("n1")
	h := New(node, Options{Version: "test"})
	t.Cleanup(h.Close)
	return &api{t: t, node: node, handler: h, spec: s}
}

// answer is what came back.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	raw    []byte
	body   map[string]any // if it is JSON
}

// do sends a request; headers come as name, value, name, value.
func (a *api) do(method, target, body string, headers ...string) *answer {
	a.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req := httptest.NewRequest(method, target, r)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, req)
	return a.spec.check(a.t, req, w.Code, w.Header(), w.Body.Bytes())
}

// is checks the status and the code of a problem ("" for a success).
func (a *answer) is(status int, code string) *answer {
	a.t.Helper()
	if got, _ := a.body["code"].(string); a.status != status || got != code {
		a.t.Fatalf("got %d %q, want %d %q: %s", a.status, got, status, code, a.raw)
	}
	return a
}

// has checks fields of the body: name, value, name, value; numbers are float64.
func (a *answer) has(fields ...any) *answer {
	a.t.Helper()
	for i := 0; i < len(fields); i += 2 {
		want := fields[i+1]
		if n, ok := want.(int); ok {
			want = float64(n)
		}
		if n, ok := want.(uint64); ok {
			want = float64(n)
		}
		if got, ok := a.body[fields[i].(string)]; !ok || got != want {
			a.t.Errorf("field %s: got %v, want %v in %s", fields[i], got, want, a.raw)
		}
	}
	return a
}

func (a *answer) number(field string) uint64 {
	a.t.Helper()
	n, ok := a.body[field].(float64)
	if !ok {
		a.t.Fatalf("field %s is no number in %s", field, a.raw)
	}
	return uint64(n)
}

// spec is the OpenAPI document, and a way to find the operation of a raw path,
// whose names may have slashes.
type spec struct {
	doc   *openapi3.T
	paths []specPath
}

type specPath struct {
	template string
	raw      *regexp.Regexp
}

func loadSpec(t *testing.T) *spec {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openAPIDocument)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := &spec{doc: doc}
	for _, template := range doc.Paths.InMatchingOrder() {
		pattern := regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(regexp.QuoteMeta(template), ".*")
		s.paths = append(s.paths, specPath{template, regexp.MustCompile("^" + pattern + "$")})
	}
	return s
}

func (s *spec) find(method, path string) (*routers.Route, bool) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for _, p := range s.paths {
		if !p.raw.MatchString(path) {
			continue
		}
		item := s.doc.Paths.Value(p.template)
		if op := item.GetOperation(method); op != nil {
			return &routers.Route{Spec: s.doc, Path: p.template, PathItem: item, Method: method, Operation: op}, true
		}
	}
	return nil, false
}

// check holds an answer against the document, and the rules for all answers.
func (s *spec) check(t *testing.T, req *http.Request, status int, header http.Header, raw []byte) *answer {
	t.Helper()
	a := &answer{t: t, status: status, header: header, raw: raw}
	media := header.Get("Content-Type")
	if (media == "application/json" || media == "application/problem+json") && req.Method != http.MethodHead {
		if err := json.Unmarshal(raw, &a.body); err != nil {
			t.Fatalf("%s %s: %v in %q", req.Method, req.RequestURI, err, raw)
		}
	}
	for _, name := range []string{"Fencepost-Node", "Fencepost-Index", "X-Request-Id"} {
		if header.Get(name) == "" {
			t.Errorf("%s %s: %d without %s", req.Method, req.RequestURI, status, name)
		}
	}
	if got := header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control: got %q", got)
	}
	if status >= 400 && media != "application/problem+json" {
		t.Errorf("%s %s: %d is %q", req.Method, req.RequestURI, status, media)
	}
	path, _, _ := strings.Cut(req.RequestURI, "?")
	route, ok := s.find(req.Method, path)
	if !ok {
		if status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			t.Errorf("%s %s is not in the document, and was answered %d", req.Method, path, status)
		}
		return a
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, Route: route},
		Status:                 status, Header: header, Body: io.NopCloser(bytes.NewReader(raw)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}
	if err := openapi3filter.ValidateResponse(context.Background(), input); err != nil {
		t.Errorf("%s %s: %d is not as documented: %v\n%s", req.Method, req.RequestURI, status, err, raw)
	}
	return a
}
