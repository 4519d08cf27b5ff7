package httpapi

import "fencepost/fsm"

// Limits bound what a request may ask for. All are checked before the node sees
// the request, so that one that exceeds them costs no entry (P15).
type Limits struct {
	NameBytes     int // of a lease or key
	HolderBytes   int
	MetadataBytes int // names and values together
	ValueBytes    int
	RequestBytes  int // of a body that is not a bare value
	MinTTLMS      uint64
	MaxTTLMS      uint64
	DefaultTTLMS  uint64
	MaxWaitMS     uint64
	MaxGraceMS    uint64
	TxnOps        int
	BatchRenewals int // of POST /v1/renew
	PageItems     int // of a list
	DefaultItems  int // of a list that does not say
	PageBytes     int // of the values in a page, which ends early
}

// maxContentType is the most bytes of a stored Content-Type.
const maxContentType = 256

// DefaultLimits are those of the API's contract.
func DefaultLimits() Limits {
	return Limits{
		NameBytes: 512, HolderBytes: 256, MetadataBytes: 4 << 10, ValueBytes: 512 << 10, RequestBytes: 1 << 20,
		MinTTLMS: 100, MaxTTLMS: 24 * 60 * 60 * 1000, DefaultTTLMS: 10_000,
		MaxWaitMS: 300_000, MaxGraceMS: 60_000,
		TxnOps: 128, BatchRenewals: 1000, PageItems: 1000, DefaultItems: 100, PageBytes: 8 << 20,
	}
}

// checkName says what is wrong with the name of a lease or key, under the field
// that has it.
func (l *Limits) checkName(field, name string) *invalidField {
	if err := fsm.CheckName(name, l.NameBytes); err != nil {
		return &invalidField{field, err.Error()}
	}
	return nil
}
