package wire

// Headers of requests.
const (
	HeaderIdempotencyKey = "Idempotency-Key" // 1 to MaxIdempotencyKey visible ASCII; also on a 504
	HeaderFencingToken   = "Fencing-Token"   // token of a guarded write; on a read, of the write that put the value
	HeaderFencingGuard   = "Fencing-Guard"   // GuardLatest or GuardHeld
	HeaderFencingLease   = "Fencing-Lease"   // the token must be this lease's; the name as it is, not percent-encoded
	HeaderRoute          = "Fencepost-Route" // RouteLocal: redirect instead of forwarding
	HeaderRequestID      = "X-Request-Id"    // taken, or made, and always answered
)

// Headers of answers.
const (
	HeaderNode      = "Fencepost-Node"    // who answered
	HeaderLeader    = "Fencepost-Leader"  // URL of the leader, if known
	HeaderIndex     = "Fencepost-Index"   // index that the answer reflects
	HeaderCluster   = "Fencepost-Cluster" // id of the cluster, if known
	HeaderLag       = "Fencepost-Lag-Ms"  // of a stale read
	HeaderWatermark = "Fencing-Watermark" // of the key that was read
)

// Headers between nodes.
const (
	// HeaderForwarded names the node that forwarded the request. A request that
	// has it is not forwarded again.
	HeaderForwarded = "Fencepost-Forwarded"
	// HeaderServerMade says, beside HeaderForwarded, that the forwarding node
	// made the Idempotency-Key.
	HeaderServerMade = "Fencepost-Key-Made"
)

// Values of headers and fields.
const (
	GuardLatest = "latest" // the token must be on record
	GuardHeld   = "held"   // and its lease live
	RouteLocal  = "local"

	// MaxIdempotencyKey is the most bytes an Idempotency-Key may have.
	MaxIdempotencyKey = 128
	// MaxNumber is the greatest token, version or index.
	MaxNumber = 1<<53 - 1
)
