package httpapi

import (
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// query is what the query of a request says.
type query struct {
	stale  bool
	prefix string
	after  string
	limit  int
	values bool
	watch  watchQuery
	force  bool
	above  uint64
}

// parseQuery takes the parameters that the route knows, each at most once.
func (x *exchange) parseQuery() bool {
	x.query.limit = x.h.limits.DefaultItems
	raw := x.r.URL.RawQuery
	if raw == "" {
		return true
	}
	seen := make(map[string]bool, 4)
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		rawName, rawValue, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil || !utf8.ValidString(name) {
			return x.invalid("query", "has a parameter whose name is not percent-encoded UTF-8")
		}
		if !strings.Contains(x.route.query, " "+name+" ") || name == "" {
			return x.invalid(name, "is not a parameter of this call")
		}
		value, err := url.QueryUnescape(rawValue)
		if err != nil || !utf8.ValidString(value) {
			return x.invalid(name, "must be percent-encoded UTF-8")
		}
		if seen[name] && name != "kind" {
			return x.invalid(name, "must be given once")
		}
		seen[name] = true
		if !x.setParameter(name, value) {
			return false
		}
	}
	return true
}

func (x *exchange) setParameter(name, value string) bool {
	switch name {
	case "consistency":
		if value != "stale" && value != "linearizable" {
			return x.invalid(name, `must be "stale" or "linearizable"`)
		}
		x.query.stale = value == "stale"
	case "prefix", "after":
		if len(value) > x.h.limits.NameBytes {
			return x.invalid(name, "must not be longer than a name")
		}
		if name == "prefix" {
			x.query.prefix = value
		} else {
			x.query.after = value
		}
	case "limit":
		n, ok := wholeNumber(value)
		if !ok || n < 1 || n > uint64(x.h.limits.PageItems) {
			return x.invalid(name, "must be a whole number from 1 to "+strconv.Itoa(x.h.limits.PageItems))
		}
		x.query.limit = int(n)
	case "force":
		if value != "true" && value != "false" {
			return x.invalid(name, `must be "true" or "false"`)
		}
		x.query.force = value == "true"
	case "values":
		if value != "true" && value != "false" {
			return x.invalid(name, `must be "true" or "false"`)
		}
		x.query.values = value == "true"
	case "above":
		n, ok := wholeNumber(value)
		if !ok {
			return x.invalid(name, "must be a whole number from 0 to 2^53-1")
		}
		x.query.above = n
	case "kind", "from", "renewals":
		return x.setWatchParameter(name, value)
	}
	return true
}
