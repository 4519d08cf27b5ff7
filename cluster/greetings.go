package cluster

import (
	"maps"
	"net"
	"slices"
	"sync"

	"fencepost/cluster/certs"
)

// maxGreetings bounds connections that have not said who they are yet.
const maxGreetings = 64

// greetings are the connections that have not said who they are yet, oldest first. Whoever
// reaches the port can open them and say nothing, so when there are too many one is closed:
// the oldest of the host that has most. A member needs a place for a round trip or two, and
// gets it, however many silent ones there are.
type greetings struct {
	mu   sync.Mutex // guards all
	open []net.Conn
	shut bool
}

// add says whether there is a place; the caller closes the connection if not.
func (g *greetings) add(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return false
	}
	g.open = append(g.open, c)
	if len(g.open) > maxGreetings {
		i := g.dispensable()
		g.open[i].Close() // which ends its greeting
		g.open = slices.Delete(g.open, i, i+1)
	}
	return true
}

// dispensable is the oldest of the host that has most.
func (g *greetings) dispensable() (index int) {
	of := map[string]int{}
	for _, c := range g.open {
		of[host(c)]++
	}
	most := slices.Max(slices.Collect(maps.Values(of)))
	return slices.IndexFunc(g.open, func(c net.Conn) bool { return of[host(c)] == most })
}

func (g *greetings) done(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.open, c); i >= 0 {
		g.open = slices.Delete(g.open, i, i+1)
	}
}

// close ends all of them, and lets no more in.
func (g *greetings) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for _, c := range g.open {
		c.Close()
	}
}

func host(c net.Conn) string { return certs.HostOf(c.RemoteAddr().String()) }
