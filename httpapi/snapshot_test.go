package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"fencepost/cluster"
	"fencepost/cluster/bubble"
	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// The backups of a memory: its restores are one begin, one chunk and one commit.

func (m *memory) Backup() (*cluster.Backup, error) {
	if m.onBackup != nil {
		return m.onBackup()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return cluster.NewBackup(m.state.Snapshot(), "c1", time.UnixMilli(1_700_000_000_123), func() {}), nil
}

func (m *memory) Spool(upload io.Reader, _ *fsmpb.Request) (*cluster.Spool, error) {
	return cluster.NewSpool("", 1<<20, upload)
}

func (m *memory) Restore(_ context.Context, s *cluster.Spool, o cluster.RestoreOptions) (cluster.Restored, error) {
	if m.onRestore != nil {
		return m.onRestore(s, o)
	}
	h := s.Backup.Header
	chunk := &fsmpb.RestoreChunk{Id: "s"}
	if err := s.Each(func(k *fsmpb.KeyRecord) error { chunk.Keys = append(chunk.Keys, k); return nil }); err != nil {
		return cluster.Restored{}, err
	}
	m.apply(&fsmpb.Command{Op: &fsmpb.Command_RestoreBegin{RestoreBegin: &fsmpb.RestoreBegin{Id: "s", BackupIndex: h.Index, TtlMs: 1000}}})
	m.apply(&fsmpb.Command{Op: &fsmpb.Command_RestoreChunk{RestoreChunk: chunk}})
	r := m.apply(&fsmpb.Command{Op: &fsmpb.Command_RestoreCommit{RestoreCommit: &fsmpb.RestoreCommit{
		Id: "s", Keys: h.Keys, Checksum: s.Backup.Checksum, BackupIndex: h.Index, Base: m.state.Base(), Above: o.Above, Request: o.Request,
	}}})
	if r.Outcome.Code == fsmpb.Code_CODE_KEY_REUSED {
		return cluster.Restored{}, cluster.ErrKeyReused
	}
	return cluster.Restored{Index: r.Outcome.Index, ClusterID: h.ClusterId, BackupIndex: h.Index, TakenUnixMS: h.TakenUnixMs, Keys: h.Keys, DataBytes: h.DataBytes}, nil
}

// P1, P5: a backup is taken, and restored; what the API then says of tokens, names
// and keys from before.
func TestP5_BackupAndRestoreOverHTTP(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("l")
	a.do("PUT", "/v1/kv/k", "backed up", "Fencing-Token", token10(token)).is(200, "")
	backup := a.do("GET", "/v1/snapshot", "")
	at := fmt.Sprint(a.node.Status().Index)
	if backup.status != 200 || backup.header.Get("Fencepost-Index") != at || !strings.Contains(backup.header.Get("Content-Disposition"), at) {
		t.Fatalf("backup: %d %v", backup.status, backup.header)
	}
	if head := a.do("HEAD", "/v1/snapshot", ""); head.status != 200 || len(head.raw) != 0 {
		t.Errorf("HEAD: %d, %d bytes", head.status, len(head.raw))
	}
	a.do("PUT", "/v1/kv/k", "lost", "Fencing-Token", token10(token)).is(200, "")
	a.do("PUT", "/v1/kv/other", "lost", "Fencing-Token", token10(token)).is(200, "")

	done := a.do("POST", "/v1/snapshot/restore?above=99999999999", string(backup.raw)).is(200, "")
	done.has("restored", true, "cluster_id", "c1", "keys", 1, "taken", "2023-11-14T22:13:20.123Z")
	floor := done.number("index")
	if floor < 99999999999 || done.header.Get("Fencepost-Index") != fmt.Sprint(floor) {
		t.Errorf("floor %d, Fencepost-Index %s", floor, done.header.Get("Fencepost-Index"))
	}
	if got := a.do("GET", "/v1/kv/k", ""); string(got.raw) != "backed up" {
		t.Errorf("k is %q", got.raw)
	}
	a.do("GET", "/v1/kv/other", "").is(404, "not_found")
	a.do("POST", "/v1/leases/l/renew", fmt.Sprintf(`{"token":%d}`, token)).is(409, "lease_lost").has("reason", "restored")
	a.do("POST", "/v1/leases/never/renew", fmt.Sprintf(`{"token":%d}`, token)).is(409, "lease_lost").has("reason", "restored")
	for _, key := range []string{"k", "other", "new"} {
		a.do("PUT", "/v1/kv/"+key, "old", "Fencing-Token", token10(token)).is(412, "stale_token")
	}
	a.do("POST", "/v1/leases/l/release", fmt.Sprintf(`{"token":%d}`, token)).is(200, "").has("released", false)
	a.do("GET", "/v1/leases/l", "").is(200, "").has("held", false, "grace_ms", 10_000, "free", 0)
	a.do("POST", "/v1/leases/l/acquire", `{"holder":"h"}`).is(409, "lease_held").has("grace_ms", 10_000)
	a.node.pass(10_000)
	next := a.acquireToken("l")
	if next <= floor {
		t.Errorf("token %d after a restore to %d", next, floor)
	}
	a.do("PUT", "/v1/kv/k", "new", "Fencing-Token", token10(next)).is(200, "")
}

// P1, P11: a repetition that asks for tokens above another number is not one.
func TestP11_RestoreRepeatedAboveAnotherToken(t *testing.T) {
	a := newAPI(t)
	a.do("PUT", "/v1/kv/k", "v", "Fencing-Token", token10(a.acquireToken("l"))).is(200, "")
	backup := string(a.do("GET", "/v1/snapshot", "").raw)
	under := []string{"Idempotency-Key", "mine"}
	first := a.do("POST", "/v1/snapshot/restore?above=7", backup, under...).is(200, "").number("index")
	if again := a.do("POST", "/v1/snapshot/restore?above=7", backup, under...).is(200, "").number("index"); again != first {
		t.Errorf("at %d, repeated at %d", first, again)
	}
	a.do("POST", "/v1/snapshot/restore?above=4000000000000000", backup, under...).is(422, "key_reused")
	a.do("POST", "/v1/snapshot/restore", backup, under...).is(422, "key_reused")
	later := string(a.do("GET", "/v1/snapshot", "").raw) // the same keys, at a greater index
	a.do("POST", "/v1/snapshot/restore?above=7", later, under...).is(422, "key_reused")
}

// B43: what is no whole backup is refused, and nothing is touched.
func TestP14_B43_UploadsThatAreRefused(t *testing.T) {
	a := newAPI(t)
	token := a.acquireToken("l")
	a.do("PUT", "/v1/kv/k", strings.Repeat("value", 1000), "Fencing-Token", token10(token)).is(200, "")
	whole := a.do("GET", "/v1/snapshot", "").raw
	before, entries := a.node.state.Digest(), a.node.entries
	flipped := bytes.Clone(whole)
	flipped[len(whole)/2] ^= 1
	for what, upload := range map[string]string{
		"10 %": string(whole[:len(whole)/10]), "50 %": string(whole[:len(whole)/2]), "99 %": string(whole[:len(whole)*99/100]),
		"a bit": string(flipped), "nothing": "", "something else": "FENCEPOST\n", "twice": string(whole) + string(whole),
	} {
		a.do("POST", "/v1/snapshot/restore", upload).is(400, "invalid_request").has("field", "body")
		if a.node.state.Digest() != before || a.node.entries != entries {
			t.Fatalf("%s: something was changed", what)
		}
	}
	a.do("POST", "/v1/snapshot/restore", string(append(whole, make([]byte, 2<<20)...))).is(413, "too_large").has("field", "body")
	a.do("POST", "/v1/snapshot/restore?force=yes", string(whole)).is(400, "invalid_request").has("field", "force")
	a.do("POST", "/v1/snapshot/restore?above=-1", string(whole)).is(400, "invalid_request").has("field", "above")
	a.do("POST", "/v1/snapshot/restore", string(whole), "Content-Encoding", "gzip").is(400, "invalid_request").has("field", "Content-Encoding")
	a.do("POST", "/v1/snapshot/restore", string(whole), "Idempotency-Key", "a b").is(400, "invalid_request").has("field", "Idempotency-Key")
	req := httptest.NewRequest("POST", "/v1/snapshot/restore", io.MultiReader(bytes.NewReader(whole[:100]), iotest.ErrReader(errors.New("gone"))))
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, req)
	a.spec.check(t, req, w.Code, w.Header(), w.Body.Bytes()).is(400, "invalid_request").has("field", "body")
	if a.node.state.Digest() != before || a.node.entries != entries {
		t.Fatal("something was changed")
	}
}

