package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"fencepost/client"
	"fencepost/cluster"
	"fencepost/cluster/certs"
)

// tlsFlags are the flags that all commands share: what a client shows, and trusts. A
// server serves its API with the same certificate, and shows it to the other nodes.
type tlsFlags struct{ ca, cert, key string }

// clientTLS is what https endpoints are spoken to with; nil: the system's authorities,
// and no certificate.
func (e *environment) clientTLS() (*tls.Config, error) {
	f := e.tls
	switch {
	case f == tlsFlags{}:
		return nil, nil
	case (f.cert == "") != (f.key == ""):
		return nil, usageError(errors.New("--tls-cert and --tls-key go together: one of them is missing"))
	}
	s, err := certs.Open(certs.Files{Cert: f.cert, Key: f.key, CA: f.ca}, certs.Options{Use: "client"})
	if err != nil {
		return nil, usageError(err)
	}
	return s.ClientConfig(), nil
}

// clientOptions are those of every client of this run.
func (e *environment) clientOptions() ([]client.Option, error) {
	conf, err := e.clientTLS()
	if err != nil {
		return nil, err
	}
	var opts []client.Option
	if conf != nil {
		opts = append(opts, client.WithTLS(conf))
	}
	if e.authToken != "" {
		opts = append(opts, client.WithBearerToken(e.authToken))
	}
	return opts, nil
}

// httpClient is for what the client package does not do.
func (e *environment) httpClient() (*http.Client, error) {
	conf, err := e.clientTLS()
	if err != nil || conf == nil {
		return http.DefaultClient, err
	}
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: conf}}, nil
}

// variables hand the flags on to a command that is run, wherever it goes to.
func (f tlsFlags) variables() (list []string) {
	for _, v := range [][2]string{{"CA", f.ca}, {"CERT", f.cert}, {"KEY", f.key}} {
		if v[1] == "" {
			continue
		}
		path, err := filepath.Abs(v[1])
		if err != nil { // nobody knows where this is
			path = v[1]
		}
		list = append(list, "FENCEPOST_TLS_"+v[0]+"="+path)
	}
	return list
}

// serverTLS are the flags that a server has beside those.
type serverTLS struct {
	clientCA                  string
	raftCert, raftKey, raftCA string
}

// apply opens the certificates of a node. What is half given or cannot be used refuses
// the start.
func (f serverTLS) apply(cfg *cluster.Config, api tlsFlags, log hclog.Logger) (err error) {
	switch given := count(f.raftCert, f.raftKey, f.raftCA); {
	case given > 0 && given < 3:
		return usageError(errors.New("--raft-tls-cert, --raft-tls-key and --raft-tls-ca go together: all three or none"))
	case count(api.cert, api.key) == 1:
		return usageError(errors.New("--tls-cert and --tls-key go together: one of them is missing"))
	case api.cert == "" && count(api.ca, f.clientCA) > 0:
		return usageError(errors.New("--tls-ca (or FENCEPOST_TLS_CA) and --tls-client-ca are of an API that is served over TLS: --tls-cert and --tls-key are missing"))
	}
	if f.raftCert != "" {
		advertised := cfg.AdvertiseRaft
		if advertised == "" {
			advertised = cfg.RaftAddr
		}
		cfg.RaftTLS, err = certs.Open(certs.Files{Cert: f.raftCert, Key: f.raftKey, CA: f.raftCA, ClientCA: f.raftCA},
			certs.Options{Use: "raft", Host: certs.HostOf(advertised), Logger: log.Named("tls")})
		if err != nil {
			return usageError(fmt.Errorf("TLS for Raft: %w", err))
		}
	}
	if api.cert != "" {
		cfg.HTTPTLS, err = certs.Open(certs.Files{Cert: api.cert, Key: api.key, CA: api.ca, ClientCA: f.clientCA},
			certs.Options{Use: "http", Host: certs.HostOf(cfg.HTTPAddr), Logger: log.Named("tls")})
		if err != nil {
			return usageError(fmt.Errorf("TLS for HTTP: %w", err))
		}
	}
	return nil
}

func count(values ...string) (given int) {
	for _, v := range values {
		if v != "" {
			given++
		}
	}
	return given
}
