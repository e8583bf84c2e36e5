//go:build !linux

package command

import (
	"context"
	"log/slog"
	"os"
)

// Inherits returns false: only on Linux can the server be process 1 of a container.
func Inherits() bool { return false }

// Reap does nothing.
func (*Processes) Reap(context.Context, <-chan os.Signal, *slog.Logger) {}
