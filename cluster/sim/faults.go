package sim

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// A fault lands on the cluster, lasts, and is over when it returns: what it cut it
// has healed, what it stopped it has started. False: there was nothing to land on.
type fault struct {
	name   string
	weight int
	land   func(w *world, r *rand.Rand) bool
}

// restores is a fault that only some worlds have: with it, the answers alone cannot be
// judged.
const restores = "N20 a backup is restored"

// faults are all that a world may meet. The numbers are those of docs/evidence.md.
var faults = []fault{
	{"N1 leader crashes", 10, crashLeader},
	{"N2 a node crashes", 3, crashAny},
	{"N2 all crash", 2, crashAll},
	{"N3 leader stands still", 5, holdLeader},
	{"N6 leader is cut off", 10, cutLeader},
	{"N7 leader is not heard", 4, muteLeader},
	{"N7 leader hears nothing", 4, deafenLeader},
	{"N7 two nodes cannot reach each other", 3, cutPair},
	{"N8 links are slow", 3, slowLinks},
	{"N5 a client is cut off", 4, cutClient},
	{"N11 the leader's disk is slow", 3, slowDisk},
	{"N12 the leader's disk hangs", 2, hangDisk},
	{"N15 power fails while the leader writes", 5, crashWriting},
	{"N17 leader is stopped in order", 6, stopLeader},
	{"N19 leadership is handed over by command", 4, transferLeader},
	{"N19 a member loses its disk and joins anew", 4, replaceMember},
	{restores, 8, restoreBackup},
	{"N21 a node is away for long", 4, longAway},
}

// torment lands faults, one after the other and sometimes two at once.
func (w *world) torment(landed map[string]int) {
	r := w.newRand()
	var mu sync.Mutex // guards landed
	one := func(r *rand.Rand) {
		f := drawFault(r)
		for f.name == restores && !w.restores {
			f = drawFault(r)
		}
		if f.land(w, r) {
			mu.Lock()
			landed[f.name]++
			mu.Unlock()
		}
	}
	for range w.opts.Faults {
		other, both := w.newRand(), r.IntN(4) == 0
		var beside sync.WaitGroup
		if both {
			beside.Go(func() {
				time.Sleep(between(other, 0, time.Second))
				one(other)
			})
		}
		one(r)
		beside.Wait()
		time.Sleep(between(r, 50*time.Millisecond, 1500*time.Millisecond))
	}
	w.load.mischief.mu.Lock()
	defer w.load.mischief.mu.Unlock()
	for what, n := range w.load.mischief.counts {
		landed["N9 "+what] += n
	}
}

func drawFault(r *rand.Rand) fault {
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	n := r.IntN(total)
	for _, f := range faults {
		if n -= f.weight; n < 0 {
			return f
		}
	}
	panic("the weights do not add up")
}

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// others are the hosts beside one.
func (w *world) others(h *host) (all []*host) {
	for _, o := range w.hosts {
		if o != h {
			all = append(all, o)
		}
	}
	return all
}

func (w *world) crash(h *host, away time.Duration) bool {
	landed := h.crash()
	time.Sleep(away)
	w.must(h.start())
	return landed
}

func crashLeader(w *world, r *rand.Rand) bool {
	h := w.leader()
	return h != nil && w.crash(h, between(r, 0, 3*time.Second))
}

func crashAny(w *world, r *rand.Rand) bool {
	return w.crash(w.hosts[r.IntN(len(w.hosts))], between(r, 0, 3*time.Second))
}

func crashAll(w *world, r *rand.Rand) bool {
	var wg sync.WaitGroup
	for _, h := range w.hosts {
		away := between(r, 0, 2*time.Second)
		wg.Go(func() { w.crash(h, away) })
	}
	wg.Wait()
	return true
}

// crashWriting lets the power of the leader fail in the middle of a write, which one
// follower has finished and the other has not heard of; and then lets the two that do
// not have it go on without the third.
func crashWriting(w *world, r *rand.Rand) bool {
	h := w.leader()
	if h == nil {
		return false
	}
	others := w.others(h)
	r.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	behind := w.net.between(h.name, others[0].name)
	for _, l := range behind {
		l.cut()
	}
	h.disk.slow(time.Second)
	time.Sleep(between(r, 20*time.Millisecond, 700*time.Millisecond))
	before := h.disk.tears()
	h.crash()
	h.disk.slow(0) // also where another fault has taken the node down before
	var ahead []*link
	for _, o := range []*host{h, others[0]} {
		ahead = append(ahead, w.net.between(others[1].name, o.name)...)
	}
	for _, l := range ahead {
		l.cut()
	}
	for _, l := range behind {
		l.heal()
	}
	w.must(h.start())
	time.Sleep(between(r, time.Second, 4*time.Second))
	for _, l := range ahead {
		l.heal()
	}
	return h.disk.tears() > before
}

