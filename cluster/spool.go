package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"fencepost/fsm"
	"fencepost/fsm/fsmpb"
)

const (
	spoolPattern = "restore-*.spool"
	spoolStep    = 8 << 20 // bytes that are written before they are flushed
	// spoolReserve is what an upload leaves free on the disk, in bytes.
	spoolReserve = 128 << 20
)

// ErrDiskFull: an upload would have taken the room that the log needs.
var ErrDiskFull = errors.New("the data directory's disk is almost full")

// BackupTooLargeError says that a backup is larger than what this node's data quota
// leaves room for.
type BackupTooLargeError struct{ Limit int64 }

func (e *BackupTooLargeError) Error() string {
	return fmt.Sprintf("the backup is larger than %d bytes", e.Limit)
}

// Spool is an uploaded backup on this node's disk, which has been verified whole.
type Spool struct {
	Backup *fsm.Backup
	file   *os.File // nil: it was verified alone, and nothing is kept
}

// Spool writes an upload to the data directory, which is where its size was planned
// for, and verifies it (see NewSpool). The caller must Close the spool.
//
// Of id, the key and path count. If a restore under it was decided, the upload is only
// read: a disk that this restore has filled must not refuse to tell what became of it,
// nor may what is too much now be told as refused while the same goes on here (P10).
func (n *Node) Spool(upload io.Reader, id *fsmpb.Request) (*Spool, error) {
	if n.restoredUnder(id) {
		b, err := fsm.ReadBackup(upload, nil)
		if err != nil {
			return nil, err
		}
		return &Spool{Backup: b}, nil
	}
	dir := ""
	if n.dir != nil {
		dir = n.dir.path
	}
	s, err := newSpool(dir, int64(min(n.cfg.MaxDataBytes, 1<<62))+fsm.BackupOverheadBytes, upload, n.diskFree)
	var large *BackupTooLargeError
	if (errors.Is(err, ErrDiskFull) || errors.As(err, &large)) && (n.restoring.runs(id) || n.restoredUnder(id)) {
		return nil, fmt.Errorf("%w: it is under way: %w", ErrOutcomeUnknown, err)
	}
	return s, err
}

// NewSpool writes an upload of at most limit bytes to a directory, and verifies it
// to the last byte. Errors are a *BackupTooLargeError or ErrDiskFull, or wrap fsm.ErrBadSnapshot,
// which is the backup's own fault, or what reading or writing has met.
func NewSpool(dir string, limit int64, upload io.Reader) (*Spool, error) {
	return newSpool(dir, limit, upload, diskFree)
}

func newSpool(dir string, limit int64, upload io.Reader, free func(dir string) (uint64, bool)) (*Spool, error) {
	f, err := os.CreateTemp(dir, spoolPattern)
	if err != nil {
		return nil, fmt.Errorf("spool the backup: %w", err)
	}
	s := &Spool{file: f}
	room := func(bytes int64) bool {
		n, known := free(filepath.Dir(f.Name()))
		return !known || n >= spoolReserve+uint64(bytes)
	}
	if err := s.fill(upload, limit, room); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.Backup, err = s.read(nil); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Its entries go into the log, and with the spool gone, into a snapshot.
	if size, err := f.Seek(0, io.SeekEnd); err != nil || !room(max(size, spoolStep)) {
		return nil, errors.Join(cmp.Or(err, ErrDiskFull), s.Close())
	}
	return s, nil
}

// fill goes to the disk step by step: a whole backup that is written back at once
// would hold up the log beside it, and a log that has no room left ends the node.
func (s *Spool) fill(upload io.Reader, limit int64, room func(bytes int64) bool) error {
	for size := int64(0); ; {
		if !room(spoolStep) {
			return ErrDiskFull
		}
		n, err := io.CopyN(s.file, upload, spoolStep)
		if size += n; size > limit {
			return &BackupTooLargeError{limit}
		}
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = s.file.Sync()
		}
		if err != nil {
			return fmt.Errorf("spool the backup: %w", err)
		}
	}
}

func (s *Spool) read(see func(*fsmpb.KeyRecord) error) (*fsm.Backup, error) {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the spooled backup: %w", err)
	}
	return fsm.ReadBackup(s.file, see)
}

// Each reads the keys again, in ascending order; see may keep them.
func (s *Spool) Each(see func(*fsmpb.KeyRecord) error) error {
	_, err := s.read(see)
	return err
}

// Close removes the spool. It is called once.
func (s *Spool) Close() error {
	if s.file == nil {
		return nil
	}
	return errors.Join(s.file.Close(), os.Remove(s.file.Name()))
}

// clearSpools removes what a process that ended in the middle of an upload left.
func (n *Node) clearSpools() {
	left, _ := filepath.Glob(n.dir.file(spoolPattern)) // an error is of the pattern
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			n.log.Warn("remove an abandoned upload", "error", err)
		}
	}
}
