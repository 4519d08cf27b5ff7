package cluster

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/cluster/certs"
)

// certificateLook is how often a node looks whether its certificates are valid.
const certificateLook = time.Second

// certificates are those that this node has.
func (n *Node) certificates() (list []*certs.Source) {
	for _, c := range []*certs.Source{n.cfg.RaftTLS, n.cfg.HTTPTLS} {
		if c != nil {
			list = append(list, c)
		}
	}
	return list
}

// lapsed says why the others or the clients refuse this node, or will in a moment, if
// one of its certificates is the reason.
func (n *Node) lapsed() error {
	for _, c := range n.certificates() {
		if err := c.Over(); err != nil {
			return err
		}
	}
	return nil
}

// tendCertificates has the files looked at also while nobody connects, and a leader
// know when it has to give way. That is before its Raft connections end, so that it
// costs no election.
func (n *Node) tendCertificates(ctx context.Context) {
	for sleep(ctx, certificateLook) {
		for _, c := range n.certificates() {
			c.Look()
		}
		if n.lapsed() != nil {
			select {
			case n.unfit <- struct{}{}:
			default:
			}
		}
	}
}

// warnOfOpenPort says once what anybody can do who reaches a Raft port without TLS.
func (n *Node) warnOfOpenPort() {
	host, _, err := net.SplitHostPort(n.cfg.RaftAddr)
	if ip := net.ParseIP(host); err != nil || n.cfg.RaftTLS != nil || host == "localhost" || ip != nil && ip.IsLoopback() {
		return
	}
	n.log.Warn("Raft listens without TLS: whoever reaches this port can change everything; keep it in a network that you trust, or see --raft-tls-cert", "raft", n.cfg.RaftAddr)
}

// expiry is until when the certificates are valid, for the metrics.
func (n *Node) expiry() (list []prometheus.Collector) {
	for _, c := range n.certificates() {
		list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "fencepost_certificate_expires_seconds", Help: "Seconds until this node's certificate runs out; below 0: since it has.",
			ConstLabels: prometheus.Labels{"use": c.Use},
		}, func() float64 { return c.Left().Seconds() }))
	}
	return list
}

// peerTransport is the way to the other nodes' APIs; never by a proxy.
func (c *Config) peerTransport() *http.Transport {
	t := &http.Transport{IdleConnTimeout: time.Minute}
	if c.HTTPTLS != nil {
		t.DialTLSContext = c.HTTPTLS.DialTLS(c.RPC)
	}
	return t
}

// url is where a node's API is that others reach at this host:port: all nodes of a
// cluster serve it in the same way.
func (c *Config) url(address string) string {
	if c.HTTPTLS != nil {
		return "https://" + address
	}
	return "http://" + address
}
