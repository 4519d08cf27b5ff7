package httpapi

import (
	"unicode/utf16"
	"unicode/utf8"

	"fencepost/fsm"
)

// whole reads a whole number of at most fsm.MaxToken.
func (d *decoder) whole() uint64 {
	if d.err != nil {
		return 0
	}
	c := d.next()
	if c == '-' {
		d.fail("must be a whole number and not negative, without a sign")
		return 0
	}
	if c < '0' || c > '9' {
		d.fail("must be a whole number" + d.butIs())
		return 0
	}
	start := d.at
	var n uint64
	for ; d.at < len(d.data); d.at++ {
		c := d.data[d.at]
		if c < '0' || c > '9' {
			break
		}
		if n <= fsm.MaxToken { // and stays too great once it is
			n = n*10 + uint64(c-'0')
		}
	}
	switch {
	case d.at < len(d.data) && (d.data[d.at] == '.' || d.data[d.at]|0x20 == 'e'):
		d.fail("must be a whole number, without a fraction or an exponent")
	case d.data[start] == '0' && d.at > start+1:
		d.fail("must be a whole number without leading zeros")
	case n > fsm.MaxToken:
		d.fail("must be below 2^53")
	}
	return n
}

// boolean reads true or false.
func (d *decoder) boolean() bool {
	if d.err != nil {
		return false
	}
	d.space()
	rest := d.data[d.at:]
	switch {
	case len(rest) >= 4 && string(rest[:4]) == "true":
		d.at += 4
		return true
	case len(rest) >= 5 && string(rest[:5]) == "false":
		d.at += 5
		return false
	}
	d.fail("must be true or false")
	return false
}

// text reads a string.
func (d *decoder) text() string {
	if d.err != nil {
		return ""
	}
	return d.rawString("a string")
}

func (d *decoder) rawString(what string) string {
	if d.next() != '"' {
		d.fail("must be " + what + d.butIs())
		return ""
	}
	d.at++
	start := d.at
	for i := d.at; i < len(d.data); i++ {
		switch c := d.data[i]; {
		case c == '"':
			d.at = i + 1
			if !utf8.Valid(d.data[start:i]) {
				d.fail("must be UTF-8")
				return ""
			}
			return string(d.data[start:i])
		case c == '\\':
			return d.escaped(start, i)
		case c < 0x20:
			d.fail("has a control character that is not escaped")
			return ""
		}
	}
	d.fail("is a string without an end")
	return ""
}

// escaped reads on in a string whose first backslash is at i.
func (d *decoder) escaped(start, i int) string {
	out := append([]byte(nil), d.data[start:i]...)
	for i < len(d.data) {
		c := d.data[i]
		switch {
		case c == '"':
			d.at = i + 1
			if !utf8.Valid(out) {
				d.fail("must be UTF-8")
				return ""
			}
			return string(out)
		case c < 0x20:
			d.fail("has a control character that is not escaped")
			return ""
		case c != '\\':
			out = append(out, c)
			i++
			continue
		}
		r, n := unescape(d.data[i:])
		if n == 0 {
			d.fail("has an escape that is not JSON's, or half a surrogate pair")
			return ""
		}
		out = utf8.AppendRune(out, r)
		i += n
	}
	d.fail("is a string without an end")
	return ""
}

// unescape reads one escape; n is 0 if it is none.
func unescape(b []byte) (r rune, n int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r, ok := hex4(b[2:])
		if !ok {
			return 0, 0
		}
		if !utf16.IsSurrogate(r) {
			return r, 6
		}
		if len(b) < 12 || b[6] != '\\' || b[7] != 'u' {
			return 0, 0
		}
		low, ok := hex4(b[8:])
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			return 0, 0
		}
		return r, 12
	}
	return 0, 0
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}