// longAway lets a node miss so much that it needs a snapshot, and lets the leader
// crash while it may be getting that.
func longAway(w *world, r *rand.Rand) bool {
	h := w.hosts[r.IntN(len(w.hosts))]
	if h == w.leader() || !w.crash(h, between(r, 6*time.Second, 18*time.Second)) {
		return false
	}
	if r.IntN(2) == 0 {
		time.Sleep(between(r, 0, 300*time.Millisecond))
		crashLeader(w, r)
	}
	return true
}

func stopLeader(w *world, r *rand.Rand) bool {
	h := w.leader()
	if h == nil || !h.stop() {
		return false
	}
	time.Sleep(between(r, 0, time.Second))
	w.must(h.start())
	return true
}

// severed holds what goes over some links for a while.
func severed(links []*link, d time.Duration) bool {
	held := uint64(0)
	for _, l := range links {
		held -= l.heldBack()
		l.cut()
	}
	time.Sleep(d)
	for _, l := range links {
		l.heal()
		held += l.heldBack()
	}
	return held > 0
}

func cutLeader(w *world, r *rand.Rand) bool {
	h := w.leader()
	if h == nil {
		return false
	}
	var links []*link
	for _, o := range w.others(h) {
		links = append(links, w.net.between(h.name, o.name)...)
	}
	return severed(links, between(r, 300*time.Millisecond, 5*time.Second))
}

func muteLeader(w *world, r *rand.Rand) bool {
	h := w.leader()
	if h == nil {
		return false
	}
	var links []*link
	for _, o := range w.others(h) {
		links = append(links, w.net.link(h.name, o.name))
	}
	return severed(links, between(r, 300*time.Millisecond, 5*time.Second))
}

func deafenLeader(w *world, r *rand.Rand) bool {
	h := w.leader()
	if h == nil {
		return false
	}
	var links []*link
	for _, o := range w.others(h) {
		links = append(links, w.net.link(o.name, h.name))
	}
	return severed(links, between(r, 300*time.Millisecond, 5*time.Second))
}

func cutPair(w *world, r *rand.Rand) bool {
	i := r.IntN(len(w.hosts))
	a, b := w.hosts[i], w.hosts[(i+1)%len(w.hosts)]
	return severed(w.net.between(a.name, b.name), between(r, 300*time.Millisecond, 6*time.Second))
}

// holdLeader is as much of a stopped process as can be had here: nothing comes from
// it or to it, and its disk does not answer. Its goroutines run on.
func holdLeader(w *world, r *rand.Rand) bool {
	h := w.leader()
	if h == nil {
		return false
	}
	links := w.net.of(h.name)
	h.disk.stall()
	defer h.disk.resume()
	return severed(links, between(r, 200*time.Millisecond, 1800*time.Millisecond))
}

func cutClient(w *world, r *rand.Rand) bool {
	return severed(w.net.of(w.load.clientName(r)), between(r, 500*time.Millisecond, 6*time.Second))
}

func slowLinks(w *world, r *rand.Rand) bool {
	var links []*link
	for i, a := range w.hosts {
		for _, b := range w.hosts[i+1:] {
			links = append(links, w.net.between(a.name, b.name)...)
		}
	}
	for _, l := range links {
		l.slow(between(r, 0, 60*time.Millisecond))
	}
	time.Sleep(between(r, time.Second, 5*time.Second))
	for _, l := range links {
		l.heal()
	}
	return true
}

func slowDisk(w *world, r *rand.Rand) bool {
	h := w.leader()
	if h == nil {
		return false
	}
	h.disk.slow(between(r, 20*time.Millisecond, 500*time.Millisecond))
	time.Sleep(between(r, time.Second, 5*time.Second))
	h.disk.slow(0)
	return true
}

// hangDisk lasts until the watchdog has ended the node; without one it would lead on
// without committing anything.
func hangDisk(w *world, r *rand.Rand) bool {
	h := w.leader()
	if h == nil {
		return false
	}
	p := h.up.Load()
	h.disk.stall()
	defer h.disk.resume()
	for began := time.Now(); h.up.Load() == p; time.Sleep(10 * time.Millisecond) {
		hung := h.disk.hangs()
		if hung > w.config.DiskBound*3/2 {
			w.wrong.add(fmt.Sprintf("a write to the disk of %s has hung for %s, and the node has not ended itself", h.name, hung))
			return true
		}
		if hung == 0 && time.Since(began) > 2*w.config.DiskBound {
			return false // it had nothing to write
		}
	}
	return true
}
