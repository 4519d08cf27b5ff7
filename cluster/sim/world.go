package sim

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing/synctest"
	"time"

	"fencepost/cluster"
	"fencepost/cluster/check"
	"fencepost/fsm"
)

// Options say which world it is.
type Options struct {
	Seed   uint64
	Dir    string    // for the view of a history without an order; "": nowhere
	Faults int       // that land before everything heals
	Log    io.Writer // of the nodes; nil: none
}

// A Report is what became of a world.
type Report struct {
	Seed                          uint64
	Failovers                     int            // terms in which a node was seen to lead, after the first
	Landed                        map[string]int // faults by name
	Operations, Entries, Installs int
	Exits                         []string // nodes that ended themselves, and why
	Lasted                        time.Duration
	Verdicts                      []*check.Verdict
	History                       *check.History
	Log                           []check.Entry

	world *world
}

// Failed are the findings of all checks.
func (r *Report) Failed() (all []string) {
	for _, v := range r.Verdicts {
		for _, f := range v.Findings {
			all = append(all, v.Name+": "+f)
		}
	}
	return all
}

// punctual is how much cluster time the leader of one term may take to end what is
// over, and to grant what is free: a pause of its own, and a slow disk.
const punctual = 3 * time.Second

// healBound is how long after the last fault everything must work again.
const healBound = 30 * time.Second

// world is a cluster with its clients.
type world struct {
	opts   Options
	net    *network
	hosts  []*host
	voters map[string]string
	config cluster.Config
	rec    *check.Recorder

	rngMu sync.Mutex
	rng   *rand.Rand

	restores bool // some worlds have them
	backups  backups
	restored bool // the log has one

	replacing chan struct{} // holds one while a member is replaced

	peersMu sync.Mutex // one change of who reaches whom at a time

	exits   findings
	wrong   findings // what was seen to be wrong while it ran
	beliefs beliefs
	load    *load
}

// findings collects texts from any goroutine.
type findings struct {
	mu  sync.Mutex
	all []string
}

func (f *findings) add(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, text)
}

func (w *world) must(err error) {
	if err != nil {
		w.wrong.add(err.Error())
	}
}

// Run lives through a world. It must be called inside bubble.Test. Nothing has been
// judged then but what was seen while it ran; see Judge.
func Run(opts Options) *Report {
	w := newWorld(opts)
	for _, h := range w.hosts {
		w.must(h.start())
	}
	report := &Report{Seed: opts.Seed, Landed: make(map[string]int)}
	began := time.Now()
	terms := w.countTerms()
	w.load = startLoad(w)
	time.Sleep(time.Second)
	w.torment(report.Landed)
	w.heal()
	w.load.mischief.stop()
	w.progress()
	told := w.told()
	time.Sleep(watchBound)
	w.load.stop()
	digests := w.settle()
	report.Lasted = time.Since(began)
	report.Failovers = terms()
	last := uint64(0)
	for _, h := range w.hosts {
		if p := h.up.Load(); p != nil {
			_, err := p.node.Read(context.Background(), true, func(s *fsm.State) { last = max(last, s.Index()-s.Base()) })
			w.must(err)
		}
		h.stop()
	}
	time.Sleep(time.Minute) // what was still on its way ends
	synctest.Wait()
	report.Exits = w.exits.all
	report.History = w.rec.History()
	report.History.Drift, report.History.Punctual = maxDrift, punctual
	report.Log = w.entries(last)
	report.Operations, report.Entries = len(report.History.Exchanges), len(report.Log)
	report.Installs = int(w.net.installs.Load())
	report.Verdicts = append(w.seen(digests), keptUp(report.History.Streams, told))
	report.world = w
	return report
}

// Judge gives the evidence to the checkers. It must be called outside the bubble: the
// search for an order has a limit in time, which does not pass there while it searches.
func (r *Report) Judge() {
	r.Verdicts = append(r.Verdicts, r.world.judge(r)...)
	for _, v := range r.Verdicts {
		v.DemandEvidence() // each world has some of everything
	}
}

func newWorld(opts Options) *world {
	w := &world{
		opts: opts, rng: rand.New(rand.NewPCG(opts.Seed, 0)), rec: check.NewRecorder(),
		replacing: make(chan struct{}, 1),
		voters:    make(map[string]string), config: cluster.DefaultConfig(),
	}
	w.net = newNetwork(w.newRand())
	w.beliefs.held = make(map[string]belief)
	for i := range 3 {
		h := &host{w: w, name: fmt.Sprintf("n%d", i+1), id: fmt.Sprintf("id%d", i+1), disk: newDisk(w.newRand()), change: make(chan struct{}, 1)}
		w.hosts = append(w.hosts, h)
		w.voters[h.id] = h.name
	}
	w.config.DiskBound = 2 * time.Second
	w.config.TrailingEntries = 256
	w.config.SnapshotEntries = []uint64{300, 3000, 1 << 40}[w.rng.IntN(3)]
	w.restores = w.rng.IntN(3) == 0
	w.config.WatchHistory = []int{1000, 65_536}[w.rng.IntN(2)]
	return w
}

// leader is the host that leads in the highest term; nil: nobody does.
func (w *world) leader() (best *host) {
	highest := uint64(0)
	for _, h := range w.hosts {
		if term, ok := h.leads(); ok && term > highest {
			highest, best = term, h
		}
	}
	return best
}

// countTerms watches who leads; the returned function ends that and tells in how
// many terms somebody did, but for the first.
func (w *world) countTerms() (end func() int) {
	terms := make(map[uint64]bool)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(20 * time.Millisecond)
		defer t.Stop()
		for {
			for _, h := range w.hosts {
				if term, ok := h.leads(); ok {
					terms[term] = true
				}
			}
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() int {
		cancel()
		<-done
		return max(0, len(terms)-1)
	}
}

// heal ends all faults: links, disks, and nodes that are down.
func (w *world) heal() {
	w.net.heal()
	for _, h := range w.hosts {
		h.disk.resume()
		h.disk.slow(0)
		w.must(h.start())
	}
}

// settle waits until all nodes have applied the same, and tells the digests.
func (w *world) settle() (digests map[string]uint64) {
	for range 500 {
		indexes := make(map[uint64]int)
		digests = make(map[string]uint64)
		for _, h := range w.hosts {
			p := h.up.Load()
			if p == nil {
				continue
			}
			var at uint64
			_, err := p.node.Read(context.Background(), true, func(s *fsm.State) { at, digests[h.name] = s.Index(), s.Digest() })
			w.must(err)
			indexes[at]++
		}
		if len(indexes) == 1 && len(digests) == len(w.hosts) {
			return digests
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.wrong.add("the nodes did not come to the same index after everything had healed")
	return digests
}
