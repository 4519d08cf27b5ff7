// Package sim is the simulator: whole clusters in fake time, under faults that a
// seed decides. Nodes, HTTP API and Go client are the real ones, and so are their
// HTTP connections; in the place of the disk is a store that can be slow, hang and
// lose what was being written, in that of the network are pipes whose links can be
// cut one way, delayed and held, and each node has a clock that may run fast or slow.
//
// A world (Run) is one cluster with its clients, from an empty disk to the verdicts
// of package check: a load runs while faults land, then everything heals and
// progress is demanded within a bound, then the evidence is judged. While it runs,
// the worlds also assert what only a simulation can see exactly: that no two
// clients believe in one exclusive lease at one instant (P3, P7), and that replicas
// are equal (P14).
//
// Time is fake, scheduling is not: a seed repeats the plan of faults and the load,
// and not the order in which goroutines run. A violation is found again by running
// its seed some more times.
//
//	make sim                                 # 2,000 failovers
//	SIM_FAILOVERS=100 SIM_SEED=7 go test -count 1 -run TestWorlds -v ./cluster/sim
package sim
