package linear

import (
	"fmt"
	"strings"

	"fencepost/httpapi/wire"
)

// linKind is what an operation does or claims.
type linKind int

const (
	linAcquire      linKind = iota // the token was granted, and nobody held the name before
	linGrantSeen                   // the same, of an acquire without an answer: others saw the token
	linExpire                      // the token holds no longer, for a reason that no answer tells
	linIsHeld                      // the token holds
	linIsLost                      // the token does not hold
	linIsTaken                     // an acquire was refused, since the token holds
	linRelease                     // the token held, and does no longer
	linEndMaybe                    // a release or cancel without an answer
	linCancel                      // the grant was cancelled
	linSeeLease                    // a read of the lease
	linWrite                       // a put, delete, fence or transaction
	linSeeKey                      // a read of the key
	linTokenRefused                // a refused write, as far as it speaks of the token
	linMarkTold                    // and as far as it tells a watermark
)

// linOp is one operation: what was asked and what was answered, at an instant from
// call to ret. It is not changed while an order is searched.
type linOp struct {
	kind      linKind
	call, ret int64 // nanoseconds of the history's clock; ret 0 while it is read: without end
	from      []int // IDs of its exchanges

	name  string // of the lease; "" of a key, or of a token that was never told of
	at    int    // the lease's place in the group's state; -1: name is ""
	token uint64

	last   *uint64 // newest token of the name that was told; of linAcquire the one before
	reason string  // of linIsLost
	due    bool    // no time was left, which is said until an entry ends the lease
	ok     bool    // linSeeLease: it was held; linIsTaken without a token: there can be such a refusal
	absent bool    // linSeeLease, linSeeKey: there is none
	was    bool    // linIsLost, linCancel: the token had been granted before
	again  bool    // linCancel: perhaps not the first to cancel it
	limit  int     // acquires without an answer that may have been granted by then

	write *linWriting
	read  *linKeyRead
}

// linWriting is a write and what was answered. A nil pointer or an empty code was
// not told.
type linWriting struct {
	maybe bool  // it may have been applied or not
	id    int32 // names what it wrote while its version is not known

	lease   string // that the token must belong to
	leaseAt int
	held    bool // guard held
	ops     []linChange

	version uint64 // that what it put has; 0: not told

	code      wire.Code // of a refusal
	refused   string    // its reason
	opIndex   int
	watermark *uint64
	mismatch  *uint64 // the version that was found
}

// linChange is one operation of a write.
type linChange struct {
	op, key   string
	at        int
	value     uint64 // hash
	ifVersion *uint64

	told      bool // what follows was
	deleted   *bool
	version   *uint64
	watermark *uint64
}

// linKeyRead is a read of a key.
type linKeyRead struct {
	key       string
	at        int
	version   uint64
	token     uint64
	value     *uint64
	watermark uint64
}

func (op *linOp) String() string {
	lease := fmt.Sprintf("%s, token %d", op.name, op.token)
	switch op.kind {
	case linAcquire:
		return "granted: " + lease
	case linGrantSeen:
		return "granted unanswered: " + lease
	case linExpire:
		return "over: " + lease
	case linIsHeld:
		return "holds: " + lease
	case linIsLost:
		return "does not hold: " + lease + " " + op.reason
	case linIsTaken:
		return "refused as held: " + lease
	case linRelease:
		return "released: " + lease
	case linEndMaybe:
		return "released perhaps: " + lease
	case linCancel:
		return fmt.Sprintf("cancel %v: %s", op.ok, lease)
	case linSeeLease:
		if op.absent {
			return "read: no lease " + op.name
		}
		return fmt.Sprintf("read: %s held %v, last %d", lease, op.ok, value(op.last))
	case linMarkTold:
		return fmt.Sprintf("told: %s watermark %d", op.read.key, op.read.watermark)
	case linSeeKey:
		if op.absent {
			return fmt.Sprintf("read: no value of %s, watermark %d", op.read.key, op.read.watermark)
		}
		return fmt.Sprintf("read: %s version %d by %d, watermark %d", op.read.key, op.read.version, op.read.token, op.read.watermark)
	}
	return op.writeString()
}

func (op *linOp) writeString() string {
	w := op.write
	var parts []string
	for _, c := range w.ops {
		part := c.op + " " + c.key
		if c.ifVersion != nil {
			part += fmt.Sprintf(" if %d", *c.ifVersion)
		}
		parts = append(parts, part)
	}
	outcome := fmt.Sprintf("version %d", w.version)
	switch {
	case w.maybe:
		outcome = "unknown"
	case w.code != "":
		outcome = strings.TrimSpace(string(w.code) + " " + w.refused)
	}
	return fmt.Sprintf("%s with %d: %s", strings.Join(parts, ", "), op.token, outcome)
}

func value(p *uint64) uint64 {
	if p == nil {
		return 0
	}
	return *p
}
