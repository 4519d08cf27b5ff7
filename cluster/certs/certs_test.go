package certs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fencepost/cluster/certs"
	"fencepost/cluster/certs/testca"
)

const day = 24 * time.Hour

// bench is a directory with an authority, a clock that tests move, and a log.
type bench struct {
	t   *testing.T
	dir string
	ca  *testca.CA

	mu  sync.Mutex // guards what follows
	at  time.Time
	out bytes.Buffer
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, dir: t.TempDir(), ca: testca.New(t), at: time.Now()}
	b.ca.Write(b.dir)
	return b
}

func (b *bench) now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at
}

func (b *bench) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at = b.at.Add(d)
}

func (b *bench) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

// told is what the log has had since the last call.
func (b *bench) told() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.out.Reset()
	return b.out.String()
}

func (b *bench) files(name string) certs.Files {
	ca := filepath.Join(b.dir, "ca.crt")
	return certs.Files{Cert: filepath.Join(b.dir, name+".crt"), Key: filepath.Join(b.dir, name+".key"), CA: ca, ClientCA: ca}
}

func (b *bench) options(host string) certs.Options {
	return certs.Options{Use: "raft", Host: host, Now: b.now, Logger: hclog.New(&hclog.LoggerOptions{Output: b, Level: hclog.Info})}
}

func (b *bench) open(f certs.Files, host string) *certs.Source {
	b.t.Helper()
	s, err := certs.Open(f, b.options(host))
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// node is the source of a certificate for localhost that is valid from now for so long.
func (b *bench) node(name string, life time.Duration) *certs.Source {
	b.t.Helper()
	b.ca.Issue(b.dir, name, b.now(), b.now().Add(life), "localhost")
	return b.open(b.files(name), "localhost")
}

// meet has one dial the other by this name, and says until when the connection may last,
// and how it ended for each.
func meet(t *testing.T, dials, listens *certs.Source, host string) (end time.Time, dialler, listener error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			accepted <- err
			return
		}
		defer raw.Close()
		c, _, err := listens.Server(ctx, raw)
		if err == nil {
			_, err = c.Write([]byte("x"))
		}
		accepted <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c, end, err := dials.Client(ctx, raw, host)
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1)) // the listener's word on our certificate
	}
	raw.Close()
	return end, err, <-accepted
}

func TestB78_AConnectionEndsWithTheFirstCertificate(t *testing.T) {
	b := newBench(t)
	short, long := b.node("short", time.Hour), b.node("long", day)
	want := b.now().Add(time.Hour)
	for _, pair := range [][2]*certs.Source{{short, long}, {long, short}} {
		end, d, l := meet(t, pair[0], pair[1], "localhost")
		if d != nil || l != nil || end.Sub(want).Abs() > time.Second {
			t.Errorf("dialler %v, listener %v, until %s, want %s", d, l, end, want)
		}
	}
}

