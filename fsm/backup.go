package fsm

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"

	"fencepost/fsm/fsmpb"
)

// A backup is framed and checksummed as a snapshot is, and has the guarded keys
// alone: the first record is a BackupHeader, keys follow in ascending order, and the trailer has the
// sum of their digests. Leases are not in it: a restore brings none back.
const (
	backupMagic = "FENCEPOST BACKUP\n"
	// BackupVersion is the newest format of backups that this code can read, and
	// the one that it writes.
	BackupVersion = 1
)

// BackupOverheadBytes is more than what a backup has beside its keys. A key takes
// no more in it than the data quota counts for it.
const BackupOverheadBytes = 64 << 10

// A Backup is what ReadBackup found.
type Backup struct {
	Header *fsmpb.BackupHeader
	// Checksum is what a RestoreCommit must carry: the sum of the keys' digests.
	Checksum uint64
	// NewestToken is the greatest watermark of all.
	NewestToken uint64
	Bytes       int64 // of the whole backup
}

// WriteBackup writes a backup of the snapshot's keys, of the cluster with that id
// (the state knows it only once a member is registered), taken at that wall clock time. It may be called as WriteTo may. The state is never held twice.
func (p *Snapshot) WriteBackup(w io.Writer, clusterID string, takenUnixMS int64) (int64, error) {
	buffered := bufio.NewWriterSize(w, 256<<10)
	out := &snapshotWriter{w: buffered, sum: sha256.New()}
	out.raw([]byte(backupMagic))
	s := p.s
	out.record(&fsmpb.Record{Record: &fsmpb.Record_Backup{Backup: &fsmpb.BackupHeader{
		Version: BackupVersion, ClusterId: clusterID, Index: s.index, TakenUnixMs: takenUnixMS,
		Keys: uint64(s.keys.Len()), DataBytes: s.dataBytes,
	}}})
	s.keys.Scan(func(_ string, k *Key) bool {
		return out.record(&fsmpb.Record{Record: &fsmpb.Record_Key{Key: k.record()}})
	})
	out.record(&fsmpb.Record{Record: &fsmpb.Record_Trailer{Trailer: &fsmpb.Trailer{Records: out.records, Digest: s.keySum}}})
	if err := out.end(buffered); err != nil {
		return out.n, fmt.Errorf("write backup: %w", err)
	}
	return out.n, nil
}

// ReadBackup reads a backup to its end, and calls see, if it is not nil, with each
// key in ascending order; see may keep it, and its error ends the reading and is
// returned. Unless the error is nil the backup is not whole, whatever
// was seen: with ErrBadSnapshot in its chain that is the backup's fault.
func ReadBackup(r io.Reader, see func(*fsmpb.KeyRecord) error) (*Backup, error) {
	in := &snapshotReader{r: bufio.NewReaderSize(r, 256<<10), sum: sha256.New()}
	b, err := in.backup(see)
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	return b, nil
}

func (r *snapshotReader) backup(see func(*fsmpb.KeyRecord) error) (*Backup, error) {
	b, err := r.backupHeader()
	if err != nil {
		return nil, err
	}
	var last string
	var keys, bytes uint64
	for {
		rec, err := r.record()
		if err != nil {
			return nil, err
		}
		if t, ok := rec.GetRecord().(*fsmpb.Record_Trailer); ok {
			h := b.Header
			if t.Trailer.Records != keys+1 || h.Keys != keys || h.DataBytes != bytes || t.Trailer.Digest != b.Checksum {
				return nil, bad("it is not complete")
			}
			break
		}
		k := rec.GetKey()
		if k == nil {
			return nil, bad("its end is missing, or it has a record that is no key")
		}
		if wrong := badBackupKey(k, last, b.Header.Index); wrong != "" {
			return nil, bad("it has %s", wrong)
		}
		own := keyOf(k)
		last, keys, bytes = k.Key, keys+1, bytes+own.bytes()
		b.Checksum += own.digest()
		b.NewestToken = max(b.NewestToken, k.Watermark)
		if see != nil {
			if err := see(k); err != nil {
				return nil, err
			}
		}
	}
	if rec, err := r.record(); err != nil {
		return nil, err
	} else if rec != nil {
		return nil, bad("records follow the trailer")
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	b.Bytes = r.bytes
	return b, nil
}

func (r *snapshotReader) backupHeader() (*Backup, error) {
	if err := r.magic(backupMagic); err != nil {
		return nil, err
	}
	rec, err := r.record()
	if err != nil {
		return nil, err
	}
	h := rec.GetBackup()
	switch {
	case h == nil:
		return nil, bad("its header is missing")
	case h.Version != BackupVersion:
		return nil, bad("format %d is unknown to this version of fencepost, which reads format %d", h.Version, BackupVersion)
	case h.Index > MaxToken || h.ClusterId == "":
		return nil, bad("its header is of no cluster")
	}
	return &Backup{Header: h}, nil
}
