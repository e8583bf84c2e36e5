//go:build !unix

package redistest

import "syscall"

// Pause and Resume are not possible here: these signals are refused.
const (
	pauseSignal  = syscall.SIGTERM
	resumeSignal = syscall.SIGTERM
)

func endsWithParent() *syscall.SysProcAttr { return nil }
