package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"fencepost/cluster"
	"fencepost/httpapi"
)

// maxDrift is by which part of a time a node's clock may be fast or slow.
const maxDrift = 0.05

// host is a machine with a node on it, if it runs: what outlives a crash is the
// disk.
type host struct {
	w    *world
	name string // of the host, the node and its Raft address
	disk *disk

	id       string // changed by replaceMember alone, and read by it, and under change
	replaced int    // how often it has lost its disk
	lost     bool   // it has, and nobody has taken it in yet; guarded by change

	change chan struct{}           // holds one during a start, crash or stop; a mutex would hold up fake time
	up     atomic.Pointer[process] // nil: down
}

// process is one boot of a node.
type process struct {
	node    *cluster.Node
	handler *httpapi.Handler
	server  *http.Server
	served  chan struct{}
	trans   *raft.InmemTransport
	end     context.CancelFunc // of the transport's messages
	exited  chan string        // buffer of one: why the node wanted to end
	gone    chan struct{}
}

// start boots the node from its disk. Its clock runs fast or slow by up to a
// twentieth, another way at each boot.
func (h *host) start() error {
	h.change <- struct{}{}
	defer func() { <-h.change }()
	if h.up.Load() != nil || h.lost {
		return nil
	}
	w := h.w
	voters := w.voters
	if h.replaced > 0 {
		voters = nil // it is taken in by the others, or is nobody
	}
	p := &process{served: make(chan struct{}), exited: make(chan string, 1), gone: make(chan struct{})}
	cfg := w.config
	cfg.Name, cfg.HTTPAddr, cfg.RaftAddr = h.name, h.name+":80", h.name
	cfg.Logger = hclog.NewNullLogger()
	if w.opts.Log != nil {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Name: h.name, Output: w.opts.Log, Level: hclog.Info})
	}
	for _, other := range w.hosts {
		cfg.Peers = append(cfg.Peers, "http://"+other.name+":80")
	}
	cfg.Exit = func(why string) {
		select {
		case p.exited <- why:
		default:
		}
	}
	var life context.Context
	life, p.end = context.WithCancel(context.Background())
	_, p.trans = raft.NewInmemTransportWithTimeout(raft.ServerAddress(h.name), rpcBound)
	rate := 1 + maxDrift*(2*w.float()-1)
	booted := time.Now()
	store := h.disk.mount()
	nodes := &http.Transport{DialContext: w.net.dialer(h.name), MaxIdleConnsPerHost: 64}
	var err error
	p.node, err = cluster.OpenOn(cfg, cluster.StandIns{
		ID: h.id, ClusterID: "sim", Voters: voters, Logs: store, Stable: store, Snapshots: store,
		Transport: &transport{p.trans, w.net, h.name, life},
		Peers:     &http.Transport{DialContext: w.net.dialer(h.name)},
		Clock:     func() time.Time { return booted.Add(time.Duration(float64(time.Since(booted)) * rate)) },
	})
	if err != nil {
		p.end()
		return fmt.Errorf("start %s: %w", h.name, err)
	}
	p.handler = httpapi.New(p.node, httpapi.Options{Nodes: nodes, Version: "sim"})
	p.server = httpapi.NewServer(p.handler)
	l := w.net.listen(h.name)
	go func() {
		defer close(p.served)
		_ = p.server.Serve(l) // ends with Close
	}()
	h.up.Store(p)
	w.connect()
	go h.watchExit(p)
	return nil
}

// watchExit takes a node that ends itself for crashed, and boots it again.
func (h *host) watchExit(p *process) {
	select {
	case why := <-p.exited:
		if h.up.Load() != p {
			return // it was crashed, and what it found then is no news
		}
		h.w.exits.add(h.name + ": " + why)
		if h.disk.hangs() == 0 {
			h.w.wrong.add(fmt.Sprintf("%s ended itself, though its disk works: %s", h.name, why))
		}
		if strings.Contains(why, "replica") || strings.Contains(why, "cannot be applied") {
			h.w.wrong.add(fmt.Sprintf("P14 %s ended itself: %s", h.name, why))
		}
		if h.crash() {
			time.Sleep(time.Second)
			h.w.must(h.start())
		}
	case <-p.gone:
	}
}

// crash ends the node as kill -9, or a power cut, does. False: it was down.
func (h *host) crash() bool {
	h.change <- struct{}{}
	defer func() { <-h.change }()
	p := h.up.Swap(nil)
	if p == nil {
		return false
	}
	h.w.net.drop(h.name) // before the disk: what is not written must not be told
	h.disk.crash()
	h.finish(p)
	return true
}

// stop ends the node as SIGTERM does: it hands over leadership first.
func (h *host) stop() bool {
	h.change <- struct{}{}
	defer func() { <-h.change }()
	p := h.up.Swap(nil)
	if p == nil {
		return false
	}
	_ = p.node.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.server.Shutdown(ctx)
	h.w.net.drop(h.name)
	h.finish(p)
	return true
}

// finish ends what is left of a process that can reach nobody any more.
func (h *host) finish(p *process) {
	h.w.disconnect(h.name, p)
	p.end()
	_ = p.server.Close()
	p.handler.Close()
	_ = p.node.Close() // of a crash: what it still writes goes nowhere
	<-p.served
	_ = p.trans.Close()
	close(p.gone)
}

// leads says whether the node says that it leads, and in which term.
func (h *host) leads() (term uint64, ok bool) {
	p := h.up.Load()
	if p == nil {
		return 0, false
	}
	s := p.node.Status()
	return s.Term, s.IsLeader
}

// connect makes all nodes that run reachable for each other, as far as the links
// let them.
func (w *world) connect() {
	w.peersMu.Lock()
	defer w.peersMu.Unlock()
	for _, a := range w.hosts {
		for _, b := range w.hosts {
			if pa, pb := a.up.Load(), b.up.Load(); a != b && pa != nil && pb != nil {
				pa.trans.Connect(raft.ServerAddress(b.name), pb.trans)
			}
		}
	}
}

func (w *world) disconnect(name string, p *process) {
	w.peersMu.Lock()
	defer w.peersMu.Unlock()
	p.trans.DisconnectAll()
	for _, other := range w.hosts {
		if o := other.up.Load(); o != nil {
			o.trans.Disconnect(raft.ServerAddress(name))
		}
	}
}

// float is a random number from 0 to 1, of the world's seed.
func (w *world) float() float64 {
	w.rngMu.Lock()
	defer w.rngMu.Unlock()
	return w.rng.Float64()
}

func (w *world) newRand() *rand.Rand {
	w.rngMu.Lock()
	defer w.rngMu.Unlock()
	return rand.New(rand.NewPCG(w.rng.Uint64(), w.rng.Uint64()))
}
