package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/hashicorp/go-hclog"

	"fencepost/cluster/certs"
)

// Config says how a node runs. DefaultConfig has every field but the first
// block.
type Config struct {
	Name     string   // of this node, for people; unique in the cluster
	DataDir  string   // belongs to this node alone
	RaftAddr string   // host:port on which Raft listens
	HTTPAddr string   // host:port at which others reach this node's HTTP API
	Peers    []string // URLs of all nodes that form the cluster, this one included
	Expect   int      // how many nodes form it

	AdvertiseRaft string // host:port at which others reach Raft; "": RaftAddr

	RaftTLS *certs.Source // both ways, among members; nil: plain TCP
	HTTPTLS *certs.Source // of this node's API, and for its calls of others'; nil: plain HTTP

	Heartbeat   time.Duration // a follower that hears nothing for so long stands for election
	Election    time.Duration // an election that takes longer is started again
	LeaderLease time.Duration // a leader that reaches no quorum for so long steps down
	Commit      time.Duration // an idle leader tells the commit index this often
	RPC         time.Duration // bound of one Raft connection attempt and exchange
	DiskBound   time.Duration // a write to the log that takes longer ends the process

	MaxInFlightBytes int64 // commands that the leader has handed to Raft and not seen end
	MaxLeases        int   // live and ended
	MaxDataBytes     uint64
	MaxRequests      int // remembered
	MaxWatchers      int // at a time
	WatchHistory     int // events, and as many renewals, that are kept for watchers
	MaxQueue         int // waiters for one lease
	MaxWaiters       int // in all

	// WaiterGrace is how long a waiter whose client has gone keeps its place,
	// for the client to come back to.
	WaiterGrace time.Duration

	SnapshotEntries uint64        // entries after which the log is compacted,
	SnapshotBytes   uint64        // or bytes of entries,
	SnapshotEvery   time.Duration // or time, if anything was applied
	TrailingEntries uint64        // entries kept behind a snapshot for followers,
	TrailingBytes   uint64        // but not more than about so many bytes

	Version string // of this program, for people
	Logger  hclog.Logger
	// Exit ends the process at once; it is called from any goroutine when going
	// on would be wrong: a stalled disk, an entry that cannot be applied.
	Exit func(why string)
}

// DefaultConfig is the starting point of every node.
func DefaultConfig() Config {
	return Config{
		Expect:           3,
		Heartbeat:        250 * time.Millisecond,
		Election:         250 * time.Millisecond,
		LeaderLease:      200 * time.Millisecond,
		Commit:           25 * time.Millisecond,
		RPC:              2 * time.Second,
		DiskBound:        5 * time.Second,
		MaxInFlightBytes: 16 << 20,
		MaxLeases:        2_000_000,
		MaxDataBytes:     2 << 30,
		MaxRequests:      1_000_000,
		MaxQueue:         10_000,
		MaxWaiters:       100_000,
		WaiterGrace:      2 * time.Second,
		MaxWatchers:      10_000,
		WatchHistory:     65_536,
		SnapshotEntries:  100_000,
		SnapshotBytes:    64 << 20,
		SnapshotEvery:    time.Hour,
		TrailingEntries:  10_240,
		TrailingBytes:    64 << 20,
		Version:          "dev",
		Logger:           hclog.NewNullLogger(),
	}
}

// Validate says what is wrong before anything is opened.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	need(c.Name != "" && len(c.Name) <= 128, "name must be 1 to 128 bytes")
	need(c.DataDir != "", "a data directory is needed")
	need(c.RaftAddr != "" && c.HTTPAddr != "", "an HTTP and a Raft address are needed")
	need(c.Expect >= 1, "expect must be at least 1, not %d", c.Expect)
	need(len(c.Peers) >= c.Expect, "%d peers are named, but %d nodes are to form the cluster: name all of them, this one included", len(c.Peers), c.Expect)
	for _, addr := range []string{c.HTTPAddr, c.advertiseRaft()} {
		host, port, err := net.SplitHostPort(addr)
		ip := net.ParseIP(host)
		need(err == nil && host != "" && port != "" && port != "0" && (ip == nil || !ip.IsUnspecified()),
			"others cannot reach this node at %q: advertise a host:port of its own", addr)
	}
	for _, p := range c.Peers {
		u, err := url.Parse(p)
		need(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", "peer %q is not a URL like http://host:port", p)
		need(err != nil || c.HTTPTLS != nil || u.Scheme == "http", "peer %q is https, but this node has no certificate to serve its API with, and all nodes do the same", p)
		need(err != nil || c.HTTPTLS == nil || u.Scheme == "https", "peer %q is not https, but this node serves its API over TLS, and all nodes do the same", p)
	}
	need(c.Heartbeat >= 50*time.Millisecond, "heartbeat timeout %s is below 50ms", c.Heartbeat)
	need(c.Election >= c.Heartbeat, "election timeout %s is below the heartbeat timeout %s", c.Election, c.Heartbeat)
	need(c.LeaderLease <= c.Heartbeat && c.LeaderLease >= 20*time.Millisecond, "leader lease %s is not between 20ms and the heartbeat timeout %s", c.LeaderLease, c.Heartbeat)
	need(c.DiskBound >= 100*time.Millisecond, "disk bound %s is below 100ms", c.DiskBound)
	need(c.WaiterGrace >= 0, "waiter grace %s is negative", c.WaiterGrace)
	need(c.WatchHistory >= 1, "watch history must be at least 1 event, not %d", c.WatchHistory)
	need(c.Exit != nil, "Exit is not set")
	return errors.Join(errs...)
}

func (c *Config) advertiseRaft() string {
	if c.AdvertiseRaft != "" {
		return c.AdvertiseRaft
	}
	return c.RaftAddr
}

// httpURL is where others reach this node's API.
func (c *Config) httpURL() string { return c.url(c.HTTPAddr) }
