package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"
)

// Attacks on disks give each node an ext4 of its own, in a file. It is mounted in our
// mount namespace and nowhere else, and its loop device goes with the mount.

const (
	diskBytes    = 1 << 30 // of a sparse file
	unmountBound = 10 * time.Second
	canaryBytes  = 4096
	goingDown    = 0x8004587d // FS_IOC_GOINGDOWN, of a pointer to what follows
	withoutLog   = 2          // what has not been flushed is lost, as by a cut of power

)

// A disk is a file system with the data directory of one node.
type disk struct {
	node   *node
	image  string
	canary string // a file that shows whether what was not synced is lost
	synced []byte // what the canary has
	cuts   int
}

// A diskSet is one for each node.
type diskSet map[*node]*disk

// need finds a tool that we run, or says what to install.
func need(tool, pkg string) error {
	if _, err := exec.LookPath(tool); err != nil {
		return fmt.Errorf("%w: install %s", err, pkg)
	}
	return nil
}

// layDisks makes a disk for each of the nodes, which have not been started. undo is
// to be called whatever happens.
func layDisks(ctx context.Context, c *cluster) (disks diskSet, undo func() error, err error) {
	disks = make(diskSet)
	undo = func() error {
		var errs []error
		for _, d := range disks {
			errs = append(errs, d.unmount())
		}
		return errors.Join(errs...)
	}
	if err := errors.Join(need("mkfs.ext4", "e2fsprogs"), need("mount", "util-linux")); err != nil {
		return disks, undo, err
	}
	for _, n := range c.nodes {
		d := &disk{node: n, image: filepath.Join(c.dir, n.name+".ext4"), canary: filepath.Join(n.dir, "canary")}
		if err := d.make(ctx); err != nil {
			return disks, undo, fmt.Errorf("a disk for %s: %w", n.name, err)
		}
		disks[n] = d
	}
	return disks, undo, nil
}

func (d *disk) make(ctx context.Context) error {
	f, err := os.OpenFile(d.image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(diskBytes), f.Close(), os.Mkdir(d.node.dir, 0o700)); err != nil {
		return err
	}
	if err := run1(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-N", "1024", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.image); err != nil {
		return err
	}
	if err := d.mount(ctx); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(d.node.dir, 0o700), os.Chown(d.node.dir, d.node.uid, d.node.uid)); err != nil {
		return errors.Join(err, d.unmount())
	}
	return d.arm()
}

// run1 runs a command to its end.
func run1(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

// mount replays the file system's own journal where a cut made that necessary.
func (d *disk) mount(ctx context.Context) error {
	return run1(ctx, "mount", "-t", "ext4", "-o", "loop", d.image, d.node.dir)
}

// unmount waits until nothing holds it any more. It may be called again.
func (d *disk) unmount() error {
	for end := time.Now().Add(unmountBound); ; time.Sleep(20 * time.Millisecond) {
		err := syscall.Unmount(d.node.dir, 0)
		switch {
		case err == nil, errors.Is(err, syscall.EINVAL): // it is not mounted
			return nil
		case !errors.Is(err, syscall.EBUSY) || time.Now().After(end):
			return fmt.Errorf("unmount %s: %w", d.node.dir, err)
		}
	}
}

// arm writes the canary, and waits until it is on the disk.
func (d *disk) arm() error {
	d.cuts++
	d.synced = bytes.Repeat(fmt.Appendf(nil, "synced before cut %6d\n", d.cuts), 200)[:canaryBytes]
	f, err := os.OpenFile(d.canary, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(d.synced, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// cut is what a power failure does to the disk: what was synced is there, of the
// rest nothing. From now on all that touches it fails.
func (d *disk) cut() error {
	f, err := os.OpenFile(d.canary, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(bytes.Repeat([]byte("lost\n"), 1000)[:canaryBytes], 0); err != nil {
		return err
	}
	return shutDown(f)
}

// shutDown shuts the file system down that a file is in.
func shutDown(f *os.File) error {
	flag := uint32(withoutLog)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), goingDown, uintptr(unsafe.Pointer(&flag))); errno != 0 {
		return fmt.Errorf("shut %s down: %w", f.Name(), errno)
	}
	return nil
}

// back mounts the disk again after a cut, when the node has ended. errMissed: the
// canary did not lose what it should have.
func (d *disk) back(ctx context.Context) error {
	if err := d.unmount(); err != nil {
		return err
	}
	if err := d.mount(ctx); err != nil {
		return err
	}
	got, err := os.ReadFile(d.canary)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, d.synced) {
		return fmt.Errorf("%w: the file that shows it has %.25q on %s", errMissed, got, d.node.name)
	}
	return d.arm()
}
