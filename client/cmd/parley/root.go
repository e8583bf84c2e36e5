package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
)

const (
	exitFailed = 1
	exitUsage  = 64 // EX_USAGE of sysexits.h.
)

const about = `parley talks to a Parley server, which keeps multi-turn conversations for agents.

  parley chat hello there              ask, and see the answer as it comes
  parley chat                          converse; Ctrl-D leaves
  git diff | parley chat -c review -   ask what is on standard input
  parley resume ID                     see the answer that is being given there, or the last one
  parley list                          what the server keeps
  parley show ID --output json         one conversation, for programs
  parley export > all.jsonl            all of them, for parley import
  parley watch                         what happens, as it happens
  parley log search quarterly goals    who said that, in the last days

What was asked for goes to standard output, all else to standard error. The exit code is 0,
1 when the server or an agent failed, 64 when the command line makes no sense.`

// console is all that a command knows of the world around it.
type console struct {
	program                 string // As it was called, for lines to paste.
	in                      io.Reader
	out, err                io.Writer
	inTerminal, outTerminal bool
	errTerminal             bool
	interrupts              <-chan os.Signal // Ctrl-C.
	getenv                  func(string) string
	now                     func() time.Time
}

// app is one run of the command line.
type app struct {
	console

	// The global flags.
	address string
	output  string // "table" or "json"
	timeout time.Duration
	tls     bool

	addressSet, timeoutSet bool
	credentials            credentials.TransportCredentials // nil: as client.Dial chooses.
	parsed                 bool                             // The command line made sense: from here on, errors are failures.
}

// run runs the command line args, without the program's name, and returns the exit code.
// The end of ctx ends it.
func run(ctx context.Context, args []string, c console) int {
	a := &app{console: c}
	root := a.newRootCommand()
	root.SetArgs(args)
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	command, err := root.ExecuteContextC(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case !a.parsed || errors.As(err, &usage):
		fmt.Fprintf(c.err, "parley: %s; see '%s --help'\n", oneLine(err.Error()), command.CommandPath())
		return exitUsage
	default:
		fmt.Fprintf(c.err, "parley: %s\n", oneLine(a.explain(err)))
		return exitFailed
	}
}

func (a *app) newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:               "parley",
		Short:             "Talk to a Parley server",
		Long:              about,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return a.check(c) },
	}
	address := "127.0.0.1:50051"
	if set := a.getenv("PARLEY_ADDRESS"); set != "" {
		address = set
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.address, "address", address, "server, as host:port or unix:PATH; or set PARLEY_ADDRESS")
	flags.StringVar(&a.output, "output", "table", "table for people, json for programs: one document a reply, one line an event")
	flags.DurationVar(&a.timeout, "timeout", 30*time.Second, "give up on a call after this long, 0 never; chat, resume, watch, export, import, backup, log --follow and log erase wait unless this is set")
	flags.BoolVar(&a.tls, "tls", false, "TLS with the system's certificates (default: unless the server is on this machine)")

	root.AddCommand(
		a.newChatCommand(), a.newResumeCommand(), a.newCancelCommand(), a.newTurnsCommand(),
		a.newCreateCommand(), a.newForkCommand(), a.newAppendCommand(),
		a.newListCommand(), a.newShowCommand(), a.newContextCommand(), a.newSummaryCommand(), a.newWatchCommand(), a.newLogCommand(),
		a.newClearCommand(), a.newDeleteCommand(), a.newPurgeCommand(),
		a.newExportCommand(), a.newImportCommand(), a.newBackupCommand(),
		a.newAgentCommand(), a.newAgentsCommand(), a.newStatsCommand(), a.newMCPCommand(), a.newVersionCommand(),
	)
	return root
}

// check runs once flags and arguments have been parsed, before any command.
func (a *app) check(command *cobra.Command) error {
	switch {
	case a.output != "table" && a.output != "json":
		return fmt.Errorf("--output %q: only table and json are known", a.output)
	case a.timeout < 0:
		return fmt.Errorf("--timeout %s: less than nothing", a.timeout)
	}
	a.addressSet = command.Flags().Changed("address")
	a.timeoutSet = command.Flags().Changed("timeout")
	if command.Flags().Changed("tls") {
		a.credentials = insecure.NewCredentials()
		if a.tls {
			a.credentials = credentials.NewTLS(nil)
		}
	}
	a.parsed = true
	return nil
}

// duration is a flag as the server's settings are: in Go's syntax, or in whole days.
type duration time.Duration

// Set takes "90s", "1h30m", "7d".
func (d *duration) Set(s string) error {
	text := s
	if before, found := strings.CutSuffix(s, "d"); found {
		if days, err := strconv.ParseInt(before, 10, 32); err == nil {
			text = strconv.FormatInt(24*days, 10) + "h"
		}
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("write a duration as in 90s, 1h30m or 7d")
	}
	*d = duration(parsed)
	return nil
}

// String is empty for 0, so that help does not call it the default.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// Type is what help calls the value.
func (d *duration) Type() string { return "duration" }

// usageError says that a command cannot do what it was told to, whatever the server holds.
type usageError string

func (u usageError) Error() string { return string(u) }

// errInterrupted is the cause of a context that ended with Ctrl-C.
var errInterrupted = errors.New("interrupted")

// call runs f with a client, under --timeout, until Ctrl-C.
func (a *app) call(ctx context.Context, f func(context.Context, *client.Client) error) error {
	ctx, cancel := a.limited(ctx)
	defer cancel()
	return a.calls(ctx, f)
}

// calls runs f, which puts each of its calls under --timeout, with a client until Ctrl-C.
func (a *app) calls(ctx context.Context, f func(context.Context, *client.Client) error) error {
	ctx, stop := a.interruptible(ctx)
	defer stop()
	return a.dialled(func(c *client.Client) error {
		err := f(ctx, c)
		if status.Code(err) == codes.Canceled && errors.Is(context.Cause(ctx), errInterrupted) {
			return errInterrupted
		}
		return err
	})
}

// limited returns a context that ends after --timeout. cancel must be called.
func (a *app) limited(ctx context.Context) (limited context.Context, cancel context.CancelFunc) {
	if a.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.timeout)
}

// dialled runs f with a client.
func (a *app) dialled(f func(*client.Client) error) error {
	opts := []grpc.DialOption{grpc.WithUserAgent("parley/" + version)}
	if a.credentials != nil {
		opts = append(opts, grpc.WithTransportCredentials(a.credentials))
	}
	c, err := client.Dial(a.address, opts...)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close())
}

// interruptible returns a context that ends with errInterrupted at Ctrl-C. stop must be called.
func (a *app) interruptible(ctx context.Context) (interruptible context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-a.interrupts:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
