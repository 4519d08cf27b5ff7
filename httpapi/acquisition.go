package httpapi

import (
	"cmp"
	"slices"
	"strconv"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

// acquisition is the body of an acquire.
type acquisition struct {
	holder    string
	ttlMS     uint64
	waitMS    uint64
	slots     uint64
	take      uint64
	graceMS   uint64
	metadata  []*fsmpb.Pair
	metaBytes int
}

// asked is what the request asked for, with defaults filled in. How long it was
// ready to wait is not part of it, and so may differ between repetitions.
func (a *acquisition) asked(d *digest) {
	d.text(a.holder)
	d.number(a.ttlMS)
	d.number(a.slots)
	d.number(a.take)
	d.number(a.graceMS)
	d.number(uint64(len(a.metadata)))
	for _, p := range a.metadata {
		d.text(p.Key)
		d.text(p.Value)
	}
}

func (l *Limits) decodeAcquisition(body []byte) (a acquisition, e *invalidField) {
	a.ttlMS, a.slots, a.take = l.DefaultTTLMS, 1, 1
	hasHolder := false
	e = decodeObject(body, func(d *decoder, name string) bool {
		switch name {
		case "holder":
			hasHolder = true
			a.holder = l.holder(d)
		case "ttl_ms":
			a.ttlMS = l.ttl(d)
		case "metadata":
			a.metadata, a.metaBytes = metadata(d)
		case "wait_ms":
			a.waitMS = between(d, 0, l.MaxWaitMS)
		case "grace_ms":
			a.graceMS = between(d, 0, l.MaxGraceMS)
		case "slots":
			a.slots = between(d, 1, fsm.MaxSlots)
		case "take":
			a.take = between(d, 1, fsm.MaxSlots)
		default:
			return false
		}
		return true
	})
	if e == nil && !hasHolder {
		e = &invalidField{"holder", "is required"}
	}
	if e == nil && a.take > a.slots {
		e = &invalidField{"take", "must not be more than the lease's slots, which are " + strconv.FormatUint(a.slots, 10)}
	}
	return a, e
}

func (l *Limits) holder(d *decoder) string {
	s := d.text()
	if s == "" || len(s) > l.HolderBytes {
		d.fail("must have 1 to " + strconv.Itoa(l.HolderBytes) + " bytes")
	}
	return s
}

func (l *Limits) ttl(d *decoder) uint64 {
	n := d.whole()
	if n < l.MinTTLMS || n > l.MaxTTLMS {
		d.fail("must be from " + strconv.FormatUint(l.MinTTLMS, 10) + " to " + strconv.FormatUint(l.MaxTTLMS, 10) + " milliseconds")
	}
	return n
}

func between(d *decoder, least, most uint64) uint64 {
	n := d.whole()
	if n < least || n > most {
		d.fail("must be from " + strconv.FormatUint(least, 10) + " to " + strconv.FormatUint(most, 10))
	}
	return n
}

// metadata reads an object of strings, and sorts it as the log wants it.
func metadata(d *decoder) (pairs []*fsmpb.Pair, size int) {
	d.object(func(d *decoder, name string) bool {
		p := &fsmpb.Pair{Key: name, Value: d.text()}
		size += len(p.Key) + len(p.Value)
		pairs = append(pairs, p)
		return true
	})
	slices.SortFunc(pairs, func(a, b *fsmpb.Pair) int { return cmp.Compare(a.Key, b.Key) })
	return pairs, size
}

// token reads a token where a document has one.
func token(d *decoder) uint64 {
	n := d.whole()
	if n == 0 {
		d.fail("must be a token, which is at least 1")
	}
	return n
}
