package certs

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// Server shakes hands with one who has dialled, TLS 1.3 only. end is when the first of
// the certificates that this rests on runs out: nobody vouches for the connection after
// that. If it fails, it says why in the log; raw is the caller's to close.
func (s *Source) Server(ctx context.Context, raw net.Conn) (c *tls.Conn, end time.Time, err error) {
	now := s.look()
	conf := s.serving(now)
	conf.MinVersion = tls.VersionTLS13
	return s.shake(ctx, now, tls.Server(raw, conf), raw)
}

// Client is Server for the one that dials. The other must have a certificate for this
// host, which is a name or an IP address.
func (s *Source) Client(ctx context.Context, raw net.Conn, host string) (c *tls.Conn, end time.Time, err error) {
	now := s.look()
	conf := s.ClientConfig()
	conf.ServerName, conf.MinVersion, conf.RootCAs = host, tls.VersionTLS13, now.roots
	return s.shake(ctx, now, tls.Client(raw, conf), raw)
}

func (s *Source) shake(ctx context.Context, now *set, c *tls.Conn, raw net.Conn) (*tls.Conn, time.Time, error) {
	if err := c.HandshakeContext(ctx); err != nil {
		s.refused.note(raw.RemoteAddr().String(), err)
		return nil, time.Time{}, err
	}
	end := endOf(c.ConnectionState().VerifiedChains)
	if now.pair != nil && (end.IsZero() || now.ends.Before(end)) {
		end = now.ends
	}
	return c, end, nil
}

// DialTLS is for an http.Transport: each connection is made with what the files have
// then, and within a bound.
func (s *Source) DialTLS(bound time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: bound}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		c, _, err := s.Client(ctx, raw, HostOf(address))
		if err != nil {
			raw.Close()
			return nil, err
		}
		return c, nil
	}
}

// HostOf is the host of a host:port.
func HostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// ServerConfig is for an HTTP server: HTTP/1.1 over TLS 1.2 at least.
func (s *Source) ServerConfig() *tls.Config {
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.serving(s.look()), nil }}
}

func (s *Source) serving(now *set) *tls.Config {
	c := &tls.Config{
		Certificates: []tls.Certificate{*now.pair}, Time: s.Now, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		SessionTicketsDisabled: true, // each connection is verified anew
	}
	if now.clients != nil {
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, now.clients
	}
	return c
}

// ClientConfig is for a client of an HTTP server. A new certificate is shown on the next
// connection; those that are trusted stay as they are.
func (s *Source) ClientConfig() *tls.Config {
	return &tls.Config{
		RootCAs: s.current.Load().roots, Time: s.Now, MinVersion: tls.VersionTLS12,
		// Shown whatever authorities the server names: it says then what it refuses.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if p := s.look().pair; p != nil {
				return p, nil
			}
			return new(tls.Certificate), nil
		},
	}
}

// Idle is for the ConnState of an http.Server: a connection whose client's certificate
// has run out ends once nothing is asked on it.
func (s *Source) Idle(c net.Conn, state http.ConnState) {
	secured, ok := c.(*tls.Conn)
	if !ok || state != http.StateIdle {
		return
	}
	if end := endOf(secured.ConnectionState().VerifiedChains); !end.IsZero() && s.Now().After(end) {
		c.Close()
	}
}
