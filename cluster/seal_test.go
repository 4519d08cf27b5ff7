package cluster

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// Whatever bit of a stored entry the disk changes, the entry is read as it was or not
// at all, and then the node ends.
func TestP14_AChangedEntryIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	logs := []*raft.Log{
		{Index: 1, Term: 1, Type: raft.LogCommand, Data: []byte("first")},
		{Index: 2, Term: 1, Type: raft.LogCommand, Data: []byte("a value that somebody wrote")},
		{Index: 3, Term: 2, Type: raft.LogNoop},
	}
	open := func(see func(*sealedLog, *int)) {
		t.Helper()
		bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		defer bolt.Close()
		ended := 0
		see(&sealedLog{bolt, func(string) { ended++ }}, &ended)
	}
	open(func(s *sealedLog, ended *int) {
		if err := s.StoreLogs(logs); err != nil {
			t.Fatal(err)
		}
		for _, want := range logs {
			var got raft.Log
			if err := s.GetLog(want.Index, &got); err != nil || len(want.Extensions) > 0 || !reflect.DeepEqual(got.Data, want.Data) || len(got.Extensions) > 0 {
				t.Fatalf("got %+v, %v, want %+v", got, err, want)
			}
		}
		if err := s.GetLog(4, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) || *ended > 0 {
			t.Errorf("entry 4: %v; the node ended %d times", err, *ended)
		}
	})
	before := stored(t, path, 2)
	for bit := range len(before) * 8 {
		changed := append([]byte(nil), before...)
		changed[bit/8] ^= 1 << (bit % 8)
		store(t, path, 2, changed)
		open(func(s *sealedLog, ended *int) {
			var got raft.Log
			err := s.GetLog(2, &got)
			if (err != nil) != (*ended == 1) {
				t.Fatalf("bit %d: %v, and the node ended %d times", bit, err, *ended)
			}
			if err == nil && (got.Index != 2 || got.Term != 1 || got.Type != raft.LogCommand || string(got.Data) != string(logs[1].Data)) {
				t.Fatalf("bit %d: the entry was read as %+v", bit, got)
			}
		})
	}
	store(t, path, 2, stored(t, path, 1))
	open(func(s *sealedLog, ended *int) {
		if err := s.GetLog(2, new(raft.Log)); err == nil || *ended != 1 {
			t.Errorf("entry 1 was read in the place of entry 2: %v", err)
		}
	})
}

func rawLog(t *testing.T, path string, see func(*bbolt.Bucket) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bbolt.Tx) error { return see(tx.Bucket([]byte("logs"))) }); err != nil {
		t.Fatal(err)
	}
}

func stored(t *testing.T, path string, index uint64) (value []byte) {
	t.Helper()
	rawLog(t, path, func(b *bbolt.Bucket) error {
		value = append(value, b.Get(binary.BigEndian.AppendUint64(nil, index))...)
		return nil
	})
	return value
}

func store(t *testing.T, path string, index uint64, value []byte) {
	t.Helper()
	rawLog(t, path, func(b *bbolt.Bucket) error { return b.Put(binary.BigEndian.AppendUint64(nil, index), value) })
}
