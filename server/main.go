// Command parleyd stores the conversations of agent services and serves them over gRPC, HTTP and
// MCP. Its settings are in internal/config. Start at [run].
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

// version is the version of the program. The Makefile sets it with -ldflags.
var version = "dev"

// Exit codes, as in sysexits.h.
const (
	exitUsage   = 64 // the flags or the configuration are invalid
	exitDamaged = 65 // the store's file is damaged, or has the layout of another version
	exitIO      = 74 // the disk, an address or the store failed
	exitInUse   = 75 // another process uses the store or the interaction log
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // A second signal then ends the process at once.
	stderr := newLogQueue(os.Stderr)
	grpclog.SetLoggerV2(newGRPCLog(os.Getenv, stderr))
	code := start(ctx, os.Args[1:], os.Environ(), os.Stdout, stderr)
	stderr.close()
	os.Exit(code)
}

// newGRPCLog returns the logger of grpc-go, which writes text. GRPC_GO_LOG_SEVERITY_LEVEL turns it
// on, and GRPC_GO_LOG_VERBOSITY_LEVEL applies. GRPC_GO_LOG_FORMATTER does not apply, because grpclog
// exports no JSON logger for another writer.
//
// The logger is off by default. Calls return the errors of gRPC anyway. Its log has neither the
// levels nor the format of the server's log, and it logs an error for each agent without a health
// service.
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
	verbosity, _ := strconv.Atoi(getenv("GRPC_GO_LOG_VERBOSITY_LEVEL")) // 0 if it is not a number, as in grpc-go
	return grpclog.NewLoggerV2WithVerbosity(infos, warnings, errs, verbosity)
}

// start runs the command line args and returns the exit code.
func start(ctx context.Context, args, environ []string, stdout io.Writer, stderr *logQueue) int {
	root := config.NewCommand(args, environ, func(ctx context.Context, c *config.Config) error {
		startExitTimer := sync.OnceFunc(func() { // The process ends even if the stop hangs.
			time.AfterFunc(c.StopGrace+stopMargin-exitTime, func() { os.Exit(exitIO) })
		})
		context.AfterFunc(ctx, startExitTimer)
		// With SIGPIPE caught, a write to standard error after its reader has ended fails but does not
		// end the server. If the signal were ignored instead, programs of agents would inherit that.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		ballast := newGCBallast(environ)
		defer ballast.release()
		log := newLogger(c, stderr)
		slog.SetDefault(log) // for libraries and the standard log package
		return run(ctx, c, log, len(ballast), startExitTimer)
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
	message, _, _ := strings.Cut(err.Error(), "\n") // The error of a panic continues with its stack.
	fmt.Fprintln(stderr, "parleyd:", message)
	switch {
	case errors.Is(err, boltstore.ErrDamaged), errors.Is(err, boltstore.ErrSchema):
		return exitDamaged
	case errors.Is(err, boltstore.ErrInUse), errors.Is(err, interactionlog.ErrInUse):
		return exitInUse
	}
	return exitIO
}

// exitAtEOF reads in to its end and then exits the process.
func exitAtEOF(in io.Reader) {
	_, _ = io.Copy(io.Discard, in)
	os.Exit(exitIO)
}
