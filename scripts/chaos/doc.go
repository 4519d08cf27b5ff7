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
// The namespace is one of mounts, too: disks of nodes are mounted in it alone, and are
// gone with it.
//
// # What it needs
//
// Root, and for the nemeses that say so: ip (Debian: iproute2), nft (nftables), strace
// (strace), mkfs.ext4 (e2fsprogs), mount and fsfreeze (util-linux), and loop devices. What
// is missing is an error that names the package, not a nemesis left out.
//
// # Disks
//
// A power cut (disk.go) is the shutdown of an ext4 that the node has to itself, without
// flushing its log, and kill -9. What was not synced is lost: a file that was synced,
// and then overwritten and not synced, has to have its old content again, or the run
// fails. What the disk's own cache would lose, if it was not told to flush, is not: the
// device is a file. A hung disk is a frozen file system; failing and slow ones are
// made by strace.
//
// Where snapshots are needed (archive.go), the first node keeps its whole log, for the
// judges, and the others compact theirs.
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
//	transferstorm.go N18; membership.go N19
//	slowdisk.go   N11; hungdisk.go, keepers.go: N12; faildisk.go: N13; fulldisk.go: N14
//	powercut.go   N15; damage.go, harms.go: N16; halfsnapshot.go: N21
//	disk.go       a file system for each node; tracer.go: strace; archive.go: who compacts
//	starve.go     N22; blockedlog.go: N23; everything.go: N25
//	load.go       who loads; worker.go: with what; watcher.go: who watches
//	judge.go      all judges; ops.go, check*.go, outages.go: those that are here
//	report.go     what is printed and kept
package main
