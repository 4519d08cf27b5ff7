package httpapi

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"fencepost/fsm"
	"fencepost/httpapi/wire"
)

// getKey answers GET /v1/kv/{key}: the bare value, or a document about it.
func (x *exchange) getKey() {
	if !x.query.stale && x.elsewhere(false) {
		return
	}
	var k *fsm.Key
	info, err := x.h.node.Read(x.r.Context(), x.query.stale, func(s *fsm.State) { k, _ = s.Key(x.name) })
	if err != nil {
		x.failed(err, false)
		return
	}
	x.noteRead(info)
	h := x.w.Header()
	h["Vary"] = []string{"Accept"}
	if k != nil {
		h[wire.HeaderWatermark] = []string{strconv.FormatUint(k.Watermark, 10)}
	}
	if k == nil || !k.Present {
		p := &wire.Problem{Code: wire.CodeNotFound, Detail: "the key has no value"}
		if k != nil {
			p.Watermark = new(k.Watermark)
		}
		x.problem(p)
		return
	}
	h["Etag"] = []string{`"` + strconv.FormatUint(k.Version, 10) + `"`}
	h[wire.HeaderFencingToken] = []string{strconv.FormatUint(k.Token, 10)}
	if acceptsJSON(x.r) {
		b := make([]byte, 0, len(k.Key)+base64.StdEncoding.EncodedLen(len(k.Value))+192)
		x.ok(append(appendKey(b, k, true), '\n'))
		return
	}
	// The value is whatever some client wrote. A browser must neither guess at
	// it nor run it under this origin.
	h["X-Content-Type-Options"] = []string{"nosniff"}
	h["Content-Security-Policy"] = []string{"sandbox"}
	contentType := k.ContentType
	if contentType == "" {
		contentType = "application/octet-stream"
	}
	x.answer(http.StatusOK, contentType, k.Value)
}

// acceptsJSON says whether the client names JSON among what it accepts. "*/*"
// does not: the value itself is the answer that needs no asking.
func acceptsJSON(r *http.Request) bool {
	for _, accept := range r.Header["Accept"] {
		for part := range strings.SplitSeq(accept, ",") {
			media, params, _ := strings.Cut(part, ";")
			if !strings.EqualFold(strings.TrimSpace(media), contentTypeJSON) {
				continue
			}
			q := strings.ReplaceAll(strings.ToLower(params), " ", "")
			return strings.Trim(q, "0.") != "q="
		}
	}
	return false
}

// listKeys answers GET /v1/kv. A page ends early when its values get large, so
// that no answer takes up half a gigabyte.
func (x *exchange) listKeys() {
	if !x.query.stale && x.elsewhere(false) {
		return
	}
	var page []*fsm.Key
	var more bool
	info, err := x.h.node.Read(x.r.Context(), x.query.stale, func(s *fsm.State) {
		page, more = s.Keys(x.query.prefix, x.query.after, x.query.limit)
	})
	if err != nil {
		x.failed(err, false)
		return
	}
	x.noteRead(info)
	next := ""
	b := append(make([]byte, 0, 192*len(page)+64), `{"keys":[`...)
	size := 0
	for i, k := range page {
		if size += len(k.Value); x.query.values && size > x.h.limits.PageBytes && i > 0 {
			next = page[i-1].Key
			break
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendKey(b, k, x.query.values)
		if more && i == len(page)-1 {
			next = k.Key
		}
	}
	b = appendText(append(b, ']'), "next", next)
	x.ok(append(b, '}', '\n'))
}

func appendKey(b []byte, k *fsm.Key, value bool) []byte {
	b = appendText(append(b, '{'), "key", k.Key)
	if value {
		b = append(appendName(b, "value_base64"), '"')
		b = append(base64.StdEncoding.AppendEncode(b, k.Value), '"')
	}
	b = appendUint(b, "version", k.Version)
	b = appendUint(b, "token", k.Token)
	b = appendUint(b, "watermark", k.Watermark)
	b = appendText(b, "content_type", k.ContentType)
	return append(b, '}')
}
