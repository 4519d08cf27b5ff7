package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// soundStore is raft-boltdb with what it lacks: checksums, since bbolt has none for
// what it is given; an error where bbolt panics at a damaged page; and the right
// thing done about a failure (see disk). All methods may be called from any
// goroutine.
type soundStore struct {
	bolt interface {
		raft.LogStore
		raft.StableStore
	}
	disk *disk
}

// write does a transaction.
func (s *soundStore) write(do func() error) error {
	if err := s.disk.usable(); err != nil {
		s.disk.end("the log cannot be written", err) // before Raft panics about it
		return err
	}
	err := unpanicked(do)
	if err == nil {
		return nil // a small one may find room where entries find none
	}
	return s.disk.wrote(err)
}

// read does a reading transaction. That entries and votes cannot be read is nothing
// that Raft could go on with.
func (s *soundStore) read(what string, do func() error) error {
	err := unpanicked(do)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) && err.Error() != raftboltdb.ErrKeyNotFound.Error() { // by its text, as Raft does
		s.disk.end("the log cannot be read", fmt.Errorf("%s: %w", what, err))
	}
	return err
}

// unpanicked makes errors of what bbolt does when it meets a damaged page, or a file
// that has become shorter than what it has mapped.
func unpanicked(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the log is damaged: %v", p)
		}
	}()
	return do()
}

func (s *soundStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *soundStore) StoreLogs(logs []*raft.Log) error {
	own := make([]raft.Log, len(logs))
	sums := make([]*raft.Log, len(logs))
	for i, l := range logs {
		own[i], sums[i] = sealed(l), &own[i]
	}
	if err := s.write(func() error { return s.bolt.StoreLogs(sums) }); err != nil {
		return err
	}
	return s.disk.wrote(nil)
}

func (s *soundStore) DeleteRange(first, last uint64) error {
	return s.write(func() error { return s.bolt.DeleteRange(first, last) })
}

func (s *soundStore) GetLog(index uint64, l *raft.Log) error {
	return s.read(fmt.Sprintf("entry %d", index), func() error {
		if err := s.bolt.GetLog(index, l); err != nil {
			return err
		}
		return unseal(l, index)
	})
}

func (s *soundStore) FirstIndex() (first uint64, err error) {
	err = s.read("where the log begins", func() (err error) { first, err = s.bolt.FirstIndex(); return err })
	return first, err
}

func (s *soundStore) LastIndex() (last uint64, err error) {
	err = s.read("where the log ends", func() (err error) { last, err = s.bolt.LastIndex(); return err })
	return last, err
}

// currentTerm is the key whose write Raft panics about.
const currentTerm = "CurrentTerm"

func (s *soundStore) Set(key, value []byte) error {
	err := s.write(func() error { return s.bolt.Set(key, sealedValue(key, value)) })
	if err != nil && string(key) == currentTerm {
		s.disk.end("the term cannot be written", err)
	}
	return err
}

func (s *soundStore) Get(key []byte) (value []byte, err error) {
	err = s.read(string(key), func() error {
		b, err := s.bolt.Get(key)
		if err == nil {
			value, err = unsealValue(key, b)
		}
		return err
	})
	return value, err
}

func (s *soundStore) SetUint64(key []byte, n uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, n))
}

func (s *soundStore) GetUint64(key []byte) (uint64, error) {
	b, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		err := fmt.Errorf("%s has %d bytes", key, len(b))
		s.disk.end("the log cannot be read", err)
		return 0, err
	}
	return binary.BigEndian.Uint64(b), nil
}

// sealed is the entry with its checksum, which goes where Raft has room for what
// stores want to add.
func sealed(l *raft.Log) raft.Log {
	own := *l
	own.Extensions = binary.LittleEndian.AppendUint32(slices.Clone(l.Extensions), entrySum(l))
	return own
}

// unseal checks an entry that was sealed, and takes the seal off. Entries of before
// there were seals have none.
func unseal(l *raft.Log, index uint64) error {
	if l.Index != index {
		return fmt.Errorf("the log is damaged: where entry %d should be is entry %d", index, l.Index)
	}
	n := len(l.Extensions) - 4
	if len(l.Extensions) == 0 {
		return nil
	}
	if n < 0 {
		return fmt.Errorf("the log is damaged: entry %d has half a checksum", index)
	}
	sum := binary.LittleEndian.Uint32(l.Extensions[n:])
	if l.Extensions = l.Extensions[:n]; n == 0 {
		l.Extensions = nil
	}
	if sum != entrySum(l) {
		return fmt.Errorf("the log is damaged: entry %d differs from its checksum", index)
	}
	return nil
}

// entrySum leaves out when the entry was appended, which nothing depends on.
func entrySum(l *raft.Log) uint32 {
	b := binary.AppendUvarint(make([]byte, 0, 32+len(l.Data)+len(l.Extensions)), l.Index)
	b = binary.AppendUvarint(b, l.Term)
	b = append(b, byte(l.Type))
	b = binary.AppendUvarint(b, uint64(len(l.Data)))
	b = append(b, l.Data...)
	return checksum(append(b, l.Extensions...))
}

// valueSeal begins each value that is sealed. No value of before there were seals
// begins so: they are numbers below 2^56, addresses and ids.
const valueSeal = "\xffSUM"

func sealedValue(key, value []byte) []byte {
	b := append([]byte(valueSeal), 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(b[len(valueSeal):], checksum(slices.Concat(key, value)))
	return append(b, value...)
}

func unsealValue(key, b []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(b, []byte(valueSeal))
	if !ok {
		return b, nil
	}
	if len(rest) < 4 || binary.LittleEndian.Uint32(rest) != checksum(slices.Concat(key, rest[4:])) {
		return nil, fmt.Errorf("the log is damaged: %s differs from its checksum", key)
	}
	return rest[4:], nil
}
