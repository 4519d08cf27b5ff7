package httpapi

import (
	"io"
	"sync/atomic"
)

// countedUpload is a body that is passed on as it comes. The transport may go on reading
// it when the exchange with the leader is over.
type countedUpload struct {
	r    io.Reader
	size int64 // as announced; 0: of a body that is not streamed, -1: unknown
	n    atomic.Int64
}

func (u *countedUpload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	u.n.Add(int64(n))
	return n, err
}

// halfSent says that the leader surely has no whole body: a backup is verified to its end
// before it is restored, so nothing happened (P10), and "unknown" would send somebody on a
// search for nothing.
func (u *countedUpload) halfSent() bool { return u.n.Load() < u.size }
