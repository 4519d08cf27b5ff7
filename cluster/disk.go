package cluster

import (
	"errors"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
)

// disk is what a node knows of the disk that its log is on. There are two kinds of
// failure. A write that found no room has changed nothing, so the node goes on
// without it, and tries again. After any other it is not known what the disk has:
// a kernel drops what it could not flush, and the next flush succeeds. Then the
// process ends, and reads from the disk what is there when it starts (P9).
//
// All methods may be called from any goroutine.
type disk struct {
	log     hclog.Logger
	metrics *metrics
	exit    func(why string)
	changed chan struct{} // buffer of one: it has become full

	mu     sync.Mutex // guards what follows
	full   error      // what a write met; nil: there is room, as far as is known
	since  time.Time
	broken error // why nothing is written any more
}

func newDisk(log hclog.Logger, m *metrics, exit func(string)) *disk {
	return &disk{log: log, metrics: m, exit: exit, changed: make(chan struct{}, 1)}
}

// noRoom says that a write has found the disk, or a quota on it, full. A flush that
// says so does not count: what it dropped had been taken.
func noRoom(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p) && p.Op == "write" && (errors.Is(p.Err, syscall.ENOSPC) || errors.Is(p.Err, syscall.EDQUOT))
}

// wrote takes what has become of a write to the log, and returns it.
func (d *disk) wrote(err error) error {
	switch {
	case err == nil:
		d.hasRoom()
	case noRoom(err):
		d.hasNone(err)
	default:
		d.end("the log cannot be written", err)
	}
	return err
}

// hasNone says it once, and not with each try.
func (d *disk) hasNone(err error) {
	d.mu.Lock()
	first := d.full == nil
	if first {
		d.full, d.since = err, time.Now()
	}
	d.mu.Unlock()
	if !first {
		return
	}
	d.metrics.diskFull.Set(1)
	d.log.Error("no room on the disk for the log: this node gives leadership away, and acknowledges nothing more than it can keep", "error", err)
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

func (d *disk) hasRoom() {
	d.mu.Lock()
	was, since := d.full, d.since
	d.full = nil
	d.mu.Unlock()
	if was != nil {
		d.metrics.diskFull.Set(0)
		d.log.Info("there is room on the disk again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// isFull is what the last write met, if that was a full disk.
func (d *disk) isFull() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.full
}

// end ends the process: in production it does not return, whoever calls it. From now
// on nothing is written, so that nobody is told anything that the disk may not have.
func (d *disk) end(what string, err error) {
	d.mu.Lock()
	if d.broken == nil {
		d.broken = err
	}
	d.mu.Unlock()
	d.exit(what + ": " + err.Error())
}

// usable is an error once the disk is not to be used any more.
func (d *disk) usable() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken
}
