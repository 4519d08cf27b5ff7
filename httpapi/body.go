package httpapi

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
)

// firstBody is the most memory that a body is given before any of it is here.
const firstBody = 16 << 10

// readBody reads the whole body into x.body, if it has at most limit bytes. It
// answers and returns false otherwise.
func (x *exchange) readBody(limit int) bool {
	if e := x.r.Header["Content-Encoding"]; len(e) > 1 || len(e) == 1 && !strings.EqualFold(e[0], "identity") {
		return x.invalid("Content-Encoding", "must be identity or absent: bodies are taken as they are")
	}
	if x.r.ContentLength > int64(limit) {
		return x.tooLarge("body", limit)
	}
	if x.r.Body == nil || x.r.Body == http.NoBody {
		return true
	}
	size := 512 // a body without a length, unless it turns out longer
	if x.r.ContentLength >= 0 {
		// Room to meet the end without growing; but what is only announced gets
		// no more than a little.
		size = int(min(x.r.ContentLength, firstBody)) + 1
	}
	body := make([]byte, 0, size)
	for {
		n, err := x.r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if len(body) > limit {
			return x.tooLarge("body", limit)
		}
		switch {
		case err == io.EOF:
			x.body = body
			return true
		case errors.Is(err, os.ErrDeadlineExceeded):
			x.w.Header().Set("Connection", "close")
			return x.invalid("body", "did not arrive at the least rate of 1 KiB/s")
		case err != nil:
			x.w.Header().Set("Connection", "close")
			return x.invalid("body", "could not be read whole")
		}
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
	}
}

// readJSON reads a body that holds a JSON document. What is not called JSON is
// refused, except what curl -d calls its data when it is told nothing else.
func (x *exchange) readJSON() bool {
	types := x.r.Header["Content-Type"]
	if len(types) > 1 {
		return x.invalid("Content-Type", "must be given once")
	}
	if len(types) == 1 {
		media, _, _ := strings.Cut(types[0], ";")
		media = strings.TrimSpace(media)
		if !strings.EqualFold(media, "application/json") && !strings.EqualFold(media, "application/x-www-form-urlencoded") && media != "" {
			return x.invalid("Content-Type", "must be application/json")
		}
	}
	return x.readBody(x.h.limits.RequestBytes)
}

// readNoBody refuses a body where it would mean nothing.
func (x *exchange) readNoBody() bool {
	if !x.readBody(x.h.limits.RequestBytes) {
		return false
	}
	if len(x.body) > 0 {
		return x.invalid("body", "must be empty")
	}
	return true
}
