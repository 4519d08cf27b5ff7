// Package check has the evidence of a run: every HTTP exchange of every client, as
// its caller saw it, and the committed log of a node. Two judges, which know nothing
// of each other, take it:
//
//   - Package replay goes through the log in its order with a state machine written
//     apart (package fsm/model), and compares each answer with what the entry at its
//     index decides there. With the order of real time, which it also checks, that
//     proves that the history is linearizable, in linear time.
//   - Package linear gives the answers alone to porcupine, which looks for any order
//     that explains them, and trusts no index or order that a server told.
//
// The simulator (package cluster/sim) and the chaos runs (scripts/chaos) use both.
package check
