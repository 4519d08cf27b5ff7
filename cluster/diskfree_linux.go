package cluster

import "syscall"

// diskFree is how many bytes an ordinary process may still write to the file system
// of a directory; false: not known.
func diskFree(dir string) (bytes uint64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil || s.Bsize <= 0 {
		return 0, false
	}
	return s.Bavail * uint64(s.Bsize), true
}
