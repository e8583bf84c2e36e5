// Command parleyd keeps multi-turn conversations for agent services and serves them over
// gRPC. Begin with run in run.go; what it can be told is in internal/config.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/grpclog"

	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/store/boltstore"
)

// version is set when the program is built with make.
var version = "dev"

// Exit codes, those of sysexits.h.
const (
	exitUsage   = 64 // bad flags or configuration
	exitDamaged = 65 // the store's file is damaged, or of another version
	exitIO      = 74 // the disk, an address or the store failed
	exitInUse   = 75 // another process has the store or the log
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // A second signal ends the process at once.
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
		// What goes wrong in gRPC comes to us as an error. Its own log has neither our levels
		// nor our form, and calls it an error that an agent serves no health.
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	}
	os.Exit(start(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// start runs the command line and returns the exit code.
func start(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	root := config.NewCommand(args, environ, func(ctx context.Context, c *config.Config) error {
		stopping := sync.OnceFunc(func() { // Whatever hangs, the process ends.
			time.AfterFunc(c.StopGrace+stopMargin-lastMoment, func() { os.Exit(exitIO) })
		})
		context.AfterFunc(ctx, stopping)
		room := newHeadroom(environ)
		defer room.release()
		return run(ctx, c, newLogger(c, stderr), len(room), stopping)
	}, offlineCommands()...)
	root.Version = version
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if _, bad := errors.AsType[*config.Error](err); bad {
		fmt.Fprintln(stderr, "parleyd:", err)
		return exitUsage
	}
	message, _, _ := strings.Cut(err.Error(), "\n") // Of a panic, the stack follows.
	fmt.Fprintln(stderr, "parleyd:", message)
	switch {
	case errors.Is(err, boltstore.ErrDamaged), errors.Is(err, boltstore.ErrSchema):
		return exitDamaged
	case errors.Is(err, boltstore.ErrInUse), errors.Is(err, interactionlog.ErrInUse):
		return exitInUse
	}
	return exitIO
}

// exitWith ends the process when nothing more comes from in, whatever it is doing.
func exitWith(in io.Reader) {
	_, _ = io.Copy(io.Discard, in)
	os.Exit(exitIO)
}
