//go:build unix && !linux

package redistest

import "syscall"

const (
	pauseSignal  = syscall.SIGSTOP
	resumeSignal = syscall.SIGCONT
)

// endsWithParent is only possible on Linux.
func endsWithParent() *syscall.SysProcAttr { return nil }
