package main

import "syscall"

// dieWithParent has the kernel kill the process that is started when the thread
// that starts it ends: with KILL, since nobody is left to follow up a TERM.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// adoptOrphans makes what our children leave behind our children, so that we can
// reap it: a group whose zombies nobody reaps would never be empty.
func adoptOrphans() {
	const prSetChildSubreaper = 36
	// It fails on no kernel since 3.4; without it only the reaping is left to init.
	syscall.Syscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}
