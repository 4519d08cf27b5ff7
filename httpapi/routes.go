package httpapi

import (
	"net/http"
	"strings"

	"github.com/gorilla/mux"

	"fencepost/httpapi/wire"
)

// Parameters that calls know, with spaces around each.
const (
	noQuery        = ""
	readQuery      = " consistency "
	listQuery      = " consistency prefix after limit "
	keysQuery      = " consistency prefix after limit values "
	watchQueries   = " prefix kind from renewals "
	restoreQueries = " force above "
	forceQuery     = " force "
)

// place is what the router finds for a path: whose it is, by method.
type place struct {
	prefix string // of a path that goes on with a name
	routes map[string]*route
	verbs  map[string]*route // a POST is told apart by its last segment
	field  string            // what the name is called in problems
	allow  string
}

// ServeHTTP makes a place something that the router can find; it is not called.
func (p *place) ServeHTTP(http.ResponseWriter, *http.Request) {}

// newRouter registers every path. The router only finds a place: it matches the
// path as it came, and it neither cleans nor redirects.
func newRouter(m *metrics) *mux.Router {
	r := mux.NewRouter().UseEncodedPath().SkipClean(true)
	at := func(path string, routes map[string]*route) {
		r.Path(path).Handler(&place{routes: routes, allow: allowed(routes, false)})
	}
	get := func(template, query string, run func(*exchange)) map[string]*route {
		return map[string]*route{http.MethodGet: m.route(template, query, run)}
	}
	post := func(template string, run func(*exchange)) map[string]*route {
		return map[string]*route{http.MethodPost: m.route(template, noQuery, run)}
	}

	leases := &place{
		prefix: "/v1/leases/", field: "name",
		routes: get("/v1/leases/{name}", readQuery, (*exchange).getLease),
		verbs: map[string]*route{
			"acquire": m.route("/v1/leases/{name}/acquire", noQuery, (*exchange).acquire),
			"renew":   m.route("/v1/leases/{name}/renew", noQuery, (*exchange).renew),
			"cancel":  m.route("/v1/leases/{name}/cancel", noQuery, (*exchange).cancel),
			"release": m.route("/v1/leases/{name}/release", noQuery, (*exchange).release),
		},
	}
	leases.allow = allowed(leases.routes, true)
	keys := &place{
		prefix: "/v1/kv/", field: "key",
		routes: map[string]*route{
			http.MethodGet:    m.route("/v1/kv/{key}", readQuery, (*exchange).getKey),
			http.MethodPut:    m.route("/v1/kv/{key}", noQuery, (*exchange).put),
			http.MethodDelete: m.route("/v1/kv/{key}", noQuery, (*exchange).remove),
		},
		verbs: map[string]*route{"fence": m.route("/v1/kv/{key}/fence", noQuery, (*exchange).raise)},
	}
	keys.allow = allowed(keys.routes, true)

	r.PathPrefix(leases.prefix).Handler(leases)
	r.PathPrefix(keys.prefix).Handler(keys)
	members := &place{prefix: "/v1/cluster/members/", field: "name", routes: map[string]*route{
		http.MethodDelete: m.route("/v1/cluster/members/{name}", forceQuery, (*exchange).removeMember),
	}}
	members.allow = allowed(members.routes, false)
	r.PathPrefix(members.prefix).Handler(members)
	at("/v1/cluster/transfer", post("/v1/cluster/transfer", (*exchange).transfer))
	at("/v1/renew", post("/v1/renew", (*exchange).renewMany))
	at("/v1/txn", post("/v1/txn", (*exchange).txn))
	at("/v1/leases", get("/v1/leases", listQuery, (*exchange).listLeases))
	at("/v1/kv", get("/v1/kv", keysQuery, (*exchange).listKeys))
	at("/v1/watch", get("/v1/watch", watchQueries, (*exchange).watch))
	at("/v1/cluster", get("/v1/cluster", readQuery, (*exchange).cluster))
	at("/v1/cluster/members", post("/v1/cluster/members", (*exchange).join))
	at("/v1/snapshot", get("/v1/snapshot", readQuery, (*exchange).backup))
	at("/v1/snapshot/restore", map[string]*route{http.MethodPost: m.route("/v1/snapshot/restore", restoreQueries, (*exchange).restore)})
	at("/v1/cluster/formation", get("/v1/cluster/formation", noQuery, (*exchange).formation))
	at("/livez", get("/livez", noQuery, (*exchange).live))
	at("/readyz", get("/readyz", noQuery, (*exchange).ready))
	at("/metrics", get("/metrics", noQuery, (*exchange).scrape))
	at("/v1/openapi.json", get("/v1/openapi.json", noQuery, (*exchange).openAPI))
	return r
}

// allowed is the Allow header of a place.
func allowed(routes map[string]*route, post bool) string {
	var all []string
	for _, method := range [...]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		if routes[method] != nil || post && method == http.MethodPost {
			all = append(all, method)
		}
		if method == http.MethodGet && routes[method] != nil {
			all = append(all, http.MethodHead)
		}
	}
	return strings.Join(all, ", ")
}

// find sets the route and name of the request, or answers 404, 405 or 400.
func (h *Handler) find(x *exchange) bool {
	var match mux.RouteMatch
	if !h.router.Match(x.r, &match) {
		return x.refuse(wire.CodeNotFound, "no such path")
	}
	p, ok := match.Handler.(*place)
	if !ok {
		return x.refuse(wire.CodeNotFound, "no such path")
	}
	method := x.r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if p.prefix == "" {
		if x.route, ok = p.routes[method]; !ok {
			return x.wrongMethod(p)
		}
		return true
	}
	raw, ok := strings.CutPrefix(x.path, p.prefix)
	if !ok { // the router saw through an escape that is not ours to undo
		return x.refuse(wire.CodeNotFound, "no such path")
	}
	if method == http.MethodPost {
		name, verb := splitVerb(raw)
		found, ok := p.verbs[verb]
		if !ok {
			return x.refuse(wire.CodeNotFound, "no such call: the last segment of a POST is the verb")
		}
		x.route = found
		return x.readName(p.field, name)
	}
	found, ok := p.routes[method]
	if !ok {
		return x.wrongMethod(p)
	}
	x.route = found
	return x.readName(p.field, raw)
}

func (x *exchange) wrongMethod(p *place) bool {
	x.route = x.h.metrics.unrouted
	x.w.Header()["Allow"] = []string{p.allow}
	return x.refuse(wire.CodeMethod, "allowed here: "+p.allow)
}
