//go:build unix

package command

import (
	"errors"
	"os"
	"syscall"
)

// ownGroup makes a program start in a process group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends a signal to each process of a group.
func signalGroup(group int, s syscall.Signal) error {
	err := syscall.Kill(-group, s)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// readDescriptor reads once. It returns 0 or less if nothing is there.
func readDescriptor(fd uintptr, b []byte) int {
	n, _ := syscall.Read(int(fd), b)
	return n
}
