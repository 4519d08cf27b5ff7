package httpapi

import (
	"cmp"
	"slices"
	"strconv"

	"fencepost/fsm/fsmpb"
)

const notYet = "is not supported yet by this version"

// acquisition is the body of an acquire.
type acquisition struct {
	holder    string
	ttlMS     uint64
	metadata  []*fsmpb.Pair
	metaBytes int
}

// asked is what the request asked for, with defaults filled in. How long it was
// ready to wait is not part of it, and so may differ between repetitions.
func (a *acquisition) asked(d *digest) {
	d.text(a.holder)
	d.number(a.ttlMS)
	d.number(1) // slots
	d.number(1) // take
	d.number(0) // grace_ms
	d.number(uint64(len(a.metadata)))
	for _, p := range a.metadata {
		d.text(p.Key)
		d.text(p.Value)
	}
}

func (l *Limits) decodeAcquisition(body []byte) (a acquisition, e *invalidField) {
	a.ttlMS = l.DefaultTTLMS
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
			onlyYet(d, 0, 0, l.MaxWaitMS)
		case "grace_ms":
			onlyYet(d, 0, 0, l.MaxGraceMS)
		case "slots", "take":
			onlyYet(d, 1, 1, 1<<20)
		default:
			return false
		}
		return true
	})
	if e == nil && !hasHolder {
		e = &invalidField{"holder", "is required"}
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

// onlyYet reads a field of which only the default works as yet.
func onlyYet(d *decoder, works, least, most uint64) {
	switch n := d.whole(); {
	case n < least || n > most:
		d.fail("must be from " + strconv.FormatUint(least, 10) + " to " + strconv.FormatUint(most, 10))
	case n != works:
		d.fail(notYet)
	}
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
