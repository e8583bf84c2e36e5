// Package app is the program parleyd: its command line, the wiring of its packages, and its stop.
// Start at [Main].
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/grpclog"

	"github.com/parleyhq/parley/client/buildinfo"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/interactionlog"
	"github.com/parleyhq/parley/server/internal/logqueue"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/store/boltstore"
	"github.com/parleyhq/parley/store/redisstore"
)

// Exit codes. Most are those of sysexits.h.
const (
	exitUnhealthy = 1 // as probes of containers expect it

	exitUsage   = 64 // the flags or the configuration are invalid
	exitDamaged = 65 // the store's file is damaged, or has the layout of another version
	exitIO      = 74 // the disk, an address or the store failed
	exitInUse   = 75 // another process uses the store or the interaction log
)

// Main runs the command line of the process and exits. build is what --version prints.
func Main(build buildinfo.Info) {
	runtime.MemProfileRate = 0 // The debug listener turns it on. It takes about 1 MiB of memory.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // A second signal then ends the process at once.
	stderr := logqueue.New(ctx, os.Stderr)
	grpclog.SetLoggerV2(newGRPCLog(os.Getenv, stderr))
	p := program{build: build, args: os.Args[1:], environ: os.Environ(), stdout: os.Stdout, stderr: stderr}
	code := p.start(ctx)
	stderr.Close(logFlushLimit)
	os.Exit(code)
}

// Command returns the command line of parleyd, for its manual pages. It must not be executed.
func Command() *cobra.Command { return config.NewCommand(nil, nil, nil, offlineCommands()...) }

// program is a command line with its environment.
type program struct {
	build         buildinfo.Info
	args, environ []string
	stdout        io.Writer
	stderr        *logqueue.Queue
}

// start runs the command line and returns the exit code.
func (p *program) start(ctx context.Context) int {
	root := config.NewCommand(p.args, p.environ, p.serve, offlineCommands()...)
	root.Version = p.build.String()
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if _, bad := errors.AsType[*config.Error](err); bad {
		fmt.Fprintln(p.stderr, "parleyd:", err)
		return exitUsage
	}
	message, _, _ := strings.Cut(err.Error(), "\n") // The error of a panic continues with its stack.
	fmt.Fprintln(p.stderr, "parleyd:", message)
	switch {
	case errors.Is(err, errUnhealthy):
		return exitUnhealthy
	case errors.Is(err, boltstore.ErrDamaged), errors.Is(err, boltstore.ErrSchema):
		return exitDamaged
	case errors.Is(err, boltstore.ErrInUse), errors.Is(err, redisstore.ErrInUse), errors.Is(err, interactionlog.ErrInUse):
		return exitInUse
	}
	return exitIO
}

// serve runs the server until ctx ends or the server fails.
func (p *program) serve(ctx context.Context, c *config.Config) error {
	startExitTimer := sync.OnceFunc(func() {
		time.AfterFunc(exitDeadline(c.StopGrace), func() { os.Exit(exitIO) })
	})
	context.AfterFunc(ctx, startExitTimer)
	// With SIGPIPE caught, a write to standard error after its reader has ended fails but does not
	// end the server. If the signal were ignored instead, programs of agents would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ballast := newGCBallast(p.environ)
	defer ballast.release()
	level := new(slog.LevelVar)
	level.Set(c.LogLevel)
	log := p.stderr.Logger(c.LogFormat, level)
	slog.SetDefault(log)               // for libraries and the standard log package
	hangups := make(chan os.Signal, 1) // One waiting signal is enough: it makes the server read everything again.
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	tracer, err := tracing.Open(ctx, p.environ, p.build.Version, log)
	if err != nil {
		return &config.Error{Faults: []string{err.Error()}}
	}
	if tracer != nil {
		log = slog.New(tracing.LogHandler(log.Handler()))
	}
	return run(ctx, c, options{
		version: p.build.Version, log: log, stderr: p.stderr, level: level, tracer: tracer, gcBallast: len(ballast),
		onStop:       startExitTimer,
		readSettings: p.readSettings, hangups: hangups,
	})
}

// readSettings reads the settings of the command line again, with the environment of the start.
func (p *program) readSettings(ctx context.Context) (c *config.Config, err error) {
	root := config.NewCommand(p.args, p.environ, func(_ context.Context, next *config.Config) error {
		c = next
		return nil
	})
	err = root.ExecuteContext(ctx)
	return c, err
}

// exitAtEOF reads in to its end and then exits the process.
func exitAtEOF(in io.Reader) {
	_, _ = io.Copy(io.Discard, in)
	os.Exit(exitIO)
}
