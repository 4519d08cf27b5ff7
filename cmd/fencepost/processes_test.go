package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// build makes the program for one test; the build cache makes all but the first
// a matter of linking.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fencepost")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// processes is a cluster of real server processes on loopback.
type processes struct {
	t     *testing.T
	bin   string
	nodes []*process
	tls   *tls.Config // nil: the API is plain HTTP
}

type process struct {
	name, dir, http, raft, url string
	args                       []string
	life                       atomic.Pointer[life] // the newest; nil: never started
}

// life is a process from its start to its end.
type life struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

func startProcesses(t *testing.T, count int, flags ...string) *processes {
	t.Helper()
	return startProcessesOn(t, count, nil, func(*process) []string { return flags })
}

// startProcessesOn is startProcesses with an API over TLS, unless conf is nil, and flags
// for each node.
func startProcessesOn(t *testing.T, count int, conf *tls.Config, flags func(*process) []string) *processes {
	t.Helper()
	c := &processes{t: t, bin: build(t), tls: conf}
	scheme := "http://"
	if conf != nil {
		scheme = "https://"
	}
	ports := freePorts(t, 2*count)
	var peers []string
	for i := range count {
		n := &process{
			name: fmt.Sprintf("n%d", i+1),
			dir:  filepath.Join(t.TempDir(), "data"),
			http: fmt.Sprintf("127.0.0.1:%d", ports[2*i]),
			raft: fmt.Sprintf("127.0.0.1:%d", ports[2*i+1]),
		}
		n.url = scheme + n.http
		peers = append(peers, n.url)
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		n.args = []string{
			"server", "--name", n.name, "--data-dir", n.dir, "--http-addr", n.http, "--raft-addr", n.raft,
			"--peers", strings.Join(peers, ","), "--expect", fmt.Sprint(count),
		}
		n.args = append(n.args, flags(n)...)
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			if n.running() {
				c.kill(n)
			}
		}
		if t.Failed() {
			for _, n := range c.nodes {
				if b, err := os.ReadFile(n.dir + ".log"); err == nil {
					t.Logf("%s:\n%s", n.name, b[max(0, len(b)-4000):])
				}
			}
		}
	})
	for _, n := range c.nodes {
		c.start(n)
	}
	c.awaitReady(c.nodes...)
	return c
}

