package client

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// P10: a backup of which only a part went out restored nothing; one that went out
// whole perhaps did.
func TestP10_RestoreThatIsCutOff(t *testing.T) {
	for _, whole := range []bool{false, true} {
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if whole {
				_, _ = io.Copy(io.Discard, r.Body)
			}
			panic(http.ErrAbortHandler)
		}))
		c, err := New([]string{s.URL}, WithoutRetry())
		if err != nil {
			t.Fatal(err)
		}
		const size = 64 << 20 // more than sockets take
		open := func() (io.ReadCloser, error) { return io.NopCloser(io.LimitReader(zeros{}, size)), nil }
		_, err = c.Restore(t.Context(), size, open, RestoreOptions{})
		var o *OutcomeError
		if !errors.As(err, &o) || o.Unknown != whole {
			t.Errorf("sent whole: %v; %v", whole, err)
		}
		c.Close()
		s.Close()
	}
}
