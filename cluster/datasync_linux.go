package cluster

import (
	"os"
	"syscall"
)

// dataSync waits until what was written to the file is on the disk.
func dataSync(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR {
			return err
		}
	}
}
