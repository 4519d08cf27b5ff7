package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/cluster/certs/testca"
)

// documentedCertificates runs the lines of docs/operations.md that make certificates,
// for nodes on loopback.
func documentedCertificates(t *testing.T, dir string) {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("there is no openssl here")
	}
	var script []string
	for _, line := range consoleLines(t, "../../docs/operations.md", "TLS and certificates") {
		script = append(script, strings.TrimPrefix(line, "ca$ "))
	}
	text := regexp.MustCompile(`10\.0\.0\.\d`).ReplaceAllString(strings.Join(script, "\n"), "127.0.0.1")
	sh := exec.Command("sh", "-e", "-c", text)
	sh.Dir = dir
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// replaceCertificates issues all certificates anew under the same authorities, by the
// same lines, and puts each in its place.
func replaceCertificates(t *testing.T, dir string) {
	t.Helper()
	lines := consoleLines(t, "../../docs/operations.md", "TLS and certificates")
	next := t.TempDir()
	script := []string{"cp '" + dir + "'/*-ca.* ."}
	for _, line := range lines {
		if !strings.Contains(line, "-ca.key -out") {
			script = append(script, strings.TrimPrefix(line, "ca$ "))
		}
	}
	text := regexp.MustCompile(`10\.0\.0\.\d`).ReplaceAllString(strings.Join(script, "\n"), "127.0.0.1")
	sh := exec.Command("sh", "-e", "-c", text+"\nmv *-n*.key '"+dir+"'; mv *-n*.crt *-ops.* '"+dir+"'")
	sh.Dir = next
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func pool(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(text) {
		t.Fatalf("%s has no certificate", file)
	}
	return p
}

// A cluster with TLS everywhere, as the documentation makes it: the commands work at any
// node, who has no certificate gets a reason, and certificates are replaced under a
// holder that renews.
func TestP7_B78_TLSOnRealProcesses(t *testing.T) {
	dir := t.TempDir()
	documentedCertificates(t, dir)
	file := func(name string) string { return filepath.Join(dir, name) }
	conf := &tls.Config{RootCAs: pool(t, file("api-ca.crt"))}
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(file("api-ops.crt"), file("api-ops.key"))
		return &c, err
	}
	c := startProcessesOn(t, 3, conf, func(n *process) []string {
		return []string{
			"--tls-cert", file("api-" + n.name + ".crt"), "--tls-key", file("api-" + n.name + ".key"),
			"--tls-ca", file("api-ca.crt"), "--tls-client-ca", file("api-ca.crt"),
			"--raft-tls-cert", file("raft-" + n.name + ".crt"), "--raft-tls-key", file("raft-" + n.name + ".key"), "--raft-tls-ca", file("raft-ca.crt"),
		}
	})
	follower := c.follower()
	as := []string{"--endpoints", follower.url, "--tls-ca", file("api-ca.crt"), "--tls-cert", file("api-ops.crt"), "--tls-key", file("api-ops.key")}
	cli := func(args ...string) string {
		t.Helper()
		code, out, errs := command(t, "", append(args, as...)...)
		if code != 0 {
			t.Fatalf("%v: exit %d: %s", args, code, errs)
		}
		return strings.TrimSpace(out)
	}
	token := cli("acquire", "jobs/a", "--ttl", "10m", "-o", "token")
	cli("kv", "put", "k", "guarded", "--token", token)
	if got := cli("kv", "get", "k"); got != "guarded" {
		t.Errorf("read back %q", got)
	}
	eventually(t, "all have registered", func() bool { return strings.Contains(cli("cluster", "status"), "OK: 3 of 3") })
	cli("bench", "--works", "read", "--clients", "1", "--duration", "100ms")

	t.Run("refused", func(t *testing.T) { refusedByTLS(t, c, follower, file) })

	env := append(os.Environ(), "FENCEPOST_ENDPOINTS="+c.urls(), "FENCEPOST_TLS_CA="+file("api-ca.crt"),
		"FENCEPOST_TLS_CERT="+file("api-ops.crt"), "FENCEPOST_TLS_KEY="+file("api-ops.key"))
	rotatedUnderAHolder(t, c, dir, conf, env)
	if got := cli("kv", "get", "held"); got != "done" {
		t.Errorf("the command under the lock wrote %q", got)
	}
	metrics := string(c.get(follower, "/metrics").raw)
	for _, use := range []string{"raft", "http"} {
		if !strings.Contains(metrics, fmt.Sprintf(`fencepost_certificate_expires_seconds{use=%q} 7.7`, use)) { // 90 days
			t.Errorf("no certificate of %s in the metrics", use)
		}
	}
}

