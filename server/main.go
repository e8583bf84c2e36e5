// Command parleyd keeps multi-turn conversations for agent services and serves them over
// gRPC. Begin with run in run.go; what it can be told is in internal/config.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
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
	stderr := newLogQueue(os.Stderr)
	grpclog.SetLoggerV2(newGRPCLog(os.Getenv, stderr))
	code := start(ctx, os.Args[1:], os.Environ(), os.Stdout, stderr)
	stderr.close()
	os.Exit(code)
}

// newGRPCLog returns the log of gRPC itself, as text. GRPC_GO_LOG_SEVERITY_LEVEL turns it on and
// GRPC_GO_LOG_VERBOSITY_LEVEL applies; GRPC_GO_LOG_FORMATTER does not, for grpclog exports no
// logger that writes JSON to a writer of ours. Otherwise it writes nothing: what goes wrong in
// gRPC comes to us as an error, and its own log has neither our levels nor our form, and calls
// it an error that an agent serves no health.
func newGRPCLog(getenv func(string) string, w io.Writer) grpclog.LoggerV2 {
	infos, warnings, errs := io.Discard, io.Discard, io.Discard
	switch strings.ToLower(getenv("GRPC_GO_LOG_SEVERITY_LEVEL")) {
	case "info":
		infos = w
	case "warning":
		warnings = w
	case "error":
		errs = w
	}
	verbosity, _ := strconv.Atoi(getenv("GRPC_GO_LOG_VERBOSITY_LEVEL")) // 0 if it is not a number, as in gRPC
	return grpclog.NewLoggerV2WithVerbosity(infos, warnings, errs, verbosity)
}

// start runs the command line and returns the exit code.
func start(ctx context.Context, args, environ []string, stdout io.Writer, stderr *logQueue) int {
	root := config.NewCommand(args, environ, func(ctx context.Context, c *config.Config) error {
		stopping := sync.OnceFunc(func() { // Whatever hangs, the process ends.
			time.AfterFunc(c.StopGrace+stopMargin-lastMoment, func() { os.Exit(exitIO) })
		})
		context.AfterFunc(ctx, stopping)
		// A write to standard error whose reader has ended fails, but does not end the server. The
		// signal is caught and not ignored: programs of agents would inherit that.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		room := newHeadroom(environ)
		defer room.release()
		log := newLogger(c, stderr)
		slog.SetDefault(log) // for libraries and the standard log package
		return run(ctx, c, log, len(room), stopping)
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