// freePorts finds ports below those that the kernel gives to outgoing
// connections: one of these could take the port of a node that is down.
func freePorts(t *testing.T, count int) (ports []int) {
	t.Helper()
	for tries := 0; len(ports) < count; tries++ {
		if tries > 1000 {
			t.Fatal("no free ports")
		}
		port := 10_000 + rand.IntN(20_000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close() // all are held until all are known
		ports = append(ports, port)
	}
	return ports
}

func (c *processes) start(n *process) {
	c.t.Helper()
	log, err := os.OpenFile(n.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	r := &life{cmd: exec.Command(c.bin, n.args...), exited: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = new(syscall.SysProcAttr)
	dieWithParent(r.cmd.SysProcAttr)
	if err := r.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	n.life.Store(r)
	go func() {
		r.cmd.Wait()
		close(r.exited)
	}()
}

func (n *process) running() bool {
	r := n.life.Load()
	if r == nil {
		return false
	}
	select {
	case <-r.exited:
		return false
	default:
		return true
	}
}

// kill ends processes with signal 9, and sees them gone.
func (c *processes) kill(nodes ...*process) {
	c.t.Helper()
	for _, n := range nodes {
		if err := n.life.Load().cmd.Process.Signal(syscall.SIGKILL); err != nil {
			c.t.Errorf("kill %s: %v", n.name, err)
		}
	}
	for _, n := range nodes {
		n.waitGone(c.t)
	}
}

func (n *process) waitGone(t *testing.T) {
	t.Helper()
	select {
	case <-n.life.Load().exited:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s is still running", n.name)
	}
}

func (c *processes) signal(n *process, s syscall.Signal) {
	c.t.Helper()
	if err := n.life.Load().cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// eventually polls until ok, within a bound that only a fault exceeds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func (c *processes) awaitReady(nodes ...*process) {
	c.t.Helper()
	for _, n := range nodes {
		eventually(c.t, n.name+" is ready", func() bool {
			if !n.running() {
				c.t.Fatalf("%s has ended by itself", n.name)
			}
			return c.get(n, "/readyz").status == 200
		})
	}
}

// leader is the node that says it leads, other than those named.
func (c *processes) leader(except ...*process) *process {
	c.t.Helper()
	var found *process
	eventually(c.t, "there is a leader", func() bool {
		for _, n := range c.nodes {
			for _, e := range except {
				if n == e {
					n = nil
					break
				}
			}
			if n == nil || !n.running() {
				continue
			}
			r := c.get(n, "/v1/cluster")
			for _, m := range r.list("nodes") {
				if m["leader"] != true {
					continue
				}
				for _, l := range c.nodes {
					ok := l.name == m["name"]
					for _, e := range except {
						ok = ok && l != e
					}
					if ok && c.get(l, "/readyz").status == 200 {
						found = l
						return true
					}
				}
			}
		}
		return false
	})
	return found
}

func (c *processes) follower() *process {
	l := c.leader()
	for _, n := range c.nodes {
		if n != l && n.running() {
			return n
		}
	}
	c.t.Fatal("no follower runs")
	return nil
}

// answer is what a node said; status 0: nothing.
type answer struct {
	status int
	header http.Header
	raw    []byte
	body   map[string]any
	err    error
}

func (a answer) number(field string) uint64 {
	f, _ := a.body[field].(json.Number)
	n, _ := f.Int64()
	return uint64(n)
}

func (a answer) text(field string) string {
	s, _ := a.body[field].(string)
	return s
}

func (a answer) list(field string) (list []map[string]any) {
	items, _ := a.body[field].([]any)
	for _, i := range items {
		if m, ok := i.(map[string]any); ok {
			list = append(list, m)
		}
	}
	return list
}

func (a answer) String() string { return fmt.Sprintf("%d %s %v", a.status, a.raw, a.err) }

func (c *processes) do(n *process, method, path, body string, header ...string) answer {
	req, err := http.NewRequest(method, n.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: c.tls}}
	resp, err := client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	return answerOf(resp)
}

func answerOf(resp *http.Response) answer {
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	a := answer{status: resp.StatusCode, header: resp.Header, raw: raw, err: err}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	d.Decode(&a.body) // not everything is JSON
	return a
}

func (c *processes) get(n *process, path string) answer { return c.do(n, "GET", path, "") }

// mustDo repeats a request with one key until it is answered with something
// other than "not now" or "unknown", at any node that runs.
func (c *processes) mustDo(method, path, body string, header ...string) answer {
	c.t.Helper()
	header = append(header, "Idempotency-Key", fmt.Sprintf("k%d", time.Now().UnixNano()))
	var a answer
	i := 0
	eventually(c.t, method+" "+path+" is answered", func() bool {
		n := c.nodes[i%len(c.nodes)]
		i++
		if !n.running() {
			return false
		}
		a = c.do(n, method, path, body, header...)
		return a.status != 0 && a.status < 500
	})
	return a
}

func (c *processes) mustAcquire(name string, ttl time.Duration) uint64 {
	c.t.Helper()
	a := c.mustDo("POST", "/v1/leases/"+name+"/acquire", fmt.Sprintf(`{"holder":"test","ttl_ms":%d}`, ttl.Milliseconds()))
	if a.status != 200 || a.number("token") == 0 {
		c.t.Fatalf("acquire %s: %s", name, a)
	}
	return a.number("token")
}

func (c *processes) put(key string, token uint64, value string, header ...string) answer {
	c.t.Helper()
	return c.mustDo("PUT", "/v1/kv/"+key, value, append(header, "Fencing-Token", fmt.Sprint(token))...)
}

func (c *processes) release(name string, token uint64) answer {
	c.t.Helper()
	return c.mustDo("POST", "/v1/leases/"+name+"/release", fmt.Sprintf(`{"token":%d}`, token))
}
