package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// A journal file has a fixed size, and its blocks are written before it is used,
// so that a record costs the disk one flush of data and nothing else. It is a
// page that says whose it is, and then records, each on pages of its own:
//
//	magic, CRC-32C of what follows, generation, number in the generation, length,
//	log entries
//
// Records are used up in generations. Each begins at the first page with an
// empty record, which is what makes the generation before void. A generation is
// a random number, since clients' values are left behind in the pages.
const (
	journalPage    = 4096
	journalMagic   = "FENCEPOST JOURNAL 1\n"
	recordMagic    = 0x464a5231
	recordHeadSize = 28
	recordSumFrom  = 8 // the checksum covers the record from here on
)

// blockFile is what a journal needs of a file. WriteAt never extends it, and is
// durable once Sync has returned.
type blockFile interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Close() error
}

type journalFile struct {
	f          blockFile
	size       int64
	at         int64  // where the next record goes
	generation uint64 // of the records that count
	number     uint32 // of the next record
	buf        []byte
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func padded(n int) int64 { return int64(n+journalPage-1) / journalPage * journalPage }

// claimPage is the first page of a file that is this node's.
func claimPage(id string) []byte {
	b := append(make([]byte, 0, journalPage), journalMagic...)
	b = binary.AppendUvarint(b, uint64(len(id)))
	b = append(b, id...)
	b = binary.LittleEndian.AppendUint32(b, checksum(b))
	return append(b, make([]byte, journalPage-len(b))...)
}

// claim makes an empty file this node's.
func (j *journalFile) claim(id string) error {
	if _, err := j.f.WriteAt(claimPage(id), 0); err != nil {
		return err
	}
	return j.f.Sync()
}

// claimed says whether it is this node's.
func (j *journalFile) claimed(id string) (bool, error) {
	got := make([]byte, journalPage)
	if _, err := j.f.ReadAt(got, 0); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return bytes.Equal(got, claimPage(id)), nil
}

// begin makes all records void, and starts a generation.
func (j *journalFile) begin(generation uint64) error {
	j.at, j.generation, j.number = journalPage, generation, 0
	_, err := j.append(nil)
	return err
}

// append makes the entries durable as one record. It returns false, and has
// done nothing, if there is no room for them.
func (j *journalFile) append(logs []*raft.Log) (fits bool, err error) {
	if j.at+recordHeadSize+leastBytes(logs) > j.size {
		return false, nil // without encoding it
	}
	b := append(j.buf[:0], make([]byte, recordHeadSize)...)
	for _, l := range logs {
		b = appendLog(b, l)
	}
	length := len(b) - recordHeadSize
	end := j.at + padded(len(b))
	if end > j.size {
		return false, nil
	}
	b = append(b, make([]byte, padded(len(b))-int64(len(b)))...)
	binary.LittleEndian.PutUint32(b, recordMagic)
	binary.LittleEndian.PutUint64(b[8:], j.generation)
	binary.LittleEndian.PutUint32(b[16:], j.number)
	binary.LittleEndian.PutUint64(b[20:], uint64(length))
	binary.LittleEndian.PutUint32(b[4:], checksum(b[recordSumFrom:recordHeadSize+length]))
	j.buf = b
	if _, err := j.f.WriteAt(b, j.at); err != nil {
		return true, err
	}
	if err := j.f.Sync(); err != nil {
		return true, err
	}
	j.at, j.number = end, j.number+1
	return true, nil
}

// leastBytes is what a record of the entries takes at least.
func leastBytes(logs []*raft.Log) (n int64) {
	for _, l := range logs {
		n += int64(len(l.Data) + len(l.Extensions))
	}
	return n
}

var errDamaged = errors.New("the journal is damaged")

// replay reads the records that count. A record that a crash cut off was never
// acknowledged; one that is unreadable before others that can be read was, and
// is damage.
func (j *journalFile) replay() (logs []*raft.Log, err error) {
	b := make([]byte, j.size)
	if _, err := j.f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	j.at, j.generation, j.number = journalPage, 0, 0
	for j.at < j.size {
		r, ok := recordAt(b[j.at:])
		if !ok || j.number == 0 && r.number != 0 || j.number > 0 && (r.generation != j.generation || r.number != j.number) {
			break
		}
		j.generation = r.generation
		more, err := readLogs(r.body)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errDamaged, err)
		}
		logs = append(logs, more...)
		j.at += padded(recordHeadSize + len(r.body))
		j.number++
	}
	for at := j.at; at < j.size; at += journalPage {
		// Without a first record none can be there: it is written before them.
		if r, ok := recordAt(b[at:]); ok && (j.number == 0 || r.generation == j.generation && r.number >= j.number) {
			return nil, fmt.Errorf("%w: record %d cannot be read, and record %d can", errDamaged, j.number, r.number)
		}
	}
	return logs, nil
}

type record struct {
	generation uint64
	number     uint32
	body       []byte
}

// recordAt reads a record, if there is a whole one.
func recordAt(b []byte) (r record, ok bool) {
	if len(b) < recordHeadSize || binary.LittleEndian.Uint32(b) != recordMagic {
		return r, false
	}
	length := binary.LittleEndian.Uint64(b[20:])
	if length > uint64(len(b)-recordHeadSize) {
		return r, false
	}
	end := recordHeadSize + int(length)
	if checksum(b[recordSumFrom:end]) != binary.LittleEndian.Uint32(b[4:]) {
		return r, false
	}
	return record{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint32(b[16:]), b[recordHeadSize:end]}, true
}

func appendLog(b []byte, l *raft.Log) []byte {
	b = binary.AppendUvarint(b, l.Index)
	b = binary.AppendUvarint(b, l.Term)
	b = append(b, byte(l.Type))
	var appended int64
	if !l.AppendedAt.IsZero() {
		appended = l.AppendedAt.UnixNano()
	}
	b = binary.AppendVarint(b, appended)
	for _, field := range [][]byte{l.Data, l.Extensions} {
		b = binary.AppendUvarint(b, uint64(len(field)))
		b = append(b, field...)
	}
	return b
}

// readLogs reads the entries of a record whose checksum was right.
func readLogs(b []byte) (logs []*raft.Log, err error) {
	r := bytes.NewReader(b)
	for r.Len() > 0 {
		l := new(raft.Log)
		if l.Index, err = binary.ReadUvarint(r); err != nil {
			return nil, err
		}
		if l.Term, err = binary.ReadUvarint(r); err != nil {
			return nil, err
		}
		kind, err := r.ReadByte()
		if err != nil {
			return nil, err
		}
		l.Type = raft.LogType(kind)
		appended, err := binary.ReadVarint(r)
		if err != nil {
			return nil, err
		}
		if appended != 0 {
			l.AppendedAt = time.Unix(0, appended)
		}
		for _, field := range []*[]byte{&l.Data, &l.Extensions} {
			n, err := binary.ReadUvarint(r)
			if err != nil || n > uint64(r.Len()) {
				return nil, errors.Join(err, errors.New("an entry is longer than its record"))
			}
			if n > 0 {
				*field = make([]byte, n)
				if _, err := io.ReadFull(r, *field); err != nil {
					return nil, err
				}
			}
		}
		logs = append(logs, l)
	}
	return logs, nil
}
