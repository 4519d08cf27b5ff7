package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"fencepost/cluster"
	"fencepost/httpapi"
)

// drainBound is how long a stopping node waits for the answers that are on
// their way out.
const drainBound = 5 * time.Second

// gcBallastBytes is about how much garbage a node lets accumulate.
const gcBallastBytes = 64 << 20

// exitBroken is the exit status of a node that must not go on: a disk that
// hangs or fails, an entry that it cannot apply.
const exitBroken = 70

func newServerCommand(env *environment) *cobra.Command {
	cfg := cluster.DefaultConfig()
	limits := httpapi.DefaultLimits()
	var logLevel, advertiseHTTP string
	var logJSON bool
	var secure serverTLS
	c := &cobra.Command{
		Use:   "server --name NAME --data-dir DIR --http-addr HOST:PORT --raft-addr HOST:PORT --peers URL,URL,URL --expect N",
		Short: "Run one node of a cluster",
		Long: `Run one node of a cluster.

All nodes are started with the same --peers, their own URL among them, and the
same --expect. A node that has no state asks its peers: it joins their cluster
if there is one, and else they form one together once all are there.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			writer := newLogWriter(env.stderr, logJSON)
			defer writer.flush()
			log, err := newLogger(writer, cfg.Name, logLevel, logJSON)
			if err != nil {
				return err
			}
			cfg.Logger, cfg.Version = log, buildVersion()
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			listen := cfg.HTTPAddr
			if advertiseHTTP != "" {
				cfg.HTTPAddr = advertiseHTTP
			}
			if err := secure.apply(&cfg, env.tls, log); err != nil {
				return err
			}
			return serveNode(ctx, listen, cfg, limits, processMetrics(log), writer.flush)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Name, "name", "", "name of this node, for people; unique in the cluster")
	f.StringVar(&cfg.DataDir, "data-dir", "", "directory for this node's log and snapshots")
	f.StringVar(&cfg.HTTPAddr, "http-addr", "127.0.0.1:7001", "host:port to serve the HTTP API on")
	f.StringVar(&cfg.RaftAddr, "raft-addr", "127.0.0.1:7101", "host:port for Raft")
	f.StringVar(&advertiseHTTP, "advertise-http", "", "host:port at which others reach the API, if not --http-addr")
	f.StringVar(&cfg.AdvertiseRaft, "advertise-raft", "", "host:port at which others reach Raft, if not --raft-addr")
	f.StringSliceVar(&cfg.Peers, "peers", nil, "URLs of all nodes, this one included")
	f.IntVar(&cfg.Expect, "expect", cfg.Expect, "how many nodes form the cluster")
	f.DurationVar(&cfg.Heartbeat, "heartbeat-timeout", cfg.Heartbeat, "silence after which a follower stands for election")
	f.DurationVar(&cfg.Election, "election-timeout", cfg.Election, "time after which an election is started again")
	f.DurationVar(&cfg.LeaderLease, "leader-lease", cfg.LeaderLease, "time without a quorum after which a leader steps down")
	f.DurationVar(&cfg.DiskBound, "disk-bound", cfg.DiskBound, "a write to the log that takes longer ends the process")
	f.Uint64Var(&cfg.SnapshotEntries, "snapshot-entries", cfg.SnapshotEntries, "entries after which the log is compacted")
	f.Uint64Var(&cfg.TrailingEntries, "trailing-entries", cfg.TrailingEntries, "entries that a compaction leaves in the log")
	f.IntVar(&cfg.MaxLeases, "max-leases", cfg.MaxLeases, "leases on record")
	f.Uint64Var(&cfg.MaxDataBytes, "max-data-bytes", cfg.MaxDataBytes, "bytes of keys, values and watermarks")
	f.IntVar(&cfg.MaxRequests, "max-requests", cfg.MaxRequests, "requests remembered for their Idempotency-Key")
	f.IntVar(&cfg.MaxQueue, "max-queue", cfg.MaxQueue, "waiters for one lease")
	f.IntVar(&cfg.MaxWaiters, "max-waiters", cfg.MaxWaiters, "waiters in all")
	f.DurationVar(&cfg.WaiterGrace, "waiter-grace", cfg.WaiterGrace, "how long a waiter whose client has gone keeps its place")
	f.IntVar(&cfg.MaxWatchers, "max-watchers", cfg.MaxWatchers, "watches of events at a time")
	f.IntVar(&cfg.WatchHistory, "watch-history", cfg.WatchHistory, "events that are kept to resume a watch, and as many renewals")
	f.StringVar(&secure.clientCA, "tls-client-ca", "", "PEM file of authorities: every client of the API, other nodes too, must show a certificate of theirs")
	f.StringVar(&secure.raftCert, "raft-tls-cert", "", "PEM file of this node's certificate for Raft")
	f.StringVar(&secure.raftKey, "raft-tls-key", "", "PEM file of its key")
	f.StringVar(&secure.raftCA, "raft-tls-ca", "", "PEM file of the authority of the members' Raft certificates, and of nobody else's")
	f.StringVar(&logLevel, "log-level", "info", "trace, debug, info, warn or error")
	f.BoolVar(&logJSON, "log-json", false, "log in JSON")
	return c
}

func newLogger(to io.Writer, name, level string, json bool) (hclog.Logger, error) {
	l := hclog.LevelFromString(level)
	if l == hclog.NoLevel {
		return nil, usageError(fmt.Errorf("log level %q is none of trace, debug, info, warn, error", level))
	}
	return hclog.New(&hclog.LoggerOptions{Name: name, Level: l, JSONFormat: json, Output: to}), nil
}

// serveNode runs one node until ctx ends.
func serveNode(ctx context.Context, listen string, cfg cluster.Config, limits httpapi.Limits, raftMetrics prometheus.Gatherer, flushLog func()) error {
	// A small heap would be collected dozens of times a second under load. This
	// block is never touched, so it takes no memory; it only makes the collector
	// wait until there is as much garbage as that.
	ballast := make([]byte, gcBallastBytes)
	defer runtime.KeepAlive(ballast)
	// The API listens first: a node that looks for its cluster must answer.
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	log := cfg.Logger
	cfg.Exit = func(why string) {
		log.Error("this node ends itself", "why", why)
		l.Close()
		flushLog()
		os.Exit(exitBroken)
	}
	node, err := cluster.Open(cfg)
	if err != nil {
		l.Close()
		if strings.HasPrefix(err.Error(), "configuration: ") {
			return usageError(err)
		}
		return err
	}
	server, handler := serverOf(node, cfg, limits, raftMetrics)
	defer handler.Close()
	served := make(chan error, 1)
	go func() { served <- serve(l, server, cfg) }()
	log.Info("serving", "http", cfg.HTTPAddr, "raft", cfg.RaftAddr, "data", cfg.DataDir, "version", cfg.Version)
	select {
	case err = <-served:
		return errors.Join(fmt.Errorf("serve HTTP: %w", err), node.Close())
	case <-ctx.Done():
	}
	log.Info("stopping: handing over what can be handed over")
	err = node.Close() // new requests are refused from here on, and told so
	drain, cancel := context.WithTimeout(context.Background(), drainBound)
	defer cancel()
	if drainErr := server.Shutdown(drain); drainErr != nil {
		server.Close()
	}
	<-served
	return err
}

// serverOf is the API of a node, and what serves it.
func serverOf(node *cluster.Node, cfg cluster.Config, limits httpapi.Limits, raftMetrics prometheus.Gatherer) (*http.Server, *httpapi.Handler) {
	handler := httpapi.New(node, httpapi.Options{
		Limits: limits, Logger: cfg.Logger.Named("http"), Version: cfg.Version, TLS: cfg.HTTPTLS,
		Gatherer: prometheus.Gatherers{node.Metrics(), raftMetrics},
	})
	server := httpapi.NewServer(handler)
	if cfg.HTTPTLS != nil {
		server.ErrorLog, server.ConnState = cfg.HTTPTLS.ErrorLog(server.ErrorLog), cfg.HTTPTLS.Idle
	}
	return server, handler
}

func serve(l net.Listener, server *http.Server, cfg cluster.Config) error {
	if cfg.HTTPTLS != nil {
		l = tls.NewListener(l, cfg.HTTPTLS.ServerConfig())
	}
	return server.Serve(l)
}