// P10: what the node says of a restore is told as it is.
func TestP10_AnswersToRestores(t *testing.T) {
	a := newAPI(t)
	whole := string(a.do("GET", "/v1/snapshot", "").raw)
	broken := func(err error) error { return fmt.Errorf("%w: %w", cluster.ErrBrokenOff, err) }
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{cluster.ErrForeignBackup, 409, "other_cluster"},
		{cluster.ErrKeyReused, 422, "key_reused"},
		{fsm.ErrJumpTooFar, 400, "invalid_request"},
		{&cluster.QuotaError{What: "keys", Limit: 1}, 429, "quota_reached"},
		{cluster.ErrRestoreRunning, 429, "too_many_requests"},
		{broken(cluster.ErrRestoreRunning), 429, "too_many_requests"},
		{broken(cluster.ErrNoLeader), 503, "no_leader"},
		{broken(cluster.ErrOverloaded), 503, "overloaded"},
		{broken(cluster.ErrShuttingDown), 503, "shutting_down"},
		{cluster.ErrNoLeader, 503, "no_leader"},
		{cluster.ErrOutcomeUnknown, 504, "outcome_unknown"},
		{context.Canceled, 504, "outcome_unknown"},
		{errors.New("the disk"), 500, "internal"},
	} {
		a.node.onRestore = func(_ *cluster.Spool, o cluster.RestoreOptions) (cluster.Restored, error) {
			if !o.Force || o.Above != 7 || o.Request.Key != "mine" {
				t.Errorf("options %+v", o)
			}
			return cluster.Restored{}, c.err
		}
		a.do("POST", "/v1/snapshot/restore?force=true&above=7", whole, "Idempotency-Key", "mine").is(c.status, c.code)
	}
	a.node.onBackup = func() (*cluster.Backup, error) { return nil, cluster.ErrTooManyBackups }
	a.do("GET", "/v1/snapshot", "").is(429, "too_many_requests")
	a.node.onBackup, a.node.ready = nil, errors.New("20000 entries behind")
	a.do("GET", "/v1/snapshot", "").is(503, "no_leader")
	if got := a.do("GET", "/v1/snapshot?consistency=stale", ""); got.status != 200 || got.header.Get("Fencepost-Lag-Ms") == "" {
		t.Errorf("stale: %d %v", got.status, got.header)
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.HasPrefix(f.Name(), "restore-") && strings.HasSuffix(f.Name(), ".spool") {
			t.Errorf("%s was left behind", f.Name())
		}
	}
}

