package fsm

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"fencepost/fsm/fsmpb"
)

// A generator makes random entries: few names, keys, principals and request
// keys, so that they collide, and tokens and versions that mostly exist.
type generator struct {
	index, term uint64 // of the next entry
	nowMS       uint64
	tokens      []uint64 // granted, newest last
	versions    []uint64
	leases      []string         // names of the tokens
	deadlines   []uint64         // when leases, graces and waits were or will be over, about
	past        []*fsmpb.Command // with a request key
	acquires    []*fsmpb.Acquire // of those
	restore     restorer
}

func newGenerator() *generator { return &generator{index: 1, term: 1} }

func pick[T any](t *rapid.T, label string, of ...T) T { return rapid.SampledFrom(of).Draw(t, label) }

func oneIn(t *rapid.T, n int, label string) bool { return rapid.IntRange(1, n).Draw(t, label) == n }

// next makes the next entry. It is called after learn has seen the last one's outcome.
func (g *generator) next(t *rapid.T) *fsmpb.Command {
	g.nowMS += pick[uint64](t, "step", 0, 0, 0, 0, 0, 1, 10, 100, 1000, 1000, 5000, 20_000, 60_000, 300_000, KeepEndedMS)
	if oneIn(t, 10, "backwards") {
		g.nowMS -= min(g.nowMS, 2000)
	}
	if n := len(g.deadlines); n > 0 && oneIn(t, 5, "to a deadline") {
		// The instants at which something changes, and those just before.
		at := pick(t, "deadline", g.deadlines[max(0, n-4):]...) + pick[uint64](t, "record", 0, 0, KeepEndedMS) - pick[uint64](t, "before", 0, 1)
		g.nowMS = max(g.nowMS, at)
	}
	if oneIn(t, 20, "election") {
		g.term++
	}
	c := g.operation(t)
	c.NowMs, c.Term = g.nowMS, g.term
	if oneIn(t, 12, "foreign term") {
		c.Term += pick(t, "by", ^uint64(0), 1)
		c.NowMs += 3_600_000
	}
	return c
}

// learn tells the generator what an entry did, and moves on to the next index.
func (g *generator) learn(t *rapid.T, c *fsmpb.Command, o *fsmpb.Outcome, events []Event) {
	for _, e := range events {
		switch e.Kind {
		case EventRestored:
			g.jumped(e.Index - g.index)
		case EventGranted:
			g.tokens, g.leases = append(g.tokens, e.Token), append(g.leases, e.Name)
			g.deadlines = append(g.deadlines, g.nowMS+e.TTLMS)
		case EventQueued:
			g.deadlines = append(g.deadlines, g.nowMS+c.GetAcquire().WaitMs)
		case EventExpired:
			g.deadlines = append(g.deadlines, g.nowMS+e.GraceMS)
		}
	}
	if c.GetWrite() != nil && o.Version != 0 {
		g.versions = append(g.versions, o.Version)
	}
	if c.GetAcquire().GetRequest() != nil || c.GetRelease().GetRequest() != nil || c.GetWrite().GetRequest() != nil {
		g.past = append(g.past, c)
	}
	if c.GetAcquire().GetRequest() != nil {
		g.acquires = append(g.acquires, c.GetAcquire())
	}
	g.index += pick[uint64](t, "skip", 1, 1, 1, 1, 4)
}

func (g *generator) operation(t *rapid.T) *fsmpb.Command {
	kinds := []string{
		"acquire", "acquire", "acquire", "acquire", "acquire", "write", "write", "write", "write", "renew", "release", "release",
		"cancel", "cancel", "advance", "advance", "advance", "tick", "node", "repeat", "repeat", "garbage", "restore", "restore", "restore",
	}
	switch kind := pick(t, "kind", kinds...); {
	case kind == "acquire":
		return &fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: g.acquire(t)}}
	case kind == "write":
		return &fsmpb.Command{Op: &fsmpb.Command_Write{Write: g.write(t)}}
	case kind == "renew":
		return &fsmpb.Command{Op: &fsmpb.Command_Renew{Renew: g.renew(t)}}
	case kind == "release":
		return &fsmpb.Command{Op: &fsmpb.Command_Release{Release: g.release(t)}}
	case kind == "cancel":
		return &fsmpb.Command{Op: &fsmpb.Command_Cancel{Cancel: g.cancel(t)}}
	case kind == "advance":
		return advanceOf()
	case kind == "restore":
		return g.restore.next(t, g)
	case kind == "node":
		return g.node(t)
	case kind == "repeat" && len(g.past) > 0:
		recent := g.past[max(0, len(g.past)-8):]
		c := proto.CloneOf(pick(t, "which", recent...))
		if a := c.GetAcquire(); a != nil && a.Request.Key != "" && rapid.Bool().Draw(t, "another wait") {
			a.WaitMs = g.wait(t)
		}
		return c
	case kind == "garbage":
		return g.garbage(t)
	}
	return tickOf()
}

