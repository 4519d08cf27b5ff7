package linear

import (
	"cmp"
	"slices"

	"github.com/anishathalye/porcupine"

	"fencepost/httpapi/wire"
)

// linGroup are the leases and keys that hang together by the tokens used on them,
// with what happened to them.
type linGroup struct {
	names, keys []string
	ops         []*linOp
	taken       map[uint64]bool // versions that answered writes have
}

// groups parts the operations, and drops the groups with shared leases. A refused
// token ties nothing together: else one client that takes the wrong token, or a very
// old one, would make one group of all leases, whose orders are too many to search.
func (r *linReading) groups() (groups []*linGroup, shared int) {
	tied := make(linTies)
	for _, op := range r.ops {
		if all := op.touched(); !op.refusesToken() {
			for _, one := range all[1:] {
				tied[tied.root(one)] = tied.root(all[0])
			}
		}
	}
	isShared := make(map[string]bool)
	for name, n := range r.names {
		if n.shared {
			isShared[tied.root("l"+name)] = true
		}
	}
	byRoot := make(map[string]*linGroup)
	add := func(op *linOp) {
		at := tied.root(op.touched()[0])
		if isShared[at] {
			return
		}
		g := byRoot[at]
		if g == nil {
			g = &linGroup{taken: make(map[uint64]bool)}
			byRoot[at] = g
			groups = append(groups, g)
		}
		g.ops = append(g.ops, op)
	}
	for _, op := range r.ops {
		for _, part := range op.parted(tied) {
			add(part)
		}
	}
	for _, g := range groups {
		g.place()
	}
	slices.SortFunc(groups, func(a, b *linGroup) int {
		return cmp.Or(cmp.Compare(a.ops[0].call, b.ops[0].call), cmp.Compare(a.String(), b.String()))
	})
	return groups, len(isShared)
}

// linTies are sets of leases and keys: each leads to another of its set, and at last
// to the one that stands for all.
type linTies map[string]string

func (t linTies) root(x string) string {
	if t[x] == "" {
		t[x] = x
	}
	for t[x] != x {
		t[x] = t[t[x]]
		x = t[x]
	}
	return x
}

// refusesToken says whether all that was told is that the token may not write, and a
// watermark.
func (op *linOp) refusesToken() bool {
	if op.kind != linWrite || op.write.maybe {
		return false
	}
	w := op.write
	return w.code == wire.CodeTokenNotIssued || w.refused == wire.ReasonNotOnRecord || w.refused == wire.ReasonNewerIssued
}

// parted is the operation, or its parts where it touches several groups: what it
// says of its token, and what of the key.
func (op *linOp) parted(tied linTies) (parts []*linOp) {
	whole := true
	for _, one := range op.touched() {
		whole = whole && tied.root(one) == tied.root(op.touched()[0])
	}
	if whole {
		return []*linOp{op}
	}
	w := *op.write
	if op.name != "" {
		part, of := *op, w
		part.kind, part.write, of.ops = linTokenRefused, &of, nil
		if w.lease != "" && tied.root("l"+w.lease) != tied.root("l"+op.name) {
			of.lease = ""
			if w.refused == wire.ReasonNewerIssued {
				of.refused = wire.ReasonNotOnRecord
			}
		}
		parts = append(parts, &part)
	}
	if w.watermark != nil {
		part := *op
		part.kind, part.name, part.write = linMarkTold, "", nil
		part.read = &linKeyRead{key: w.ops[w.opIndex].key, watermark: *w.watermark}
		parts = append(parts, &part)
	}
	return parts
}

// touched are the leases and keys of an operation, of which it has at least one.
func (op *linOp) touched() (all []string) {
	if op.name != "" {
		all = append(all, "l"+op.name)
	}
	if op.read != nil {
		all = append(all, "k"+op.read.key)
	}
	if op.write != nil {
		if op.write.lease != "" {
			all = append(all, "l"+op.write.lease)
		}
		for _, c := range op.write.ops {
			all = append(all, "k"+c.key)
		}
	}
	return all
}

// place numbers the names and keys, and sorts the operations by their call, so that
// the search looks at them in that order.
func (g *linGroup) place() {
	names, keys := make(map[string]int), make(map[string]int)
	at := func(places map[string]int, list *[]string, what string) int {
		i, ok := places[what]
		if !ok {
			i = len(*list)
			places[what] = i
			*list = append(*list, what)
		}
		return i
	}
	slices.SortStableFunc(g.ops, func(a, b *linOp) int { return cmp.Or(cmp.Compare(a.call, b.call), cmp.Compare(a.ret, b.ret)) })
	for _, op := range g.ops {
		op.at = -1
		if op.name != "" {
			op.at = at(names, &g.names, op.name)
		}
		if op.read != nil {
			op.read.at = at(keys, &g.keys, op.read.key)
		}
		if w := op.write; w != nil {
			w.leaseAt = -1
			if w.lease != "" {
				w.leaseAt = at(names, &g.names, w.lease)
			}
			for i := range w.ops {
				w.ops[i].at = at(keys, &g.keys, w.ops[i].key)
			}
			if !w.maybe && w.version != 0 {
				g.taken[w.version] = true
			}
		}
	}
}

// history gives porcupine the operations. It wants a lane for each client: here one
// for each name or key.
func (g *linGroup) history() (all []porcupine.Operation) {
	for _, op := range g.ops {
		lane := op.at
		if op.read != nil {
			lane = len(g.names) + op.read.at
		} else if op.kind == linWrite {
			lane = len(g.names) + op.write.ops[0].at
		}
		all = append(all, porcupine.Operation{ClientId: lane, Input: op, Output: op, Call: op.call, Return: op.ret})
	}
	return all
}

func (g *linGroup) model() porcupine.Model {
	m := &linModel{taken: g.taken}
	nm := porcupine.NondeterministicModel{
		Init: func() []any { return []any{newLinState(len(g.names), len(g.keys))} },
		Step: func(state, input, _ any) (next []any) {
			for _, s := range m.step(state.(*linState), input.(*linOp)) {
				next = append(next, s)
			}
			return next
		},
		Equal:             func(a, b any) bool { return a.(*linState).equal(b.(*linState)) },
		Hash:              func(s any) uint64 { return s.(*linState).sum },
		DescribeOperation: func(input, _ any) string { return input.(*linOp).String() },
		DescribeState:     func(s any) string { return s.(*linState).describe(g) },
	}
	return nm.ToModel()
}
