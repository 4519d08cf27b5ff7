package httpapi

import (
	"encoding/json"
	"net"
	"strconv"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
	"fencepost/httpapi/wire"
)

// maxIDBytes bounds the id and version of a node that joins.
const maxIDBytes = 256

// cluster answers GET /v1/cluster. A node that knows no leader tells what it
// knows itself: it is then that an operator asks.
func (x *exchange) cluster() {
	local := x.query.stale || x.status.LeaderURL == "" && !x.forwarded()
	if !local && x.elsewhere(false) {
		return
	}
	members, err := x.h.node.Members(x.r.Context())
	if err != nil {
		x.failed(err, false)
		return
	}
	c := wire.Cluster{ClusterID: x.status.ClusterID, Term: x.status.Term, Removed: x.status.Removed, Nodes: make([]wire.Node, 0, len(members))}
	info, err := x.h.node.Read(x.r.Context(), true, func(s *fsm.State) { c.ClockMS, c.Floor = s.ClockMS(), s.Floor() })
	if err != nil && !x.status.Removed { // then there is nothing to tell but that
		x.failed(err, false)
		return
	}
	x.noteRead(info)
	c.Index = info.Index
	for _, m := range members {
		role := wire.RoleNonvoter
		if m.Voter {
			role = wire.RoleVoter
		}
		if m.Leader {
			c.Leader = m.Name
		}
		c.Nodes = append(c.Nodes, wire.Node{
			Name: m.Name, ID: m.ID, RaftAddr: m.RaftAddr, HTTPAddr: m.HTTPAddr, Role: role, Leader: m.Leader,
			Healthy: m.Healthy, AppliedIndex: m.AppliedIndex, LastContactMS: milliseconds(m.LastContact), Version: m.Version,
		})
	}
	x.document(c)
}

// document writes a JSON document that is not on the hot path.
func (x *exchange) document(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		x.failed(err, false)
		return
	}
	x.ok(append(b, '\n'))
}

// join answers POST /v1/cluster/members. It may be repeated freely, so it needs
// no memory of its Idempotency-Key.
func (x *exchange) join() {
	if !x.readUnusedKey() || !x.readJSON() {
		return
	}
	n, of, e := x.h.limits.decodeJoin(x.body)
	if !x.wrong(e) || x.elsewhere(true) {
		return
	}
	if of.clusterID != "" && of.clusterID != x.status.ClusterID {
		x.refuse(wire.CodeWrongCluster, "this is cluster "+x.status.ClusterID)
		return
	}
	join := x.h.node.Join
	if of.member {
		join = x.h.node.Correct
	}
	if err := join(x.r.Context(), n); err != nil {
		x.failed(err, true)
		return
	}
	x.setIndex(x.h.node.Status().Index)
	x.document(wire.Joined{Joined: true})
}

// membership is what a node that joins says of its past.
type membership struct {
	clusterID string // "": of none
	member    bool   // it has been one before
}

func (l *Limits) decodeJoin(body []byte) (*fsmpb.Node, membership, *invalidField) {
	n, of := &fsmpb.Node{Voter: true}, membership{}
	e := decodeObject(body, func(d *decoder, name string) bool {
		switch name {
		case "name":
			n.Name = d.text()
			if e := l.checkName("name", n.Name); e != nil {
				d.fail(e.detail)
			}
		case "id":
			n.Id = shortText(d)
		case "raft_addr":
			n.RaftAddr = address(d)
		case "http_addr":
			n.HttpAddr = address(d)
		case "voter":
			n.Voter = d.boolean()
		case "cluster_id":
			of.clusterID = shortText(d)
		case "member":
			of.member = d.boolean()
		case "version":
			n.Version = shortText(d)
		case "understands":
			v := d.whole()
			if v > 1<<32-1 {
				d.fail("must be below 2^32")
			}
			n.Understands = uint32(v)
		default:
			return false
		}
		return true
	})
	if e != nil {
		return n, of, e
	}
	for _, f := range [...]struct{ name, value string }{
		{"name", n.Name}, {"id", n.Id}, {"raft_addr", n.RaftAddr}, {"http_addr", n.HttpAddr},
	} {
		if f.value == "" {
			return n, of, &invalidField{f.name, "is required"}
		}
	}
	return n, of, nil
}

func shortText(d *decoder) string {
	s := d.text()
	if len(s) > maxIDBytes {
		d.fail("must not be longer than " + strconv.Itoa(maxIDBytes) + " bytes")
	}
	return s
}

func address(d *decoder) string {
	s := shortText(d)
	if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "" {
		d.fail("must be host:port")
	}
	return s
}

// formation answers GET /v1/cluster/formation, for nodes that look for their
// cluster.
func (x *exchange) formation() { x.document(x.h.node.Formation()) }
