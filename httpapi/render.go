package httpapi

import (
	"strconv"
	"unicode/utf8"

	"fencepost/fsm/fsmpb"
)

// The answers to mutations are appended by hand: they are the hot path, and
// small.

func appendName(b []byte, name string) []byte {
	if c := b[len(b)-1]; c != '{' && c != '[' {
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

func appendUint(b []byte, name string, n uint64) []byte {
	return strconv.AppendUint(appendName(b, name), n, 10)
}

func appendBool(b []byte, name string, v bool) []byte {
	return strconv.AppendBool(appendName(b, name), v)
}

func appendText(b []byte, name, value string) []byte {
	return appendString(appendName(b, name), value)
}

// appendMetadata writes pairs, which are sorted, as an object.
func appendMetadata(b []byte, pairs []*fsmpb.Pair) []byte {
	b = append(appendName(b, "metadata"), '{')
	for i, p := range pairs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, p.Key), ':')
		b = appendString(b, p.Value)
	}
	return append(b, '}')
}

// appendString writes a JSON string. What is not UTF-8 cannot be in the state;
// it would come out as U+FFFD.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			b = append(b, s[start:i]...)
			b = append(b, "\ufffd"...)
			i++
			start = i
			continue
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
