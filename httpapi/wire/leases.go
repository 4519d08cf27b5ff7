package wire

// AcquireRequest is the body of POST /v1/leases/{name}/acquire.
type AcquireRequest struct {
	Holder   string            `json:"holder"`             // a label for people
	TTLMS    uint64            `json:"ttl_ms,omitempty"`   // default 10000
	WaitMS   uint64            `json:"wait_ms,omitempty"`  // default 0: refused rather than queued
	Metadata map[string]string `json:"metadata,omitempty"` // default {}
	Slots    uint64            `json:"slots,omitempty"`    // of the lease; default 1
	Take     uint64            `json:"take,omitempty"`     // of them by this holder; default 1
	GraceMS  uint64            `json:"grace_ms,omitempty"` // after an expiry nobody is granted the name for so long; default 0
}

// Acquired is the answer to an acquire that was granted. The lease is held for
// at least ExpiresInMS counted from the instant the request was sent plus
// WaitedMS (P7).
type Acquired struct {
	Name        string `json:"name"`
	Holder      string `json:"holder"`
	Token       uint64 `json:"token"`
	TTLMS       uint64 `json:"ttl_ms"`
	ExpiresInMS uint64 `json:"expires_in_ms"`
	WaitedMS    uint64 `json:"waited_ms"`
	// PreviousToken was issued for the name before; 0: none on record. Only if
	// it is one's own last token was nobody there in between.
	PreviousToken uint64            `json:"previous_token"`
	OldestToken   uint64            `json:"oldest_token"` // of the holders; refuse below it under slots > 1
	Slots         uint64            `json:"slots"`
	Take          uint64            `json:"take"`
	Metadata      map[string]string `json:"metadata"`
}

// RenewRequest is the body of POST /v1/leases/{name}/renew.
type RenewRequest struct {
	Token uint64 `json:"token"`
	TTLMS uint64 `json:"ttl_ms,omitempty"` // default: as before
}

// Renewed is the answer to a renewal. The lease is held for at least
// ExpiresInMS counted from the instant the request was sent (P7).
type Renewed struct {
	Name        string `json:"name"`
	Token       uint64 `json:"token"`
	TTLMS       uint64 `json:"ttl_ms"`
	ExpiresInMS uint64 `json:"expires_in_ms"`
}

// Cancelled is the answer to a cancel; false: the request had nothing any more.
type Cancelled struct {
	Cancelled bool `json:"cancelled"`
}

// ReleaseRequest is the body of POST /v1/leases/{name}/release.
type ReleaseRequest struct {
	Token uint64 `json:"token"`
}

// Released is the answer to a release; false: the token held nothing any more.
type Released struct {
	Released bool `json:"released"`
}

// Lease is a lease on record. Holder, Token and the fields up to Metadata are
// those of the holder that ends first, and zero if nobody holds it.
type Lease struct {
	Name        string            `json:"name"`
	Held        bool              `json:"held"`
	Holder      string            `json:"holder"`
	Token       uint64            `json:"token"`
	TTLMS       uint64            `json:"ttl_ms"`
	ExpiresInMS uint64            `json:"expires_in_ms"` // 0 may still be held
	Renewals    uint64            `json:"renewals"`
	Metadata    map[string]string `json:"metadata"`
	LastToken   uint64            `json:"last_token"`
	QueueLength uint64            `json:"queue_length"`
	GraceMS     uint64            `json:"grace_ms"`
	Slots       uint64            `json:"slots"`
	Free        uint64            `json:"free"`
	Holders     []Holder          `json:"holders"`
}

// Holder is one holder of a lease.
type Holder struct {
	Holder      string            `json:"holder"`
	Token       uint64            `json:"token"`
	Take        uint64            `json:"take"`
	TTLMS       uint64            `json:"ttl_ms"`
	ExpiresInMS uint64            `json:"expires_in_ms"`
	Renewals    uint64            `json:"renewals"`
	Metadata    map[string]string `json:"metadata"`
}

// Leases is a page of leases in name order. Next is the "after" of the next
// page; "": this is the last.
type Leases struct {
	Leases []Lease `json:"leases"`
	Next   string  `json:"next"`
}

// RenewManyRequest is the body of POST /v1/renew.
type RenewManyRequest struct {
	Leases []Renewal `json:"leases"`
}

// Renewal asks for one lease of many.
type Renewal struct {
	Name  string `json:"name"`
	Token uint64 `json:"token"`
	TTLMS uint64 `json:"ttl_ms,omitempty"` // default: as before
}

// RenewedMany answers each renewal by itself, in the order asked.
type RenewedMany struct {
	Results []RenewResult `json:"results"`
}

// RenewResult is a renewal if Code is "", else a refusal.
type RenewResult struct {
	Name        string `json:"name"`
	Token       uint64 `json:"token"`
	ExpiresInMS uint64 `json:"expires_in_ms,omitempty"`
	Code        Code   `json:"code,omitempty"`
	Reason      string `json:"reason,omitempty"`
}