func TestB78_RefusedHandshakesSayWhichCheckFailed(t *testing.T) {
	b := newBench(t)
	good := b.node("good", 30*day)
	b.ca.Issue(b.dir, "future", b.now().Add(2*time.Hour), b.now().Add(day), "localhost")
	future := b.open(b.files("future"), "localhost")
	past := b.node("past", time.Minute)
	b.pass(time.Hour)
	foreign := newBench(t)
	foreign.pass(time.Hour)
	stranger := foreign.node("stranger", day)
	elsewhere := b.options("localhost")
	elsewhere.Now = func() time.Time { return b.now().Add(-2 * time.Hour) }
	late, err := certs.Open(b.files("good"), elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	b.told()
	clock := b.now().UTC().Format(time.RFC3339)
	for _, tt := range []struct {
		name           string
		dials, listens *certs.Source
		host, want     string
	}{
		{"expired, dialled", good, past, "localhost", "check=expired"},
		{"expired, dials", past, good, "localhost", "check=expired"},
		{"issued by a clock that is ahead", good, future, "localhost", `check="not yet valid"`},
		{"issued by a clock that is ahead, dials", future, good, "localhost", `check="not yet valid"`},
		{"the own clock is behind", late, good, "localhost", `check="not yet valid"`},
		{"another authority", good, stranger, "localhost", `check="unknown authority"`},
		{"another authority, dials", stranger, good, "localhost", "check="},
		{"another name", good, good, "n9.test", `check="wrong name"`},
	} {
		_, d, l := meet(t, tt.dials, tt.listens, tt.host)
		told := b.told()
		if d == nil || l == nil {
			t.Errorf("%s: dialler %v, listener %v", tt.name, d, l)
		}
		if !strings.Contains(told, tt.want) {
			t.Errorf("%s: the log has no %s: %s", tt.name, tt.want, told)
		}
		if strings.Contains(tt.want, "valid") && tt.dials != late && (!strings.Contains(told, clock) || !strings.Contains(told, "is valid from")) {
			t.Errorf("%s: the log does not tell both times: %s", tt.name, told)
		}
		b.pass(2 * time.Minute) // so that the next is told as well
		clock = b.now().UTC().Format(time.RFC3339)
	}
	for range 50 {
		meet(t, good, past, "localhost")
	}
	if n := strings.Count(b.told(), "check=expired"); n != 1 {
		t.Errorf("50 refusals within a minute are %d lines", n)
	}
}

func TestB78_FilesAreReadAnewAndBrokenOnesKeepTheOld(t *testing.T) {
	b := newBench(t)
	s, other := b.node("n1", time.Hour), b.node("n2", 30*day)
	until := func() time.Time {
		t.Helper()
		end, d, l := meet(t, other, s, "localhost")
		if d != nil || l != nil {
			t.Fatalf("dialler %v, listener %v", d, l)
		}
		return end
	}
	first := until()
	f := b.files("n1")
	whole := map[string][]byte{}
	for _, name := range []string{f.Cert, f.Key, f.CA} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		whole[name] = text
	}
	put := func(name string, text []byte) {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stranger := newBench(t)
	for what, spoil := range map[string]func(){
		"half a file":          func() { put(f.Cert, whole[f.Cert][:len(whole[f.Cert])/2]) },
		"no file":              func() { os.Remove(f.Cert) },
		"an empty file":        func() { put(f.Cert, nil) },
		"another's key":        func() { b.key("n3"); os.Rename(b.files("n3").Key, f.Key) },
		"another host's":       func() { b.ca.Issue(b.dir, "n1", b.now(), b.now().Add(day), "n9.test") },
		"expired already":      func() { b.ca.Issue(b.dir, "n1", b.now().Add(-time.Hour), b.now().Add(-time.Second), "localhost") },
		"not yet valid":        func() { b.ca.Issue(b.dir, "n1", b.now().Add(time.Hour), b.now().Add(day), "localhost") },
		"of another authority": func() { stranger.ca.Issue(b.dir, "n1", b.now(), b.now().Add(day), "localhost") },
		"no authority":         func() { put(f.CA, []byte("-----")) },
	} {
		b.told()
		spoil()
		for range 10 {
			b.pass(3 * time.Second)
			s.Look()
		}
		if told := b.told(); strings.Count(told, "cannot be used") != 1 || !strings.Contains(told, b.dir) {
			t.Errorf("%s: told other than once, or not which file: %s", what, told)
		}
		if got := until(); !got.Equal(first) {
			t.Errorf("%s: until %s, want %s", what, got, first)
		}
		for name, text := range whole {
			put(name, text)
		}
		b.pass(3 * time.Second)
		s.Look()
	}
	b.told()
	b.ca.Issue(b.dir, "n1", b.now(), b.now().Add(day), "localhost")
	b.pass(3 * time.Second)
	if got := until(); !got.After(first) {
		t.Errorf("the new files are not used: until %s", got)
	}
	if told := b.told(); strings.Count(told, "were read anew") != 1 {
		t.Errorf("the log: %s", told)
	}
}

func TestB78_TheEndIsToldAtEachStageOnce(t *testing.T) {
	b := newBench(t)
	s := b.node("n1", 60*day)
	for _, stage := range []struct {
		pass time.Duration
		want string
	}{{29 * day, ""}, {2 * day, "runs out"}, {10 * day, ""}, {13 * day, "runs out"}, {5*day + time.Hour, "runs out"}, {day, "has run out"}, {400 * day, ""}} {
		b.told()
		for range 5 {
			b.pass(stage.pass / 5)
			s.Look()
		}
		got := b.told()
		if stage.want == "" && got != "" || stage.want != "" && (strings.Count(got, stage.want) != 1 || strings.Count(got, "\n") != 1) {
			t.Errorf("%.0f h before the end the log has %q, want one %q", s.Left().Hours(), got, stage.want)
		}
	}
	// One that lives shorter than a stage is not worth that stage's line.
	b.told()
	b.node("n2", 90*time.Second)
	if got := b.told(); strings.Contains(got, "runs out") {
		t.Errorf("a new certificate: %s", got)
	}
}

// One that is over, or nearly, must not lead; nor one that is not valid yet.
func TestB78_Over(t *testing.T) {
	b := newBench(t)
	s := b.node("n1", time.Hour)
	for _, at := range []struct {
		pass time.Duration
		want string
	}{{0, ""}, {59 * time.Minute, ""}, {55 * time.Second, "about to"}, {time.Minute, "run out"}} {
		b.pass(at.pass)
		if err := s.Over(); (err == nil) != (at.want == "") || err != nil && !strings.Contains(err.Error(), at.want) {
			t.Errorf("%s left: %v, want %q", s.Left(), err, at.want)
		}
	}
	b.ca.Issue(b.dir, "n2", b.now().Add(time.Hour), b.now().Add(day), "localhost")
	if err := b.open(b.files("n2"), "localhost").Over(); err == nil || !strings.Contains(err.Error(), "not yet valid") {
		t.Errorf("one that begins in an hour: %v", err)
	}
}

func TestOpenNamesTheFileThatIsWrong(t *testing.T) {
	b := newBench(t)
	b.node("n1", day)
	good := b.files("n1")
	bad := filepath.Join(b.dir, "bad")
	if err := os.WriteFile(bad, []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	stranger := newBench(t)
	for what, tt := range map[string]struct {
		change func(f *certs.Files)
		host   string
		want   string
	}{
		"no certificate":      {func(f *certs.Files) { f.Cert = bad }, "localhost", bad},
		"no key":              {func(f *certs.Files) { f.Key = bad }, "localhost", bad},
		"no file":             {func(f *certs.Files) { f.Key = bad + "x" }, "localhost", bad + "x"},
		"no authority":        {func(f *certs.Files) { f.CA = bad }, "localhost", bad},
		"no client authority": {func(f *certs.Files) { f.ClientCA = bad }, "localhost", bad},
		"a key of another":    {func(f *certs.Files) { f.Key = b.key("other") }, "localhost", "private key does not match"},
		"another host":        {func(*certs.Files) {}, "10.0.0.1", "IP SANs"},
		"other authority":     {func(f *certs.Files) { f.CA = filepath.Join(stranger.dir, "ca.crt") }, "localhost", filepath.Join(stranger.dir, "ca.crt")},
		"clients of another":  {func(f *certs.Files) { f.ClientCA = filepath.Join(stranger.dir, "ca.crt") }, "localhost", filepath.Join(stranger.dir, "ca.crt")},
	} {
		f := good
		tt.change(&f)
		if _, err := certs.Open(f, b.options(tt.host)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want one with %q", what, err, tt.want)
		}
	}
}

// net/http tells of a handshake that failed by a line of text alone.
func TestErrorLogTellsRefusedHandshakes(t *testing.T) {
	b := newBench(t)
	s := b.node("n1", day)
	var rest bytes.Buffer
	l := s.ErrorLog(log.New(&rest, "", 0))
	b.told()
	for i := range 3 {
		l.Printf("http: TLS handshake error from 10.0.0.9:%d: tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time %d is after 7", i, i)
	}
	l.Print("http: TLS handshake error from 10.0.0.9:1: EOF")
	l.Print("http: something else: tls: x")
	if got := b.told(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "10.0.0.9") || !strings.Contains(got, "current time 0 is after 7") {
		t.Errorf("log: %s", got)
	}
	if got := rest.String(); strings.Count(got, "\n") != 2 {
		t.Errorf("the rest: %s", got)
	}
}

func (b *bench) key(name string) string {
	b.ca.Issue(b.dir, name, b.now(), b.now().Add(day), "localhost")
	return b.files(name).Key
}

// A file that cannot be read at the moment, as on another machine that hangs, keeps nobody
// from shaking hands with what was read before.
func TestB78_FilesThatHangKeepTheOld(t *testing.T) {
	b := newBench(t)
	s, other := b.node("n1", time.Hour), b.node("n2", 30*day)
	name := b.files("n1").Cert
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600)); err != nil {
		t.Fatal(err) // who opens it waits for one who writes
	}
	for range 3 {
		b.pass(3 * time.Second)
		if _, d, l := meet(t, other, s, "localhost"); d != nil || l != nil {
			t.Errorf("dialler %v, listener %v", d, l)
		}
	}
	if got := b.told(); strings.Count(got, "cannot be read in time") != 1 {
		t.Errorf("the log: %q", got)
	}
	w, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(whole); err != nil {
		t.Fatal(err)
	}
	w.Close()
	b.ca.Issue(b.dir, "n1", b.now(), b.now().Add(day), "localhost")
	for try := 0; s.Left() < 2*time.Hour; try++ {
		if try > 10_000 {
			t.Fatal("the files are read no more")
		}
		b.pass(3 * time.Second)
		s.Look()
		time.Sleep(time.Millisecond) // who reads them still may end that
	}
}
