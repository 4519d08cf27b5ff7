// Package certs holds the certificates that a process shows and those that it
// trusts. They are read from files, which are looked at again while the process
// runs: what replaces them counts from the next handshake on, and what cannot be
// used is refused while the old ones go on.
//
//	s, err := certs.Open(certs.Files{Cert: "n1.crt", Key: "n1.key", CA: "ca.crt", ClientCA: "ca.crt"}, certs.Options{Use: "raft"})
//	conn, end, err := s.Client(ctx, raw, "10.0.0.2") // or s.Server(ctx, raw)
package certs

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// lookEvery is how often the files are looked at, at the most.
	lookEvery = 2 * time.Second
	// lookBound is how long a handshake waits for that: files can be on another machine.
	lookBound = 500 * time.Millisecond
)

// Files are PEM files.
type Files struct {
	Cert, Key string // what this process shows, chain first to last, and its key; "": nothing
	CA        string // by which those that it dials are verified; "": by the system's
	ClientCA  string // by which those that dial it are; "": they need no certificate
}

// Options are what a Source has beside its files.
type Options struct {
	Use string // what for, in messages and metrics: raft, http
	// Host is where the other nodes reach this one. If it is set, they trust what
	// this process trusts, and a certificate that they would refuse is refused here.
	Host   string
	Logger hclog.Logger     // nil: none
	Now    func() time.Time // the world's; nil: time.Now
}

// Source is the certificates of one use. All its methods may be called from any
// goroutine.
type Source struct {
	files Files
	Options
	refused refusals

	current atomic.Pointer[set]

	looking sync.Mutex // held while they are looked at, and nobody waits for it; guards what follows
	looked  time.Time
	broken  [sha256.Size]byte // what was found and cannot be used; it is told once
	warned  warning
}

// set is what the files had at one time. It does not change.
type set struct {
	raw     [4][]byte
	pair    *tls.Certificate // nil: none
	begins  time.Time
	ends    time.Time      // of what is shown, and of what vouches for it
	roots   *x509.CertPool // nil: the system's
	clients *x509.CertPool // nil: nobody has to show anything
}

// Open reads the files. The error names the one that is wrong. A certificate that is
// not valid at this time is no error: what refuses it says so.
func Open(f Files, o Options) (*Source, error) {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Source{files: f, Options: o}
	s.refused.init(o)
	raw, err := f.read()
	if err != nil {
		return nil, err
	}
	first, err := s.parse(raw)
	if err != nil {
		return nil, err
	}
	s.current.Store(first)
	s.looked = o.Now()
	if first.pair != nil && o.Host != "" {
		o.Logger.Info("certificate", "use", o.Use, "file", f.Cert, "valid_until", stamp(first.ends))
		s.warn(first, s.looked)
	}
	return s, nil
}

// Look reads the files anew, if the last time was not just now, and says what has
// become of that in the log. It is called at each handshake; who has none for long
// calls it by itself.
func (s *Source) Look() { s.look() }

func (s *Source) look() *set {
	have := s.current.Load()
	if !s.looking.TryLock() {
		return have
	}
	now := s.Now()
	if since := now.Sub(s.looked); since >= 0 && since < lookEvery {
		s.looking.Unlock()
		return have
	}
	s.looked = now
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer s.looking.Unlock()
		s.update(have, now)
	}()
	late := time.NewTimer(lookBound)
	defer late.Stop()
	select {
	case <-read:
	case <-late.C:
		s.Logger.Warn("certificate files cannot be read in time: what was read before stays meanwhile", "use", s.Use, "file", s.files.Cert)
	}
	return s.current.Load()
}

// update reads the files. have is what was read before.
func (s *Source) update(have *set, now time.Time) {
	next, err := s.readAnew(have, now)
	switch {
	case err != nil:
		s.Logger.Error("certificate files were changed and cannot be used: what was read before stays", "use", s.Use, "error", err)
	case next != nil:
		s.current.Store(next)
		have = next
		s.Logger.Info("certificate files were read anew", "use", s.Use, "file", s.files.Cert, "valid_until", stamp(next.ends))
	}
	if have.pair != nil && s.Host != "" {
		s.warn(have, now)
	}
}

