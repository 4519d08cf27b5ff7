package client

import (
	"crypto/tls"
	"errors"
	"net"
)

// refusedOurs says that the server has refused this client's certificate, or that it
// has none. A server of TLS 1.3 says so when the client's part of the handshake is over
// and the request may be on its way; it has not looked at that.
func refusedOurs(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return false
	}
	// The type of an alert that came over TCP is not exported, its text is the same.
	// From 42 to 49: something is wrong with the certificate; 116: it is missing.
	for _, alert := range []tls.AlertError{42, 43, 44, 45, 46, 48, 49, 116} {
		if op.Err.Error() == alert.Error() {
			return true
		}
	}
	return false
}
