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
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/buildinfo"
)

const (
	exitFailed = 1
	exitUsage  = 64 // EX_USAGE of sysexits.h.
)

const about = `parley is the client of a Parley server, which stores multi-turn conversations for agents.

  parley chat hello there              send a message and print the answer as it arrives
  parley chat                          interactive chat; Ctrl-D exits
  git diff | parley chat -c review -   send standard input as the message
  parley resume ID                     print the running answer of a conversation, or its last one
  parley list                          show all conversations
  parley show ID --output json         one conversation as JSON
  parley append --from new.jsonl       append many messages, a line for each of them
  parley record list -c ID             list the records of a conversation
  parley export > all.jsonl            all conversations, for parley import
  parley watch                         print changes as they are committed
  parley log search quarterly goals    find a text in the messages of the last days

` + aboutSignIn + `

Results go to standard output, everything else to standard error. The exit code is 0 on success,
1 if the server or an agent failed, and 64 if the command line is invalid.`

// console contains everything outside the server that a command uses.
type console struct {
	program                 string // The name under which it was called, for commands in its output.
	in                      io.Reader
	out, err                io.Writer
	inTerminal, outTerminal bool
	errTerminal             bool
	width                   int              // Of the terminal of standard output, in characters; 0 for none.
	interrupts              <-chan os.Signal // Receives a signal for each Ctrl-C.
	getenv                  func(string) string
	now                     func() time.Time
	build                   buildinfo.Info
}

// app is one run of the command line.
type app struct {
	console

	// Values of the global flags.
	address string
	output  string // "table" or "json"
	timeout time.Duration
	signIn  signIn

	addressSet, timeoutSet bool
	// chat and resume print the reasoning of the agent.
	reasoning bool
	// The command line is valid, so later errors are not usage errors.
	parsed bool
}

// run runs the command line args, which do not contain the program name, and returns the exit code. It
// returns when ctx ends.
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
		Short:             "Use a Parley server from the command line",
		Long:              about,
		Version:           a.build.String(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return a.check(c) },
	}
	address := "127.0.0.1:50051"
	if set := a.getenv("PARLEY_ADDRESS"); set != "" {
		address = set
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.address, "address", address,
		"address of the server, host:port or unix:PATH; PARLEY_ADDRESS sets the default")
	flags.StringVar(&a.output, "output", "table",
		"table for people, or json for programs: one document for each reply, one line for each event")
	flags.DurationVar(&a.timeout, "timeout", 30*time.Second, "time limit of a call, 0 for none; chat, resume, watch, "+
		"append --from, export, import, backup, log --follow and log erase have no limit unless this is set")
	a.signIn.addFlags(flags, a.getenv)

	root.AddCommand(
		a.newChatCommand(), a.newResumeCommand(), a.newCancelCommand(), a.newTurnsCommand(), a.newTurnCommand(),
		a.newCreateCommand(), a.newUpdateCommand(), a.newForkCommand(), a.newAppendCommand(),
		a.newListCommand(), a.newShowCommand(), a.newContextCommand(), a.newSummaryCommand(), a.newWatchCommand(),
		a.newRecordCommand(), a.newLogCommand(),
		a.newHistoryCommand(), a.newClearCommand(), a.newDeleteCommand(), a.newPurgeCommand(),
		a.newExportCommand(), a.newImportCommand(), a.newBackupCommand(),
		a.newAgentCommand(), a.newAgentsCommand(), a.newStatsCommand(), a.newMCPCommand(), a.newVersionCommand(),
	)
	return root
}

// check validates the global flags. It runs after the flags and arguments have been parsed and before the
// command.
func (a *app) check(command *cobra.Command) error {
	switch {
	case a.output != "table" && a.output != "json":
		return fmt.Errorf("--output %q: use table or json", a.output)
	case a.timeout < 0:
		return fmt.Errorf("--timeout %s: must not be negative", a.timeout)
	}
	a.addressSet = command.Flags().Changed("address")
	a.timeoutSet = command.Flags().Changed("timeout")
	a.parsed = true
	return nil
}

// duration is a flag value with the syntax of the server's settings: Go's syntax, or whole days. Package
// config of the server has the same parser, because clients import no package of the server. One table
// tests both.
type duration time.Duration

// Set parses values such as "90s", "1h30m" and "7d".
func (d *duration) Set(s string) error {
	text := s
	if before, found := strings.CutSuffix(s, "d"); found {
		if days, err := strconv.ParseInt(before, 10, 32); err == nil {
			text = strconv.FormatInt(24*days, 10) + "h"
		}
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("use a duration such as 90s, 1h30m or 7d")
	}
	*d = duration(parsed)
	return nil
}

// String returns "" for 0, so that the help text does not show 0 as a default.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// Type returns the name of the value in help texts.
func (d *duration) Type() string { return "duration" }

// usageError is the error of an invalid command line. The exit code is exitUsage.
type usageError string

func (u usageError) Error() string { return string(u) }

// errInterrupted is the cause of a context that Ctrl-C cancelled.
var errInterrupted = errors.New("interrupted")

// call runs f with a client. The context of f ends after --timeout and at Ctrl-C.
func (a *app) call(ctx context.Context, f func(context.Context, *client.Client) error) error {
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	return a.interruptibleCall(ctx, f)
}

// interruptibleCall runs f with a client. The context of f ends at Ctrl-C. f itself must apply --timeout to
// each of its calls.
func (a *app) interruptibleCall(ctx context.Context, f func(context.Context, *client.Client) error) error {
	ctx, stop := a.interruptible(ctx)
	defer stop()
	return a.withClient(func(c *client.Client) error {
		err := f(ctx, c)
		if status.Code(err) == codes.Canceled && errors.Is(context.Cause(ctx), errInterrupted) {
			return errInterrupted
		}
		return err
	})
}

// withTimeout returns a context that ends after --timeout. The caller must call cancel.
func (a *app) withTimeout(ctx context.Context) (limited context.Context, cancel context.CancelFunc) {
	if a.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.timeout)
}

// withClient runs f with a client of the server at --address.
func (a *app) withClient(f func(*client.Client) error) error {
	opts, err := a.signIn.options()
	if err != nil {
		return usageError(err.Error())
	}
	c, err := client.Dial(a.address, append(opts, grpc.WithUserAgent("parley/"+a.build.Version))...)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close())
}

// interruptible returns a context that ends with errInterrupted at Ctrl-C. The caller must call stop.
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
