//go:build !linux

package command

import (
	"context"
	"log/slog"
	"os"
)

// Inherits reports false: only Linux has containers whose process 1 this may be.
func Inherits() bool { return false }

// Reap returns at once.
func (*Processes) Reap(context.Context, <-chan os.Signal, *slog.Logger) {}
