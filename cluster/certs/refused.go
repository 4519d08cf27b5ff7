package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// refusalEvery is how often the same refusal of the same host is told.
	refusalEvery = time.Minute
	maxRefusals  = 64 // lines in that time
)

// refusals tells which check a handshake failed, without a flood.
type refusals struct {
	use string
	log hclog.Logger
	now func() time.Time

	mu   sync.Mutex // guards told
	told map[string]time.Time
}

func (r *refusals) init(o Options) {
	r.use, r.log, r.now, r.told = o.Use, o.Logger, o.Now, make(map[string]time.Time)
}

func (r *refusals) note(peer string, err error) {
	check, detail := r.why(err)
	r.tell(peer, check, detail)
}

func (r *refusals) tell(peer, check, detail string) {
	if r.due(HostOf(peer) + " " + check) {
		r.log.Warn("a TLS connection was refused", "use", r.use, "peer", peer, "check", check, "detail", detail)
	}
}

func (r *refusals) due(key string) bool {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, at := range r.told {
		if now.Sub(at) >= refusalEvery {
			delete(r.told, k)
		}
	}
	if _, told := r.told[key]; told || len(r.told) >= maxRefusals {
		return false
	}
	r.told[key] = now
	return true
}

// why is the check that failed, and what a person needs to see what is wrong.
func (r *refusals) why(err error) (check, detail string) {
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var record tls.RecordHeaderError
	var op *net.OpError
	switch now := r.now(); {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && now.Before(invalid.Cert.NotBefore):
		return "not yet valid", fmt.Sprintf("the certificate of %s is valid from %s on, and the clock here says %s: one of the two clocks may be wrong",
			invalid.Cert.Subject, stamp(invalid.Cert.NotBefore), stamp(now))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "expired", fmt.Sprintf("the certificate of %s was valid until %s, and the clock here says %s",
			invalid.Cert.Subject, stamp(invalid.Cert.NotAfter), stamp(now))
	case errors.As(err, &unknown):
		return "unknown authority", err.Error()
	case errors.As(err, &name):
		return "wrong name", err.Error()
	case errors.As(err, &record):
		return "no TLS", "the other side does not speak TLS: " + err.Error()
	case errors.As(err, &op) && op.Op == "remote error":
		return "refused by the other side", err.Error()
	}
	return "handshake", err.Error()
}

// handshakePrefix begins net/http's line on a handshake that failed; it tells that in
// no other way.
const handshakePrefix = "http: TLS handshake error from "

// ErrorLog is the error log of an http.Server: refused handshakes are told as such, and
// all else goes to rest.
func (s *Source) ErrorLog(rest *log.Logger) *log.Logger {
	if rest == nil {
		rest = log.New(io.Discard, "", 0)
	}
	return log.New(serverLog{&s.refused, rest}, "", 0)
}

type serverLog struct {
	refused *refusals
	rest    *log.Logger
}

func (l serverLog) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	peer, reason, ok := strings.Cut(strings.TrimPrefix(text, handshakePrefix), ": ")
	// One that only connects and goes, as some do to see whether a port is open, is
	// none to speak of.
	if !ok || !strings.HasPrefix(text, handshakePrefix) || !strings.Contains(reason, "tls: ") {
		l.rest.Print(text)
		return len(line), nil
	}
	check, _, _ := strings.Cut(reason, ": current time ")
	l.refused.tell(peer, check, reason)
	return len(line), nil
}