func (g *generator) name(t *rapid.T) string      { return pick(t, "name", "a", "b", "a/b") }
func (g *generator) principal(t *rapid.T) string { return pick(t, "principal", "p", "p", "p", "q") }

// held is a token with its lease's name: mostly a recent one, with its own.
func (g *generator) held(t *rapid.T) (token uint64, name string) {
	if len(g.tokens) == 0 || oneIn(t, 8, "odd token") {
		odd := []uint64{1, 2, g.index - min(g.index-1, 1), g.index, g.index + 1, g.index + 1000, MaxToken}
		return max(1, pick(t, "token", odd...)), g.name(t)
	}
	i := len(g.tokens) - 1 - rapid.IntRange(0, min(4, len(g.tokens)-1)).Draw(t, "age")
	if oneIn(t, 8, "odd name") {
		return g.tokens[i], g.name(t)
	}
	return g.tokens[i], g.leases[i]
}

// request is a key on that path, or none. The digest is of what was asked.
func (g *generator) request(t *rapid.T, path string, asked proto.Message) *fsmpb.Request {
	if oneIn(t, 3, "without key") {
		return nil
	}
	digest, _ := proto.MarshalOptions{Deterministic: true}.Marshal(asked)
	return &fsmpb.Request{
		Key: pick(t, "key", "k1", "k2", "k3", "k4", "k5", "k6", ""), Path: path, Digest: digest, ServerMade: oneIn(t, 4, "server made"),
	}
}

func (g *generator) ttl(t *rapid.T) uint64 {
	return pick[uint64](t, "ttl", 100, 1000, 5000, 10_000, 10_000, 60_000, 600_000, 3_600_000)
}

func (g *generator) wait(t *rapid.T) uint64 {
	return pick[uint64](t, "wait", 0, 0, 100, 1000, 10_000, 60_000, 300_000, 3_600_000)
}

// share is how a name is shared: mostly in the way that is its own.
func (g *generator) share(t *rapid.T, c *fsmpb.Acquire) {
	c.Slots = map[string]uint64{"a": 1, "b": 3, "a/b": 2}[c.Name]
	if oneIn(t, 8, "other slots") {
		c.Slots = pick[uint64](t, "slots", 0, 1, 2, 3, MaxSlots)
	}
	c.Take = pick(t, "take", 0, 1, 1, 2, c.Slots, c.Slots)
	c.Take = min(c.Take, max(1, c.Slots))
}

func (g *generator) acquire(t *rapid.T) *fsmpb.Acquire {
	c := &fsmpb.Acquire{Name: g.name(t), Holder: pick(t, "holder", "h", "i"), TtlMs: g.ttl(t)}
	g.share(t, c)
	c.GraceMs = pick[uint64](t, "grace", 0, 0, 0, 0, 100, 5000, 60_000, KeepEndedMS)
	if oneIn(t, 4, "metadata") {
		c.Metadata = []*fsmpb.Pair{{Key: "m", Value: "1"}, {Key: "n", Value: "2"}}
	}
	c.Request = g.request(t, "acquire/"+c.Name, c)
	if c.Request.GetKey() != "" {
		c.WaitMs = g.wait(t)
	}
	c.Principal = g.principal(t)
	return c
}

// cancel is of an acquire that was, mostly; of one that may be yet to come, or
// of another request.
func (g *generator) cancel(t *rapid.T) *fsmpb.Cancel {
	c := &fsmpb.Cancel{Name: g.name(t), Principal: g.principal(t), Attempt: pick[uint64](t, "attempt", 0, 0, 1, 2, 3)}
	c.Request = &fsmpb.Request{Key: pick(t, "key", "k1", "k2", "k3", "k4", "k5", "k6"), Path: "acquire/" + c.Name}
	if n := len(g.acquires); n > 0 && !oneIn(t, 6, "any key") {
		a := pick(t, "which", g.acquires[max(0, n-6):]...)
		c.Name, c.Principal = a.Name, a.Principal
		c.Request.Key, c.Request.Path = a.Request.Key, a.Request.Path
	} else if n := len(g.past); n > 0 && rapid.Bool().Draw(t, "odd path") {
		old := pick(t, "which", g.past[max(0, n-6):]...)
		for _, r := range []*fsmpb.Request{old.GetRelease().GetRequest(), old.GetWrite().GetRequest()} {
			if r != nil {
				c.Request.Key, c.Request.Path = r.Key, r.Path
			}
		}
	}
	return c
}

func (g *generator) renew(t *rapid.T) *fsmpb.Renew {
	c := &fsmpb.Renew{}
	for range rapid.IntRange(0, 4).Draw(t, "renewals") {
		token, name := g.held(t)
		r := &fsmpb.Renewal{Name: name, Token: token, Principal: g.principal(t)}
		if rapid.Bool().Draw(t, "new ttl") {
			r.TtlMs = pick(t, "ttl", g.ttl(t), maxTTLMS+1)
		}
		c.Renewals = append(c.Renewals, r)
	}
	return c
}

