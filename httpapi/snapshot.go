package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"fencepost/cluster"
	"fencepost/fsm"
	"fencepost/httpapi/wire"
)

const (
	// backupWriteBound is how long a reader of a backup may take to make room for
	// one piece of it. One that has stopped is cut then.
	backupWriteBound = 30 * time.Second
	// restorePatience is how long a node that forwards a restore waits for it.
	restorePatience = time.Hour
)

// backup answers GET /v1/snapshot with what this node has applied. Unless a stale
// one is asked for, the node must be close to the leader.
func (x *exchange) backup() {
	if err := x.h.node.Ready(); err != nil && !x.query.stale {
		x.refuse(wire.CodeNoLeader, "this node may be far behind ("+err.Error()+"): ask another one, or with consistency=stale")
		return
	}
	b, err := x.h.node.Backup()
	if err != nil {
		x.failed(err, false)
		return
	}
	defer b.Close()
	x.noteRead(cluster.ReadInfo{Index: b.Index(), Lag: x.status.LastContact})
	h := x.w.Header()
	h["Content-Type"] = []string{wire.ContentTypeBackup}
	h["Content-Disposition"] = []string{fmt.Sprintf(`attachment; filename="fencepost-%d.backup"`, b.Index())}
	x.w.WriteHeader(http.StatusOK)
	x.took = time.Since(x.received)
	if x.r.Method == http.MethodHead {
		return
	}
	out := &boundedWriter{w: &x.w, control: http.NewResponseController(&x.w)}
	if _, err := b.WriteTo(out); err != nil {
		x.h.log.Debug("a backup was cut off", "request_id", x.id, "error", err)
		panic(http.ErrAbortHandler) // so that half a backup does not look whole
	}
	out.done()
}

// boundedWriter gives each write a deadline.
type boundedWriter struct {
	w       io.Writer
	control *http.ResponseController
}

func (w *boundedWriter) Write(b []byte) (int, error) {
	err := w.control.SetWriteDeadline(time.Now().Add(backupWriteBound))
	if err != nil && !errors.Is(err, http.ErrNotSupported) { // by writers of tests
		return 0, err
	}
	return w.w.Write(b)
}

// done takes the deadline off the connection, which others may use.
func (w *boundedWriter) done() { _ = w.control.SetWriteDeadline(time.Time{}) }

// restore answers POST /v1/snapshot/restore. The body is verified whole, on disk,
// before anything else happens.
func (x *exchange) restore() {
	if !x.readKey() {
		return
	}
	if e := x.r.Header["Content-Encoding"]; len(e) > 1 || len(e) == 1 && !strings.EqualFold(e[0], "identity") {
		x.invalid("Content-Encoding", "must be identity or absent: bodies are taken as they are")
		return
	}
	x.streamed, x.patience = true, restorePatience
	if x.elsewhere(true) {
		return
	}
	upload := &uploadReader{r: x.r.Body}
	spool, err := x.h.node.Spool(upload, x.request(x.r.URL.Path, func(*digest) {}))
	if err != nil {
		x.notSpooled(err, upload.err)
		return
	}
	defer func() {
		if err := spool.Close(); err != nil {
			x.h.log.Warn("remove an uploaded backup", "error", err)
		}
	}()
	done, err := x.h.node.Restore(x.r.Context(), spool, cluster.RestoreOptions{
		Force: x.query.force, Above: x.query.above,
		Request: x.request(x.r.URL.Path, func(d *digest) {
			d.number(spool.Backup.Checksum)
			d.number(spool.Backup.Header.Index) // tokens afterwards are above it (P1)
			d.number(x.query.above)
		}),
	})
	if err != nil {
		x.notRestored(err)
		return
	}
	x.setIndex(done.Index)
	x.document(wire.Restored{
		Restored: true, Index: done.Index, ClusterID: done.ClusterID, BackupIndex: done.BackupIndex,
		Taken: time.UnixMilli(done.TakenUnixMS).UTC().Format(time.RFC3339Nano), Keys: done.Keys, DataBytes: done.DataBytes,
	})
}

// uploadReader remembers what an upload broke off with.
type uploadReader struct {
	r   io.Reader
	err error
}

func (u *uploadReader) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if err != nil && err != io.EOF {
		u.err = err
	}
	return n, err
}

// notSpooled answers an upload of which there is no use.
func (x *exchange) notSpooled(err, broken error) {
	var large *cluster.BackupTooLargeError
	switch {
	case errors.Is(err, cluster.ErrOutcomeUnknown): // another attempt's
		x.w.Header().Set("Connection", "close")
		x.failed(err, true)
	case errors.As(err, &large):
		x.w.Header().Set("Connection", "close") // the rest of it is not read
		x.problem(&wire.Problem{Code: wire.CodeTooLarge, Field: "body", LimitBytes: uint64(large.Limit), Detail: "the backup is larger than the data quota allows"})
	case errors.Is(err, cluster.ErrDiskFull):
		x.w.Header().Set("Connection", "close")
		x.refuse(wire.CodeQuotaReached, err.Error()+": nothing was changed")
	case errors.Is(broken, os.ErrDeadlineExceeded):
		x.w.Header().Set("Connection", "close")
		x.invalid("body", "did not arrive at the least rate of 1 KiB/s")
	case broken != nil:
		x.w.Header().Set("Connection", "close")
		x.invalid("body", "could not be read whole")
	case errors.Is(err, fsm.ErrBadSnapshot):
		x.invalid("body", "is not a whole backup, and nothing was changed: "+err.Error())
	default:
		x.failed(err, false)
	}
}

// notRestored answers a restore that did not happen, or perhaps did.
func (x *exchange) notRestored(err error) {
	switch {
	case errors.Is(err, cluster.ErrOutcomeUnknown):
		x.failed(err, true)
	case errors.Is(err, cluster.ErrForeignBackup):
		x.refuse(wire.CodeOtherCluster, err.Error()+"; force=true restores it nevertheless")
	case errors.Is(err, cluster.ErrKeyReused):
		x.refuse(wire.CodeKeyReused, err.Error())
	case errors.Is(err, fsm.ErrJumpTooFar) && x.query.above > 0:
		x.invalid("above", "leaves no room: "+err.Error())
	case errors.Is(err, fsm.ErrJumpTooFar):
		x.invalid("body", "cannot be restored: "+err.Error())
	case errors.Is(err, cluster.ErrRestoreRunning):
		x.refuse(wire.CodeTooManyRequests, err.Error())
	case errors.Is(err, cluster.ErrBrokenOff):
		code := wire.CodeNoLeader
		if errors.Is(err, cluster.ErrShuttingDown) {
			code = wire.CodeShuttingDown
		} else if errors.Is(err, cluster.ErrOverloaded) {
			code = wire.CodeOverloaded
		}
		x.refuse(code, err.Error())
	default:
		x.failed(err, true)
	}
}