// rotatedUnderAHolder replaces all certificates, and then one by a broken file, while a
// command runs under a lease.
func rotatedUnderAHolder(t *testing.T, c *processes, dir string, conf *tls.Config, env []string) {
	t.Helper()
	file := func(name string) string { return filepath.Join(dir, name) }
	follower := c.follower()
	goOn := file("go")
	l := startLock(t, c.bin, env, "jobs/held", "--ttl", "3s", "--", "sh", "-c",
		`while [ ! -e "$1" ]; do sleep 0.1; done; exec "$2" kv put held done --guard held`, "sh", goOn, c.bin)
	held := func() answer { return c.mustDo("GET", "/v1/leases/jobs/held", "") }
	eventually(t, "the lease is held", func() bool { return held().body["held"] == true })
	first := held()
	shown := func(n *process) string {
		t.Helper()
		conn, err := tls.Dial("tcp", n.http, conf)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := map[*process]string{}
	for _, n := range c.nodes {
		before[n] = shown(n)
	}
	replaceCertificates(t, dir)
	for _, n := range c.nodes {
		eventually(t, n.name+" shows its new certificate", func() bool { return shown(n) != before[n] })
		before[n] = shown(n)
	}
	if err := os.WriteFile(file("api-"+follower.name+".crt"), []byte("-----BEGIN CERTIFICATE-----\nbroken"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log says what is wrong with the new file", func() bool {
		c.get(follower, "/livez")
		log, err := os.ReadFile(follower.dir + ".log")
		return err == nil && strings.Contains(string(log), "cannot be used") && strings.Contains(string(log), "api-"+follower.name+".crt")
	})
	if got := shown(follower); got != before[follower] {
		t.Errorf("with a broken file it shows %s, had %s", got, before[follower])
	}
	renewals := held().number("renewals")
	eventually(t, "the holder renews on", func() bool { return held().number("renewals") > renewals+2 })
	if now := held(); now.number("token") != first.number("token") {
		t.Errorf("the lease went from token %d to %d", first.number("token"), now.number("token"))
	}
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.done:
	case <-time.After(30 * time.Second):
		t.Fatal("lock does not end")
	}
	if code := l.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("lock ended with %d: %s", code, l.errs)
	}
}