func (g *generator) release(t *rapid.T) *fsmpb.Release {
	token, name := g.held(t)
	c := &fsmpb.Release{Name: name, Token: token}
	c.Request = g.request(t, "release/"+c.Name, c)
	c.Principal = g.principal(t)
	return c
}

func (g *generator) write(t *rapid.T) *fsmpb.Write {
	token, name := g.held(t)
	c := &fsmpb.Write{Token: token, Guard: pick(t, "guard", fsmpb.Guard_GUARD_LATEST, fsmpb.Guard_GUARD_HELD)}
	if rapid.Bool().Draw(t, "names lease") {
		c.Lease = name
	}
	keys := slices.Clone([]string{"x", "y", "x/y"})
	for range pick(t, "ops", 1, 1, 2, 3) {
		i := rapid.IntRange(0, len(keys)-1).Draw(t, "key")
		op := &fsmpb.WriteOp{Key: keys[i], Kind: fsmpb.WriteOp_Kind(rapid.IntRange(1, 4).Draw(t, "op"))}
		keys = slices.Delete(keys, i, i+1)
		if op.Kind == fsmpb.WriteOp_KIND_PUT {
			op.Value, op.ContentType = []byte(fmt.Sprint(g.index)), pick(t, "type", "", "text/plain")
		}
		if op.Kind == fsmpb.WriteOp_KIND_CHECK || oneIn(t, 3, "if version") {
			versions := append(slices.Clone(g.versions[max(0, len(g.versions)-4):]), 0)
			version := pick(t, "version", versions...)
			op.IfVersion = &version
		}
		c.Ops = append(c.Ops, op)
	}
	c.Request = g.request(t, fmt.Sprint("write/", len(c.Ops), c.Ops[0].Key), c)
	c.Principal = g.principal(t)
	return c
}

func (g *generator) node(t *rapid.T) *fsmpb.Command {
	name, id := pick(t, "node", "n1", "n2"), pick(t, "id", "r1", "r2")
	if oneIn(t, 3, "remove") {
		return &fsmpb.Command{Op: &fsmpb.Command_RemoveNode{RemoveNode: &fsmpb.RemoveNode{Name: name, Id: id}}}
	}
	return &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{
		ClusterId: pick(t, "cluster", "c1", "c1", "c1", "c2", ""), Node: &fsmpb.Node{Name: name, Id: id},
	}}}
}

// garbage is an operation with one thing wrong with its form.
func (g *generator) garbage(t *rapid.T) *fsmpb.Command {
	a, w, r, n := g.acquire(t), g.write(t), g.release(t), g.cancel(t)
	bad := pick(t, "bad name", "", "/", "a//b", "..", "a/.")
	command := &fsmpb.Command{Op: &fsmpb.Command_Acquire{Acquire: a}}
	what := rapid.IntRange(0, 20).Draw(t, "what")
	switch {
	case what == 0:
		a.Name = bad
	case what == 1:
		a.Holder = ""
	case what == 2:
		a.TtlMs = 0
	case what == 3:
		a.Metadata = []*fsmpb.Pair{{Key: "n"}, {Key: "m"}}
	case what == 4:
		r.Name = bad
	case what == 5:
		r.Token = 0
	case what == 6:
		w.Token = 0
	case what == 7:
		w.Lease = "../a"
	case what == 8:
		w.Ops = nil
	case what == 9:
		w.Ops[0].Key = bad
	case what == 10:
		w.Ops = append(w.Ops, proto.CloneOf(w.Ops[0]))
	case what == 11:
		w.Ops[0].Kind = fsmpb.WriteOp_KIND_UNSPECIFIED
	case what == 12:
		w.Ops[0].Kind, w.Ops[0].IfVersion = fsmpb.WriteOp_KIND_CHECK, nil
	case what == 13:
		a.WaitMs, a.Request = 1, nil
	case what == 14:
		a.WaitMs = maxTTLMS + 1
	case what == 15:
		a.GraceMs = KeepEndedMS + 1
	case what == 16:
		a.Slots = MaxSlots + 1
	case what == 17:
		a.Take = max(1, a.Slots) + 1
	case what == 18:
		n.Name = bad
	case what == 19:
		n.Request = pick(t, "no key", nil, &fsmpb.Request{Path: "acquire/" + n.Name})
	default:
		return &fsmpb.Command{Op: &fsmpb.Command_SetNode{SetNode: &fsmpb.SetNode{ClusterId: "c1"}}}
	}
	switch {
	case what == 4 || what == 5:
		command.Op = &fsmpb.Command_Release{Release: r}
	case what >= 6 && what <= 12:
		command.Op = &fsmpb.Command_Write{Write: w}
	case what == 18 || what == 19:
		command.Op = &fsmpb.Command_Cancel{Cancel: n}
	}
	return command
}
