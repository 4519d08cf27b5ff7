package wire

// Put is the answer to PUT /v1/kv/{key}.
type Put struct {
	Key       string `json:"key"`
	Version   uint64 `json:"version"` // index of the write
	Watermark uint64 `json:"watermark"`
}

// Deleted is the answer to DELETE /v1/kv/{key}; the watermark stays.
type Deleted struct {
	Key       string `json:"key"`
	Deleted   bool   `json:"deleted"` // false: there was no value
	Watermark uint64 `json:"watermark"`
}

// Fenced is the answer to POST /v1/kv/{key}/fence.
type Fenced struct {
	Key       string `json:"key"`
	Watermark uint64 `json:"watermark"`
}

// Key is a guarded key that has a value. ValueBase64 is left out of lists that
// did not ask for values.
type Key struct {
	Key         string  `json:"key"`
	ValueBase64 *string `json:"value_base64,omitempty"`
	Version     uint64  `json:"version"`
	Token       uint64  `json:"token"` // of the write that put the value
	Watermark   uint64  `json:"watermark"`
	ContentType string  `json:"content_type"` // "": none was given
}

// Keys is a page of keys in key order. Next is the "after" of the next page; "":
// this is the last. A page may be shorter than its limit.
type Keys struct {
	Keys []Key  `json:"keys"`
	Next string `json:"next"`
}

// Operations of a transaction.
const (
	OpPut    = "put"
	OpDelete = "delete"
	OpFence  = "fence" // raises the watermark, leaves the value
	OpCheck  = "check" // the version must match
)

// TxnRequest is the body of POST /v1/txn: all or nothing.
type TxnRequest struct {
	Token uint64  `json:"token"`
	Lease string  `json:"lease,omitempty"` // if given, the token must be this lease's
	Guard string  `json:"guard,omitempty"` // default GuardLatest
	Ops   []TxnOp `json:"ops"`
}

// TxnOp is one operation; no key may occur twice.
type TxnOp struct {
	Op          string  `json:"op"`
	Key         string  `json:"key"`
	ValueBase64 *string `json:"value_base64,omitempty"` // of OpPut, which needs it
	ContentType string  `json:"content_type,omitempty"` // of OpPut
	IfVersion   *uint64 `json:"if_version,omitempty"`   // 0: no value; OpCheck needs it
}

// Txn is the answer to a transaction that was applied.
type Txn struct {
	Version uint64      `json:"version"` // of all that was put
	Results []TxnResult `json:"results"`
}

// TxnResult is what one operation did.
type TxnResult struct {
	Op        string `json:"op"`
	Key       string `json:"key"`
	Version   uint64 `json:"version"` // of the value afterwards; 0: none
	Deleted   bool   `json:"deleted"`
	Watermark uint64 `json:"watermark"`
}
