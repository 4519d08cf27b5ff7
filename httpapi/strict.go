package httpapi

import (
	"strconv"
	"strings"
)

// invalidField is what is wrong with a request: a 400 that names the field.
type invalidField struct {
	field, detail string
}

func (e *invalidField) Error() string { return e.field + ": " + e.detail }

// decoder reads one JSON document strictly: names match case and all, none is
// unknown or repeated, numbers are whole and written as whole numbers, nothing
// is null, and nothing follows the document. encoding/json is forgiving in every
// one of these points, and each has cost somebody a wrong TTL.
//
// The first error sticks, and every later call does nothing, so that callers
// look at err once.
type decoder struct {
	data []byte
	at   int
	path []step
	err  *invalidField
}

// step is a place in the document: a member of an object, or of an array.
type step struct {
	name  string
	index int // -1: a member of an object
}

// decodeObject reads a document that is one object. member is called for each
// name and reads its value; false says that there is no such field.
func decodeObject(data []byte, member func(d *decoder, name string) bool) *invalidField {
	d := &decoder{data: data}
	d.object(member)
	d.space()
	if d.err == nil && d.at != len(d.data) {
		d.fail("has bytes after the JSON document")
	}
	return d.err
}

// fail notes what is wrong at the current place.
func (d *decoder) fail(detail string) {
	if d.err == nil {
		d.err = &invalidField{field: d.where(), detail: detail}
	}
}

// failAt notes what is wrong with a member of the current object.
func (d *decoder) failAt(name, detail string) {
	d.path = append(d.path, step{name, -1})
	d.fail(detail)
	d.path = d.path[:len(d.path)-1]
}

func (d *decoder) where() string {
	if len(d.path) == 0 {
		return "body"
	}
	var b strings.Builder
	for _, s := range d.path {
		if s.index >= 0 {
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(s.name)
	}
	return b.String()
}

func (d *decoder) space() {
	for d.at < len(d.data) {
		switch d.data[d.at] {
		case ' ', '\t', '\n', '\r':
			d.at++
		default:
			return
		}
	}
}

// next is the first byte of the next token; 0 at the end.
func (d *decoder) next() byte {
	d.space()
	if d.at < len(d.data) {
		return d.data[d.at]
	}
	return 0
}

// take consumes the byte if it comes next.
func (d *decoder) take(c byte) bool {
	if d.next() != c || d.at >= len(d.data) {
		return false
	}
	d.at++
	return true
}

// fewNames is how many members are compared one by one before a map is made.
const fewNames = 16

// object reads an object, and calls member with the path at each one.
func (d *decoder) object(member func(d *decoder, name string) bool) {
	if d.err != nil {
		return
	}
	if !d.take('{') {
		d.fail("must be a JSON object" + d.butIs())
		return
	}
	if d.take('}') {
		return
	}
	var buf [fewNames]string
	few := buf[:0]
	var many map[string]bool
	for {
		name := d.rawString("a name in double quotes")
		if name == "" && len(d.path) == 0 {
			d.fail("has a field without a name")
		}
		if d.err != nil {
			return
		}
		d.path = append(d.path, step{name, -1})
		repeated := many[name]
		for _, n := range few {
			repeated = repeated || n == name
		}
		if len(few) < fewNames {
			few = append(few, name)
		} else {
			if many == nil {
				many = make(map[string]bool)
			}
			many[name] = true
		}
		switch {
		case repeated:
			d.fail("is given twice")
		case !d.take(':'):
			d.fail("must be followed by a colon and a value")
		case !member(d, name):
			d.fail("is not a field of this request")
		}
		if d.err != nil {
			return
		}
		d.path = d.path[:len(d.path)-1]
		if d.take('}') {
			return
		}
		if !d.take(',') {
			d.fail("is not complete JSON: a comma or brace is missing")
			return
		}
	}
}

// array reads an array of at most limit elements.
func (d *decoder) array(limit int, element func(d *decoder)) {
	if d.err != nil {
		return
	}
	if !d.take('[') {
		d.fail("must be an array" + d.butIs())
		return
	}
	if d.take(']') {
		return
	}
	for i := 0; ; i++ {
		if i == limit {
			d.fail("must not have more than " + strconv.Itoa(limit) + " elements")
			return
		}
		d.path = append(d.path, step{index: i})
		element(d)
		if d.err != nil {
			return
		}
		d.path = d.path[:len(d.path)-1]
		if d.take(']') {
			return
		}
		if !d.take(',') {
			d.fail("is not complete JSON: a comma or bracket is missing")
			return
		}
	}
}

// butIs names what is there in place of what should be.
func (d *decoder) butIs() string {
	switch c := d.next(); {
	case c == 0:
		return ", and is missing"
	case c == '"':
		return ", not a string"
	case c == '{':
		return ", not an object"
	case c == '[':
		return ", not an array"
	case c == 'n':
		return ", not null"
	case c == 't', c == 'f':
		return ", not true or false"
	case c == '-', c >= '0' && c <= '9':
		return ", not a number"
	}
	return ""
}
