package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"fencepost/cluster"
)

func newDebugCommand(env *environment) *cobra.Command {
	return newGroupCommand("debug", "Look into a node that is stopped", newDebugLogCommand(env))
}

func newDebugLogCommand(env *environment) *cobra.Command {
	var dir string
	var from, to uint64
	c := &cobra.Command{
		Use:   "log --data-dir DIR",
		Short: "Print the log of a stopped node, entry by entry",
		Long: `Print the log of a stopped node, entry by entry. It only reads: nothing in the
directory is changed, and the node starts again afterwards as if nothing had been.
A node that runs has its directory to itself: stop it first.

The indexes are those that the API tells: a token is the index of the entry that
granted it. Entries before the newest snapshot are gone but for the last ones.

Raft does not write down how far the cluster has committed. "committed" is how far
this directory alone proves it; entries behind that may have been committed or not.
Of these, one that a majority of the nodes has, in the newest term that is in the
logs of them all, is committed, with all before it.

With -o json each line is a document: first {"info": ...}, then one for each entry,
whose command is in the JSON form of protobuf (64-bit numbers are strings, bytes are
base64):

  fencepost debug log --data-dir D -o json | jq -c 'select(.command.acquire)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return usageError(errors.New("--data-dir is needed: the directory of a node that is stopped"))
			}
			if to != 0 && from > to {
				return usageError(fmt.Errorf("--from %d is after --to %d", from, to))
			}
			log, err := cluster.OpenLog(dir)
			if err != nil {
				return err
			}
			err = dumpLog(log, from, to, env.stdout, env.output == outputJSON)
			return errors.Join(err, log.Close())
		},
	}
	f := c.Flags()
	f.StringVar(&dir, "data-dir", "", "directory of the node")
	f.Uint64Var(&from, "from", 0, "first index (default: the first there is)")
	f.Uint64Var(&to, "to", 0, "last index (default: the last there is)")
	return c
}

func dumpLog(log *cluster.StoredLog, from, to uint64, out io.Writer, asJSON bool) error {
	w := bufio.NewWriter(out)
	head, line := writeInfoText, writeEntryText
	if asJSON {
		head, line = writeInfoJSON, writeEntryJSON
	}
	if err := head(w, log.Info(), log.Count(from, to)); err != nil {
		return fmt.Errorf("print the log: %w", err)
	}
	bad := 0
	err := log.Each(from, to, func(e cluster.LogEntry) error {
		if e.Err != nil {
			bad++
		}
		if err := line(w, &e); err != nil {
			return fmt.Errorf("print the log: %w", err)
		}
		return nil
	})
	if err != nil {
		return errors.Join(err, w.Flush())
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the log: %w", err)
	}
	if bad > 0 {
		return fmt.Errorf("%d entries cannot be decoded: they are damaged, or of a newer version of fencepost", bad)
	}
	return nil
}

// logInfo is the first line of a dump in JSON. Its field names are kept, and so
// are those of logEntry: package cluster/check reads them.
type logInfo struct {
	Node        string              `json:"node"`
	ID          string              `json:"id"`
	ClusterID   string              `json:"cluster_id"`
	First       uint64              `json:"first"` // in the log; 0: it is empty
	Last        uint64              `json:"last"`
	Entries     uint64              `json:"entries"` // lines that follow
	Committed   uint64              `json:"committed"`
	Snapshot    cluster.LogPosition `json:"snapshot"`
	CurrentTerm uint64              `json:"current_term"`
	VotedFor    string              `json:"voted_for,omitempty"`
	VotedInTerm uint64              `json:"voted_in_term,omitempty"`
	FromJournal int                 `json:"from_journal"`
	Abandoned   int                 `json:"abandoned,omitempty"`
}

type logEntry struct {
	Index   uint64              `json:"index"`
	Term    uint64              `json:"term"`
	Type    string              `json:"type"`
	Command json.RawMessage     `json:"command,omitempty"`
	Servers []cluster.LogServer `json:"servers,omitempty"`
	Error   string              `json:"error,omitempty"`
	Data    []byte              `json:"data,omitempty"` // with an error: what cannot be decoded
}

func writeInfoJSON(w *bufio.Writer, i cluster.LogInfo, entries uint64) error {
	d := logInfo{
		Node: i.Node, ID: i.ID, ClusterID: i.ClusterID, First: i.First, Last: i.Last,
		Committed: i.Committed, Snapshot: i.Snapshot, CurrentTerm: i.CurrentTerm, VotedFor: i.VotedFor,
		VotedInTerm: i.VotedInTerm, FromJournal: i.FromJournal, Abandoned: i.Abandoned, Entries: entries,
	}
	return jsonLine(w, map[string]any{"info": d})
}

func writeEntryJSON(w *bufio.Writer, e *cluster.LogEntry) error {
	d := logEntry{Index: e.Index, Term: e.Term, Type: e.Type, Servers: e.Servers}
	if e.Err != nil {
		d.Error, d.Data = e.Err.Error(), e.Data
	}
	if e.Command != nil {
		// protojson puts in spaces at random, which the encoder takes out again.
		b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e.Command)
		if err != nil {
			return err
		}
		d.Command = b
	}
	return jsonLine(w, d)
}

func jsonLine(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
