package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// identity is who a data directory is. It is made once, with the directory: a
// node that was wiped is another node to Raft, so it cannot vote twice in a
// term under its old name (P9).
type identity struct {
	Version   int          `json:"version"`
	Name      string       `json:"name"`
	ID        string       `json:"id"`
	ClusterID string       `json:"cluster_id,omitempty"`
	Bootstrap []raftServer `json:"bootstrap,omitempty"` // the members that this node formed the cluster with
	// HasLog says that the log has been made, and marked with the ID. A log that
	// is lost after that took votes and acknowledged entries with it.
	HasLog bool `json:"has_log,omitempty"`
	// Removed says that the cluster has had this node and does not have it any more:
	// only a wiped node joins again.
	Removed bool `json:"removed,omitempty"`
	// Known are the URLs of the other members when this node last heard a leader: all
	// of its peers may have been replaced since it was configured, and a restarted node
	// has no state before it hears one again.
	Known []string `json:"known,omitempty"`
}

type raftServer struct {
	ID   string `json:"id"`
	Addr string `json:"addr"`
}

const identityVersion = 1

// dataDir is a data directory that this process has to itself.
type dataDir struct {
	path string
	lock *os.File
}

func openDataDir(path string) (*dataDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the data directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("data directory %s is in use by another process", path)
	}
	if err := finishRecovery(path, nil); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &dataDir{path, lock}, nil
}

func (d *dataDir) file(name string) string { return filepath.Join(d.path, name) }

func (d *dataDir) close() error { return d.lock.Close() }

// identity reads who this directory is, or makes it somebody.
func (d *dataDir) identity(name string) (identity, error) {
	id, err := readIdentity(d.path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(d.file("raft.db")); err == nil {
			return identity{}, fmt.Errorf("data directory %s has a log but no node.json: its identity is lost, so it must be wiped and join again", d.path)
		}
		id := identity{Version: identityVersion, Name: name, ID: name + "-" + randomHex(8)}
		return id, d.save(id)
	}
	if err != nil {
		return identity{}, err
	}
	if id.Name != name {
		return identity{}, fmt.Errorf("data directory %s belongs to node %q, not %q", d.path, id.Name, name)
	}
	return id, nil
}

// readIdentity reads who the directory is; os.ErrNotExist: nobody yet.
func readIdentity(path string) (identity, error) {
	b, err := os.ReadFile(filepath.Join(path, "node.json"))
	if err != nil {
		return identity{}, fmt.Errorf("read the identity of the data directory: %w", err)
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil || id.ID == "" {
		return identity{}, fmt.Errorf("data directory %s has a damaged node.json", path)
	}
	if id.Version != identityVersion {
		return identity{}, fmt.Errorf("data directory %s has format %d, which this version of fencepost does not know", path, id.Version)
	}
	return id, nil
}

// save replaces node.json whole or not at all.
func (d *dataDir) save(id identity) error {
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	tmp := d.file("node.json.tmp")
	if err := writeSynced(tmp, b); err != nil {
		return fmt.Errorf("write the identity of the data directory: %w", err)
	}
	if err := os.Rename(tmp, d.file("node.json")); err != nil {
		return fmt.Errorf("write the identity of the data directory: %w", err)
	}
	return syncDir(d.path)
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b)
	return hex.EncodeToString(b)
}
