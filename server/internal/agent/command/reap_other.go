//go:build !linux

package command

import (
	"context"
	"log/slog"
	"os"
	"syscall"
)

// Inherits returns false: only on Linux can the server be process 1 of a container.
func Inherits() bool { return false }

// Died returns no signal of the system, because Inherits is false.
func Died() os.Signal { return syscall.Signal(0) }

// Reap does nothing.
func (*Processes) Reap(context.Context, <-chan os.Signal, *slog.Logger) {}
