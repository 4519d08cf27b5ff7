package cluster

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// peer is another node as this one sees it over HTTP.
func peer(t *testing.T, f Formation, joined *[]string) string {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	f.HTTPAddr = strings.TrimPrefix(server.URL, "http://")
	mux.HandleFunc("GET "+FormationPath, func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(f) })
	mux.HandleFunc("POST "+MembersPath, func(w http.ResponseWriter, r *http.Request) {
		var body struct{ ID string }
		json.NewDecoder(r.Body).Decode(&body)
		*joined = append(*joined, body.ID)
	})
	return server.URL
}

// P9 rests on this: a cluster is formed once, by one node, with everybody
// there; and a node without a cluster never invents one beside an existing one.
func TestP9_Formation(t *testing.T) {
	fresh := func(name string) Formation { return Formation{Name: name, ID: name + "-id", RaftAddr: name + ":1"} }
	member := func(name, cluster string, members ...string) Formation {
		f := fresh(name)
		f.ClusterID, f.Members = cluster, members
		return f
	}
	tests := []struct {
		name    string
		self    string
		peers   []Formation
		dead    bool // one more peer is named that does not answer
		expect  int
		cluster string // entered; "new": formed
		joins   bool
		why     string
	}{
		{name: "smallest name forms", self: "a", peers: []Formation{fresh("b"), fresh("c")}, expect: 3, cluster: "new"},
		{name: "others wait", self: "b", peers: []Formation{fresh("a"), fresh("c")}, expect: 3, why: "node a is to form"},
		{name: "not before all answer", self: "a", peers: []Formation{fresh("b"), fresh("c")}, dead: true, expect: 3, why: "no answer from"},
		{name: "not with too few", self: "a", peers: []Formation{fresh("b")}, expect: 3, why: "2 of 3"},
		{name: "not with one name twice", self: "a", peers: []Formation{fresh("b"), {Name: "b", ID: "b2-id"}}, expect: 3, why: "two nodes are named"},
		{name: "named by the one that formed it", self: "b", peers: []Formation{member("a", "X", "a-id", "b-id", "c-id"), fresh("c")}, expect: 3, cluster: "X"},
		{name: "wiped: joins, though its name is the smallest", self: "a", peers: []Formation{member("b", "X", "old-id", "b-id", "c-id"), member("c", "X", "old-id", "b-id", "c-id")}, expect: 3, cluster: "X", joins: true},
		{name: "joins though another peer is away", self: "a", peers: []Formation{member("b", "X", "b-id", "c-id")}, dead: true, expect: 3, cluster: "X", joins: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Name, cfg.RaftAddr, cfg.HTTPAddr, cfg.Expect = tt.self, tt.self+":1", tt.self+":2", tt.expect
			n := newNode(cfg)
			defer n.close()
			n.id = identity{Name: tt.self, ID: tt.self + "-id"}
			var joined []string
			n.cfg.Peers = []string{peer(t, n.Formation(), &joined)} // itself, as others see it
			for _, f := range tt.peers {
				n.cfg.Peers = append(n.cfg.Peers, peer(t, f, &joined))
			}
			if tt.dead {
				n.cfg.Peers = append(n.cfg.Peers, "http://"+freeAddrs(t, 1)[0])
			}
			id, why := n.formOnce(t.Context())
			switch {
			case tt.cluster == "new":
				if id.ClusterID == "" || len(id.Bootstrap) != tt.expect {
					t.Fatalf("formed %+v (%s)", id, why)
				}
			case id.ClusterID != tt.cluster || len(id.Bootstrap) > 0:
				t.Fatalf("entered %+v, want cluster %q (%s)", id, tt.cluster, why)
			}
			if !strings.Contains(why, tt.why) {
				t.Fatalf("waits for %q, want %q", why, tt.why)
			}
			if tt.joins != (len(joined) == 1 && joined[0] == n.id.ID) {
				t.Fatalf("asked to join: %v", joined)
			}
		})
	}
}
