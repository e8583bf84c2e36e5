//go:build !unix

package command

import (
	"errors"
	"syscall"
)

// ownGroup returns nil. This system cannot end all processes of a program, so the settings refuse this kind of agent.
func ownGroup() *syscall.SysProcAttr { return nil }

// signalGroup returns errors.ErrUnsupported.
func signalGroup(int, syscall.Signal) error { return errors.ErrUnsupported }

// readDescriptor returns 0, as if nothing were there.
func readDescriptor(uintptr, []byte) int { return 0 }