// refusedByTLS is what those see who do not come with what it takes: the reason, and
// that nothing was changed.
func refusedByTLS(t *testing.T, c *processes, n *process, file func(string) string) {
	other := t.TempDir()
	ca := testca.New(t)
	authority := ca.Write(other)
	cert, key := ca.Issue(other, "stranger", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	for _, tt := range []struct {
		what, want, hint string
		args             []string
	}{
		{"no certificate", "certificate required", "--tls-cert", []string{"--tls-ca", file("api-ca.crt")}},
		{"a certificate of another authority", "unknown certificate authority", "--tls-cert", []string{"--tls-ca", file("api-ca.crt"), "--tls-cert", cert, "--tls-key", key}},
		{"another authority", "certificate signed by unknown authority", "--tls-ca", []string{"--tls-ca", authority}},
		{"the system's authorities", "certificate signed by unknown authority", "--tls-ca", nil},
	} {
		args := append([]string{"acquire", "jobs/never", "--endpoints", n.url, "--timeout", "1s"}, tt.args...)
		// What ends the call may be its time, on a machine that is slow.
		eventually(t, tt.what+": the reason is told", func() bool {
			code, _, errs := command(t, "", args...)
			if code != exitUnavailable && code != exitUnknown {
				t.Fatalf("%s: exit %d: %s", tt.what, code, errs)
			}
			return code == exitUnavailable && strings.Contains(errs, tt.want) && strings.Contains(errs, "check "+tt.hint)
		})
	}
	if code, _, errs := command(t, "", "leases", "--endpoints", "http://"+n.http); code != exitRefused || !strings.Contains(errs, "https://") {
		t.Errorf("http where https is served: exit %d: %s", code, errs)
	}
	if a := c.mustDo("GET", "/v1/leases/jobs/never", ""); a.status != 404 {
		t.Errorf("a stranger's acquire: %s", a)
	}
	resp, err := http.Get("http://" + n.http + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	a := answerOf(resp)
	if a.status != 400 || !strings.Contains(string(a.raw), "HTTPS") {
		t.Errorf("plain HTTP: %s", a)
	}
}

func TestServerRefusesHalfATLSConfiguration(t *testing.T) {
	dir := t.TempDir()
	ca := testca.New(t)
	authority := ca.Write(dir)
	cert, key := ca.Issue(dir, "n1", time.Now().Add(-time.Hour), time.Now().Add(time.Hour), "127.0.0.1")
	bad := filepath.Join(dir, "bad.pem")
	if err := os.WriteFile(bad, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"--raft-tls-ca go together", []string{"--raft-tls-cert", cert, "--raft-tls-key", key}},
		{"--tls-key go together", []string{"--tls-cert", cert}},
		{"--tls-cert and --tls-key are missing", []string{"--tls-client-ca", authority}},
		{bad, []string{"--raft-tls-cert", bad, "--raft-tls-key", key, "--raft-tls-ca", authority}},
		{bad, []string{"--raft-tls-cert", cert, "--raft-tls-key", key, "--raft-tls-ca", bad}},
		{"none.pem", []string{"--tls-cert", cert, "--tls-key", filepath.Join(dir, "none.pem"), "--tls-ca", authority}},
		{"by the system's authorities", []string{"--tls-cert", cert, "--tls-key", key}},
		{"127.0.0.2", []string{"--tls-cert", cert, "--tls-key", key, "--tls-ca", authority, "--advertise-http", "127.0.0.2:7001"}},
		{"is not https", []string{"--tls-cert", cert, "--tls-key", key, "--tls-ca", authority}},
		{"is https", []string{"--peers", "https://127.0.0.1:1"}},
		{"FENCEPOST_TLS_CA", []string{"--tls-ca", authority}},
	} {
		data := filepath.Join(t.TempDir(), "data")
		args := append([]string{"server", "--name", "n1", "--data-dir", data, "--expect", "1", "--peers", "http://127.0.0.1:1", "--http-addr", "127.0.0.1:0", "--advertise-http", "127.0.0.1:1"}, tt.args...)
		code, _, errs := command(t, "", args...)
		if code != exitUsage || !strings.Contains(errs, tt.want) {
			t.Errorf("%v: exit %d, want %d with %q: %s", tt.args, code, exitUsage, tt.want, errs)
		}
		if _, err := os.Stat(data); err == nil {
			t.Errorf("%v: the data directory was made", tt.args)
		}
	}
	if code, _, errs := command(t, "", "leases", "--tls-cert", cert); code != exitUsage || !strings.Contains(errs, "go together") {
		t.Errorf("a client with half a pair: exit %d: %s", code, errs)
	}
	if code, _, errs := command(t, "", "leases", "--tls-ca", bad); code != exitUsage || !strings.Contains(errs, bad) {
		t.Errorf("a client with an authority that is none: exit %d: %s", code, errs)
	}
}

// What is run under a lease may work in another directory.
func TestLockHandsOnWholePathsOfCertificates(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	got := tlsFlags{ca: "ca.crt", key: "/etc/k.pem"}.variables()
	want := []string{"FENCEPOST_TLS_CA=" + filepath.Join(dir, "ca.crt"), "FENCEPOST_TLS_KEY=/etc/k.pem"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHTTPSToAServerWithoutTLSSaysSo(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	eventually(t, "the reason is told", func() bool { // what ends the call may be its time
		code, _, errs := command(t, "", "leases", "--endpoints", strings.Replace(plain.URL, "http:", "https:", 1), "--timeout", "1s")
		return code == exitUnavailable && strings.Contains(errs, "should begin with http://")
	})
}
