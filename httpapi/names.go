package httpapi

import (
	"net/http"
	"net/url"
	"strings"
)

// rawTarget is the path and the query (with its question mark) of a request,
// byte for byte as they came. What net/url makes of a path can differ from it
// in bytes that need no escape, and a name must go out as it came in.
func rawTarget(r *http.Request) (path, query string) {
	target := r.RequestURI
	if !strings.HasPrefix(target, "/") { // absolute form, as to a proxy
		target = r.URL.EscapedPath()
		if r.URL.RawQuery != "" || r.URL.ForceQuery {
			target += "?" + r.URL.RawQuery
		}
	}
	if i := strings.IndexByte(target, '?'); i >= 0 {
		return target[:i], target[i:]
	}
	return target, ""
}

// decodeName is the name that a raw path segment, or several, stand for. "/" and
// "%2F" mean the same; a plus sign is a plus sign. Whether it is a good name is
// for Limits.checkName.
func decodeName(raw string) (string, bool) {
	if strings.IndexByte(raw, '%') < 0 {
		return raw, true
	}
	name, err := url.PathUnescape(raw)
	return name, err == nil
}

// splitVerb cuts the last segment off a raw path: the verb of a POST. So a lease
// may have any name, also that of a verb.
func splitVerb(raw string) (name, verb string) {
	i := strings.LastIndexByte(raw, '/')
	if i < 0 {
		return "", raw
	}
	return raw[:i], raw[i+1:]
}
