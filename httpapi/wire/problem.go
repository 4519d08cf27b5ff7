package wire

// ContentTypeProblem is the media type of a Problem.
const ContentTypeProblem = "application/problem+json"

// Problem is the document of every answer that is not a success. Code is the
// contract; Title and Detail are for people. The pointers are nil where the code
// has no use for the field, since zero means something in them.
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Code   Code   `json:"code"`
	Field  string `json:"field,omitempty"`  // invalid_request, too_large: what was wrong
	Reason string `json:"reason,omitempty"` // lease_lost, stale_token: why

	Holder      *string `json:"holder,omitempty"`        // lease_held
	Token       uint64  `json:"token,omitempty"`         // lease_held: the holder's; else the request's
	LastToken   *uint64 `json:"last_token,omitempty"`    // lease_lost: newest of the name; 0: none on record
	ExpiresInMS *uint64 `json:"expires_in_ms,omitempty"` // lease_held
	QueueLength *uint64 `json:"queue_length,omitempty"`  // lease_held
	WaitedMS    *uint64 `json:"waited_ms,omitempty"`     // lease_held
	GraceMS     *uint64 `json:"grace_ms,omitempty"`      // lease_held, in place of a holder: left of a grace
	Slots       uint64  `json:"slots,omitempty"`         // slots_differ: of the live lease

	Watermark  *uint64 `json:"watermark,omitempty"`   // stale_token, token_not_issued; not_found if one is kept
	Version    *uint64 `json:"version,omitempty"`     // version_mismatch; 0: no such key
	OpIndex    *int    `json:"op_index,omitempty"`    // of a transaction: which operation was refused
	Oldest     uint64  `json:"oldest,omitempty"`      // compacted: the first index that can be watched from
	LimitBytes uint64  `json:"limit_bytes,omitempty"` // too_large
}
