//go:build !linux

package main

import "syscall"

// Only Linux can tie a process to its parent's life. Elsewhere the token alone
// holds back the command of a fencepost that was killed.
func dieWithParent(*syscall.SysProcAttr) {}

func adoptOrphans() {}
