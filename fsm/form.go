package fsm

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"fencepost/fsm/fsmpb"
)

// Ceilings that hold whatever a node's flags allow: the core is safe by itself
// (P15). The edge has lower limits and kinder words.
const (
	maxNameBytes = 1 << 16
	maxTTLMS     = 1 << 40
	maxGraceMS   = KeepEndedMS // no longer than the record of the name that has it
	maxOps       = 1 << 16
	// MaxSlots bounds what a change of one holder costs, which grows with the
	// number of those beside it.
	MaxSlots = 1000
	// maxClockMS keeps deadlines far from the end of their range; no cluster
	// reaches it, and a reading above it is ignored.
	maxClockMS = 1 << 53
	// MaxToken is the greatest index and token: every JSON reader has it exactly.
	MaxToken = 1<<53 - 1
)

// CheckName says what is wrong with the name of a lease or key, if anything: it
// must be 1 to limit bytes of UTF-8 without control characters, and none of
// its "/"-separated segments may be empty, "." or "..".
func CheckName(name string, limit int) error {
	if name == "" {
		return errors.New("must not be empty")
	}
	if len(name) > limit {
		return fmt.Errorf("must not be longer than %d bytes", limit)
	}
	if !utf8.ValidString(name) {
		return errors.New("must be UTF-8")
	}
	for _, r := range name {
		if r < 0x20 || r >= 0x7f && r <= 0x9f {
			return errors.New("must not contain control characters")
		}
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return errors.New(`must not have an empty, "." or ".." segment`)
		}
	}
	return nil
}

func nameOK(name string) bool { return CheckName(name, maxNameBytes) == nil }

// badAcquire names the field that is wrong; "" if none is.
func badAcquire(c *fsmpb.Acquire) string {
	switch {
	case !nameOK(c.Name):
		return "name"
	case c.Holder == "" || len(c.Holder) > maxNameBytes || !utf8.ValidString(c.Holder):
		return "holder"
	case c.TtlMs == 0 || c.TtlMs > maxTTLMS:
		return "ttl_ms"
	case c.WaitMs > maxTTLMS:
		return "wait_ms"
	case c.GraceMs > maxGraceMS:
		return "grace_ms"
	case c.Slots > MaxSlots:
		return "slots"
	case takeOf(c) > slotsOf(c):
		return "take"
	case c.WaitMs > 0 && !remembered(c.Request):
		return "request" // its place is found by it
	}
	for i, p := range c.Metadata {
		if i > 0 && c.Metadata[i-1].GetKey() >= p.GetKey() {
			return "metadata"
		}
	}
	return ""
}

func badWrite(c *fsmpb.Write) string {
	switch {
	case c.Token == 0:
		return "token"
	case c.Guard != fsmpb.Guard_GUARD_LATEST && c.Guard != fsmpb.Guard_GUARD_HELD:
		return "guard"
	case c.Lease != "" && !nameOK(c.Lease):
		return "lease"
	case len(c.Ops) == 0 || len(c.Ops) > maxOps:
		return "ops"
	}
	seen := make(map[string]bool, len(c.Ops)) // only looked up, never walked
	for _, op := range c.Ops {
		if !nameOK(op.GetKey()) || seen[op.GetKey()] {
			return "key"
		}
		if len(c.Ops) > 1 {
			seen[op.GetKey()] = true
		}
		switch op.GetKind() {
		case fsmpb.WriteOp_KIND_PUT, fsmpb.WriteOp_KIND_DELETE, fsmpb.WriteOp_KIND_FENCE:
		case fsmpb.WriteOp_KIND_CHECK:
			if op.IfVersion == nil {
				return "if_version"
			}
		default:
			return "op"
		}
	}
	return ""
}

func invalid(field string) *fsmpb.Outcome {
	return &fsmpb.Outcome{Code: fsmpb.Code_CODE_INVALID_REQUEST, Field: field}
}
