// Package httpapi serves fencepost's HTTP API for one node.
//
// New makes an http.Handler of a Node, which package cluster provides; NewServer
// makes the http.Server to run it in. The contract is /v1/openapi.json, the JSON
// documents are those of package wire.
//
// # What it decides
//
// It checks the form of requests, so that what is malformed or too large costs
// the cluster nothing (P15), turns outcomes into answers, and sees to it that
// they are honest (P10): a refusal means that nothing was changed, 503 that
// surely nothing was accepted, and everything that is not sure is 504. What is
// granted or refused is decided by the state machine, never here.
//
// # Paths
//
// Names are taken from the bytes of the request line and never cleaned, so that
// two different names reach two different records, and every name can be said.
// In POST paths the last segment is the verb.
//
// # Where a request is answered
//
// The leader answers mutations and linearizable reads. A follower forwards them
// to it, once, or redirects if it is asked to (forward.go). Stale reads, watches,
// health and metrics are answered where they arrive.
//
// # Files
//
//	handler.go   what it needs of a node; a request from start to end
//	routes.go    which path and method is whose
//	exchange.go  one request and its answer
//	problem.go   answers that are no success
//	outcome.go   what an entry decided, as an answer
//	leases.go    acquire, renew, release; acquisition.go what an acquire asks
//	             for; leaseread.go reading them
//	keys.go      put, delete, fence; keyread.go reading them; txn.go many at once
//	watch.go     what a watch asks for, and its stream; event.go one event on it
//	members.go   the cluster's status, and joining it
//	ops.go       health and the API's description
//	forward.go   followers
//	names.go, headers.go, query.go, body.go, strict.go, strictvalue.go, limits.go
//	             reading requests
//	render.go    writing answers
//	metrics.go   what is measured; collector.go what the state tells
//	server.go    the http.Server
package httpapi