// A follower passes a restore on as it comes, whatever its size, and redirects it if
// it is asked to.
func TestRestoreIsForwardedAsItComes(t *testing.T) {
	leader := newAPI(t)
	token := leader.acquireToken("l")
	for i := range 8 {
		leader.do("PUT", fmt.Sprint("/v1/kv/k", i), strings.Repeat("v", 100<<10), "Fencing-Token", token10(token)).is(200, "")
	}
	whole := leader.do("GET", "/v1/snapshot", "").raw
	at := httptest.NewServer(leader.handler)
	defer at.Close()
	follower := newAPIOf(t, leader.spec)
	follower.node.status.IsLeader, follower.node.status.LeaderURL = false, at.URL
	got := follower.do("POST", "/v1/snapshot/restore", string(whole)).is(200, "")
	if got.header.Get("Fencepost-Node") != "n1" || leader.node.state.RestoreFloor() != got.number("index") {
		t.Errorf("answered by %s, floor %d", got.header.Get("Fencepost-Node"), leader.node.state.RestoreFloor())
	}
	elsewhere := follower.do("POST", "/v1/snapshot/restore?force=true", string(whole), "Fencepost-Route", "local")
	if want := at.URL + "/v1/snapshot/restore?force=true"; elsewhere.status != http.StatusTemporaryRedirect || elsewhere.header.Get("Location") != want {
		t.Errorf("%d to %q, want %q", elsewhere.status, elsewhere.header.Get("Location"), want)
	}
}

// P13, B53: after a restore a watcher is told at once, whatever it watches, also one
// that waits for an index further on, and one that resumes from before.
func TestP13_B53_WatchersAreToldOfARestore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newWatchServer(t, nil)
		defer s.stop()
		m := s.node
		m.change(m.grant("l", "h", 5000), putOp("k"))
		b, _ := m.Backup()
		var whole bytes.Buffer
		if _, err := b.WriteTo(&whole); err != nil {
			t.Fatal(err)
		}
		before := m.index()
		watches := map[string]*watching{
			"elsewhere": s.watch("/v1/watch?kind=lease&prefix=nothing/of/that/name"),
			"ahead":     s.watch(fmt.Sprint("/v1/watch?from=", before+1000)),
		}
		spool, err := m.Spool(&whole, nil)
		if err != nil {
			t.Fatal(err)
		}
		done, err := m.Restore(t.Context(), spool, cluster.RestoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		spool.Close()
		watches["resumed"] = s.watch(fmt.Sprint("/v1/watch?from=", before+1))
		for name, w := range watches {
			first := w.mustNext() // its position
			e := w.mustNext()
			if e.event != "restored" || e.id != token10(done.Index) || e.data != fmt.Sprintf(`{"index":%d,"kind":"restored"}`, done.Index) {
				t.Errorf("%s got %+v after %+v, want restored at %d", name, e, first, done.Index)
			}
			w.conn.Close()
		}
	})
}
