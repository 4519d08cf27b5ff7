// Command chaos runs three fencepost processes and a load, does them harm, heals
// it, and judges every answer that was given. scripts/chaos.sh and `make chaos`
// build and start it.
//
//	chaos                             every nemesis, at its volume for a short run
//	chaos -nemesis N1,N6 -hits 100    these
//	chaos -release -ledger FILE       the volumes of a release, and a line for each
//	chaos -list                       the table
//
// It prints a line for each check, and at the end "N passed, N failed". Exit status:
// 0, 1 if a check failed, 2 if it could not be carried through. History, logs and
// what the judges show are kept of failing runs. It is a program of its own, so
// that what is shipped carries no test code, and it reaches the nodes as users do.
//
// # Where it happens
//
// Started by root it starts itself again in a network namespace of its own, and only
// there are packets ever dropped. The nodes are 127.0.0.11 to 13 and run under users
// 60011 to 60013: the kernel chooses by the user where a packet comes from, so that
// nftables can tell the nodes apart in both directions. Others begin on ports that
// are free, with the nemeses that drop nothing.
//
// # A run
//
// A run is one fresh cluster under one nemesis: start, load, hits, heal, wait for
// service, end the load, stop the nodes, dump their logs, judge (run.go). The logs
// are not compacted, so that they have every entry from the first. More hits than a
// nemesis's batch are several runs.
//
// The load (load.go, worker.go, watcher.go) is eight workers through the client
// package, on twenty names, with TTLs of one to three seconds; two that write all
// the time with little patience, to measure outages; one that goes on writing with
// old tokens; and four watchers. All is recorded by package cluster/check.
//
// # A new nemesis
//
// A type in a file of its own with the method of attack, and a row in table.go:
//
//	type myFault struct{ r *rand.Rand }
//
//	func (a *myFault) land(ctx context.Context, c *cluster) (*landing, error) {
//		l, err := c.claimLeader(ctx)   // nobody else attacks this node meanwhile
//		if err != nil {
//			return nil, err
//		}
//		at := c.recorder.Now()
//		…                              // the fault; on an error undo it, and l.node.release()
//		return &landing{at: at, what: "…", hold: between(a.r, time.Second, 5*time.Second), heal: func(ctx context.Context) (string, error) {
//			defer l.node.release()
//			…                          // undo it; l.node.restart(ctx) starts the node if it is down, and waits until it is ready
//			return "what shows that it was there", nil // or an error that is errMissed
//		}}, nil
//	}
//
// What may be replaced of a node, by the method prepare before it is started, or
// while it is down by whoever has claimed it: node.dir (its data, made if it is not
// there and given to node.uid: a file system mounted there beforehand has to belong
// to that user), node.args (appended to the arguments), and node.launch, which makes
// the command: wrap what it returned before, as blockedlog.go does, for another
// stderr, or for a tracer that execs the node. A process that ends by itself fails
// the run; an attack that means it to says so by node.mayEnd before. Checks of its
// own are the method verdicts; clients of its own are ended by finish (pauseholder.go).
//
// # Files
//
//	main.go       the plan, and its outcome; table.go: all nemeses
//	nemesis.go    what a nemesis is; run.go: one cluster under one of them
//	cluster.go    the cluster; node.go: a process; namespace.go, firewall.go: the network
//	kill.go       N1, N2; pause.go: N3, N4; pauseholder.go, holder.go: N5
//	partition.go  N6, N7, N8; slowlinks.go: N8S; replyproxy.go: N9; rolling.go: N17
//	membership.go N19
//	starve.go     N22; blockedlog.go: N23; everything.go: N25
//	load.go       who loads; worker.go: with what; watcher.go: who watches
//	judge.go      all judges; ops.go, check*.go, outages.go: those that are here
//	report.go     what is printed and kept
package main
