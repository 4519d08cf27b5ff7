package httpapi

import (
	"io"
	"log"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	readHeaderBound = 10 * time.Second
	idleBound       = 2 * time.Minute
	maxHeaderBytes  = 64 << 10
	// A body must arrive at this rate on the whole, after a start that is free.
	leastBytesPerSecond = 1 << 10
	bodyStart           = 10 * time.Second
)

// NewServer is an http.Server that slow or greedy clients cannot hold on to: 10 s
// and 64 KiB for the header, and a body has to arrive at 1 KiB/s. It serves
// paths as they come. The caller serves with it and shuts it down.
func NewServer(h http.Handler) *http.Server {
	s := &http.Server{
		Handler: paced{h}, ReadHeaderTimeout: readHeaderBound, IdleTimeout: idleBound, MaxHeaderBytes: maxHeaderBytes,
		ConnContext: withConnection,
	}
	if own, ok := h.(*Handler); ok {
		s.ErrorLog = errorLog(own.log)
	}
	return s
}

func errorLog(l hclog.Logger) *log.Logger {
	return l.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})
}

// paced gives each body a read deadline that moves with the bytes that came.
type paced struct{ next http.Handler }

func (p paced) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &pacedBody{body: r.Body, control: http.NewResponseController(w), began: time.Now()}
	}
	p.next.ServeHTTP(w, r)
}

type pacedBody struct {
	body    io.ReadCloser
	control *http.ResponseController
	began   time.Time
	read    int64
}

func (b *pacedBody) Read(p []byte) (int, error) {
	// Errors are of writers that have no deadlines, in tests: nothing to bound.
	_ = b.control.SetReadDeadline(b.began.Add(bodyStart + time.Duration(b.read)*time.Second/leastBytesPerSecond))
	n, err := b.body.Read(p)
	b.read += int64(n)
	if err == io.EOF {
		// net/http goes on reading to notice a client that leaves; an old
		// deadline would look like that, and cancel the request.
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (b *pacedBody) Close() error { return b.body.Close() }
