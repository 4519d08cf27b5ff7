package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"fencepost/client"
	"fencepost/fsm"
)

// slowestBytes is the slowest rate, in bytes per second, at which a restore is
// waited for beyond --timeout.
const slowestBytes = 1 << 20

func newSnapshotCommand(env *environment) *cobra.Command {
	return newGroupCommand("snapshot", "Back up and restore", newSnapshotSaveCommand(env), newSnapshotRestoreCommand(env), newSnapshotInspectCommand(env))
}

// backupInfo is what is told of a backup.
type backupInfo struct {
	File        string `json:"file"`
	ClusterID   string `json:"cluster_id"`
	Index       uint64 `json:"index"`
	Taken       string `json:"taken"`
	Format      uint32 `json:"format"`
	Keys        uint64 `json:"keys"`
	DataBytes   uint64 `json:"data_bytes"`
	NewestToken uint64 `json:"newest_token"` // that has touched a key
	FileBytes   int64  `json:"file_bytes"`
}

func backupInfoOf(file string, b *fsm.Backup) backupInfo {
	return backupInfo{
		File: file, ClusterID: b.Header.ClusterId, Index: b.Header.Index, Taken: time.UnixMilli(b.Header.TakenUnixMs).UTC().Format(time.RFC3339),
		Format: b.Header.Version, Keys: b.Header.Keys, DataBytes: b.Header.DataBytes, NewestToken: b.NewestToken, FileBytes: b.Bytes,
	}
}

func (i *backupInfo) print(env *environment, what string) error {
	if env.output == outputJSON {
		return env.printJSON(i)
	}
	_, err := fmt.Fprintf(env.stdout, "%s: %s, whole and checked\ncluster %s at index %d, taken %s, format %d\n%d keys, %s of data, newest token of a key %d\n",
		i.File, what, i.ClusterID, i.Index, i.Taken, i.Format, i.Keys, byteCount(i.DataBytes), i.NewestToken)
	return err
}

func newSnapshotSaveCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use: "save FILE", Short: "Take a backup of the guarded keys into a file", Args: cobra.ExactArgs(1),
		Long: `Take a backup of the guarded keys and their watermarks, at one index, into a file.
It is checked as it comes in; the file appears under its name only when all of it is
there and on the disk. A backup has no leases: after a restore all are over.

--timeout bounds how long no byte may come, not the whole.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := env.client()
			if err != nil {
				return err
			}
			defer c.Close()
			info, err := env.saveBackup(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return info.print(env, "saved")
		},
	}
}

// saveBackup leaves either the whole backup or nothing at path.
func (e *environment) saveBackup(ctx context.Context, c *client.Client, path string) (i backupInfo, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.partial")
	if err != nil {
		return i, err
	}
	defer func() {
		if f.Close(); err != nil {
			os.Remove(f.Name())
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled := time.AfterFunc(e.timeout, cancel)
	defer stalled.Stop()
	b, err := c.Backup(ctx)
	if err != nil {
		return i, err
	}
	defer b.Close()
	p := newProgress(e.stderr, "received", 0)
	defer p.stop()
	came := p.reader(b, func() { stalled.Reset(e.timeout) })
	whole, err := fsm.ReadBackup(io.TeeReader(came, f), nil)
	if err != nil {
		return i, fmt.Errorf("the backup by %s at index %d did not come whole, and is not kept: %w", b.Node, b.Index, err)
	}
	if err := f.Chmod(0o600); err != nil { // it has every value
		return i, err
	}
	if err := f.Sync(); err != nil {
		return i, err
	}
	return backupInfoOf(path, whole), os.Rename(f.Name(), path)
}

func newSnapshotInspectCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use: "inspect FILE", Short: "Check a backup to its last byte, and tell what it is", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			b, err := env.readBackup(args[0])
			if err != nil {
				return err
			}
			info := backupInfoOf(args[0], b)
			return info.print(env, "a backup")
		},
	}
}

func (e *environment) readBackup(path string) (*fsm.Backup, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := int64(0)
	if s, err := f.Stat(); err == nil {
		size = s.Size()
	}
	p := newProgress(e.stderr, "checked", size)
	defer p.stop()
	b, err := fsm.ReadBackup(p.reader(f, func() {}), nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

func newSnapshotRestoreCommand(env *environment) *cobra.Command {
	var o client.RestoreOptions
	var key string
	c := &cobra.Command{
		Use: "restore FILE", Short: "Replace the contents of the running cluster by a backup's", Args: cobra.ExactArgs(1),
		Long: `Replace the guarded keys of the running cluster by those of a backup, on all nodes
in one step. The file is checked to its last byte first, here and by the leader; until
that step the old contents are served, and a restore that breaks off changes nothing.

Every token that was issued before is void then, on every key, and every later one is
above: above all that this cluster and the backup know of, and above what any cluster
restored from the same backup could have issued until now. All leases are over; a name
is granted again when its last holder's time and grace would have been over, since
the holder may still believe in it. Resources outside take the new tokens at once.

If a resource outside knows of a greater token all the same (its clock was years
ahead, say), give that with --above.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := env.readBackup(args[0])
			if err != nil {
				return err
			}
			c, ctx, done, err := env.connectFor(cmd.Context(), time.Duration(1+b.Bytes/slowestBytes)*time.Second)
			if err != nil {
				return err
			}
			defer done()
			if key != "" {
				ctx = client.WithIdempotencyKey(ctx, key)
			}
			p := newProgress(env.stderr, "sent", b.Bytes)
			defer p.stop()
			open := func() (io.ReadCloser, error) {
				f, err := os.Open(args[0])
				if err != nil {
					return nil, err
				}
				p.done.Store(0)
				return &sending{p.reader(f, func() {}), f}, nil
			}
			r, err := c.Restore(ctx, b.Bytes, open, o)
			if err != nil {
				return err
			}
			p.stop()
			if env.output == outputJSON {
				return env.printJSON(r)
			}
			_, err = fmt.Fprintf(env.stdout, "restored %d keys of cluster %s at index %d, taken %s\nevery token up to %d is void, all later ones are above\n",
				r.Keys, r.ClusterID, r.BackupIndex, r.Taken, r.Index)
			return err
		},
	}
	f := c.Flags()
	f.BoolVar(&o.Force, "force", false, "also if it is another cluster's backup")
	f.Uint64Var(&o.Above, "above", 0, "a token that a resource outside knows: all later ones are above it")
	f.StringVar(&key, "idempotency-key", "", "the key of a restore whose outcome is unknown, to learn it")
	return c
}

// sending is a file that is being sent.
type sending struct {
	io.Reader
	io.Closer
}