// readAnew is what the files have now; nil: nothing else than before, or nothing that
// can be used, which it says once.
func (s *Source) readAnew(have *set, now time.Time) (*set, error) {
	raw, err := s.files.read()
	var next *set
	if err == nil {
		if equal(raw, have.raw) {
			s.broken = [sha256.Size]byte{}
			return nil, nil
		}
		next, err = s.parse(raw)
	}
	if err == nil && !next.valid(now) && have.valid(now) {
		err = fmt.Errorf("%s is valid from %s to %s only, and it is %s", s.files.Cert, stamp(next.begins), stamp(next.ends), stamp(now))
	}
	if err == nil {
		s.broken = [sha256.Size]byte{}
		return next, nil
	}
	what := sha256.Sum256(bytes.Join(raw[:], []byte{0}))
	if len(raw[0])+len(raw[1])+len(raw[2])+len(raw[3]) == 0 { // not even read
		what = sha256.Sum256([]byte(err.Error()))
	}
	if what == s.broken {
		return nil, nil
	}
	s.broken = what
	return nil, err
}

func (s *set) valid(now time.Time) bool {
	return s.pair == nil || !now.Before(s.begins) && !now.After(s.ends)
}

func equal(a, b [4][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func (f *Files) read() (raw [4][]byte, err error) {
	for i, name := range [...]string{f.Cert, f.Key, f.CA, f.ClientCA} {
		if name == "" {
			continue
		}
		if raw[i], err = os.ReadFile(name); err != nil {
			return [4][]byte{}, fmt.Errorf("read certificate files: %w", err)
		}
	}
	return raw, nil
}

func (s *Source) parse(raw [4][]byte) (*set, error) {
	p := &set{raw: raw}
	var err error
	if s.files.CA != "" {
		if p.roots, err = authorities(s.files.CA, raw[2]); err != nil {
			return nil, err
		}
	}
	if s.files.ClientCA != "" {
		if p.clients, err = authorities(s.files.ClientCA, raw[3]); err != nil {
			return nil, err
		}
	}
	if s.files.Cert == "" {
		return p, nil
	}
	pair, err := tls.X509KeyPair(raw[0], raw[1])
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", s.files.Cert, s.files.Key, err)
	}
	p.pair, p.begins, p.ends = &pair, pair.Leaf.NotBefore, pair.Leaf.NotAfter
	if s.Host == "" {
		return p, nil
	}
	if err := s.acceptable(p); err != nil {
		return nil, fmt.Errorf("certificate %s: the other nodes would refuse it: %w", s.files.Cert, err)
	}
	return p, nil
}

// acceptable says why the other nodes would not take the certificate of this one, at
// whatever time, if they would not; and takes note of until when they would.
func (s *Source) acceptable(p *set) error {
	if err := p.pair.Leaf.VerifyHostname(s.Host); err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, der := range p.pair.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		between.AddCert(c)
	}
	at := s.Now()
	if at.Before(p.begins) {
		at = p.begins
	} else if at.After(p.ends) {
		at = p.ends
	}
	check := func(what, file string, roots *x509.CertPool, use x509.ExtKeyUsage) error {
		chains, err := p.pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{use}})
		var invalid x509.CertificateInvalidError
		switch {
		case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
			if invalid.Cert.NotAfter.Before(p.ends) {
				p.ends = invalid.Cert.NotAfter
			}
			return nil
		case err != nil && file == "":
			return fmt.Errorf("%s, by the system's authorities: %w", what, err)
		case err != nil:
			return fmt.Errorf("%s, by %s: %w", what, file, err)
		}
		if end := endOf(chains); end.Before(p.ends) {
			p.ends = end
		}
		return nil
	}
	err := check("as of one that is dialled", s.files.CA, p.roots, x509.ExtKeyUsageServerAuth)
	if p.clients != nil {
		err = errors.Join(err, check("as of one that dials", s.files.ClientCA, p.clients, x509.ExtKeyUsageClientAuth))
	}
	return err
}

// endOf is until when one of the chains holds.
func endOf(chains [][]*x509.Certificate) (end time.Time) {
	for _, chain := range chains {
		first := chain[0].NotAfter
		for _, c := range chain[1:] {
			if c.NotAfter.Before(first) {
				first = c.NotAfter
			}
		}
		if first.After(end) {
			end = first
		}
	}
	return end
}

func authorities(file string, text []byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), false
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("authority %s: %w", file, err)
		}
		pool.AddCert(c)
		found = true
	}
	if !found {
		return nil, fmt.Errorf("authority %s: there is no PEM certificate in it", file)
	}
	return pool, nil
}
