package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// sealedLog is a log store whose entries carry a checksum. bbolt does not notice a bit
// that the disk changed in a value: the entry would be applied here, or sent to others,
// as something that nobody had asked for. An entry that is not what was stored ends the
// process by broken, since Raft would go on without it (P14).
type sealedLog struct {
	raft.LogStore
	broken func(why string)
}

// sealMark is the first byte of a seal, which is followed by a CRC-32C.
const sealMark = 1

var errBrokenSeal = errors.New("the entry is not the one that was stored")

// StoreLogs stores the entries with their seals, in Extensions, which Raft has no use
// for. Entries that have any are refused.
func (s *sealedLog) StoreLogs(logs []*raft.Log) error {
	sealed := make([]*raft.Log, len(logs))
	for i, l := range logs {
		if len(l.Extensions) > 0 {
			return fmt.Errorf("entry %d has extensions, which nothing here makes", l.Index)
		}
		own := *l // the caller's has no seal
		own.Extensions = sealOf(l)
		sealed[i] = &own
	}
	return s.LogStore.StoreLogs(sealed)
}

func (s *sealedLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

func (s *sealedLog) GetLog(index uint64, l *raft.Log) error {
	err := s.LogStore.GetLog(index, l)
	if errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if err == nil {
		err = unseal(index, l)
	}
	if err != nil {
		err = fmt.Errorf("read entry %d of the log: %w", index, err)
		s.broken(err.Error() + ": wipe the data directory, and the node joins again as a new member")
	}
	return err
}

// sealOf covers all that Raft and the state machine look at. Its caller is the only one
// that uses l meanwhile.
func sealOf(l *raft.Log) []byte {
	var head [17]byte
	binary.LittleEndian.PutUint64(head[:], l.Index)
	binary.LittleEndian.PutUint64(head[8:], l.Term)
	head[16] = byte(l.Type)
	sum := crc32.Update(checksum(head[:]), crc32.MakeTable(crc32.Castagnoli), l.Data)
	return binary.LittleEndian.AppendUint32([]byte{sealMark}, sum)
}

// unseal checks that an entry is the one that was stored there, and takes its seal away.
func unseal(index uint64, l *raft.Log) error {
	if l.Index != index || string(l.Extensions) != string(sealOf(l)) {
		return errBrokenSeal
	}
	l.Extensions = nil
	return nil
}
