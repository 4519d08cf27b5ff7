// Package check judges what a cluster has answered. It has two judges that know
// nothing of each other, and take the same evidence: every HTTP exchange of every
// client, as its caller saw it, and (the first one) the committed log of a node.
//
//   - Replay goes through the log in its order with a state machine written apart
//     (package fsm/model), and compares each answer with what the entry at its index
//     decides there. With the order of real time, which it also checks, that proves
//     that the history is linearizable, in linear time.
//   - Linear gives the answers alone to porcupine, which looks for any order that
//     explains them, and trusts no index, version or token order that a server told.
//
// The simulator (package cluster/sim) and the chaos runs (scripts/chaos) use both.
package check
