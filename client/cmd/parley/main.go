//go:build !manpages

// Command parley is the command line client of a Parley server, for terminals and scripts. It asks
// agents, and shows, changes, exports and imports conversations. Run `parley chat hello there` or
// `parley --help` first. The scripts in testdata show every command with its output.
//
// Most files contain one command and have its name. The other files are shared by the commands:
//
//   - answer.go sends a message and follows its turn to the end.
//   - view.go prints the events of a turn, print.go prints replies.
//   - lines.go reads JSON lines, progress.go shows the progress of long commands.
//   - explain.go turns errors into messages.
//
// Start at newRootCommand.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/parleyhq/parley/client/buildinfo"
)

// The Makefile sets these with -ldflags: '-X main.version=…'.
var (
	version = buildinfo.Unset
	commit  string
	date    string
)

func main() {
	os.Exit(runMain())
}

// runMain runs the program with the real console and returns the exit code.
func runMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	// Ctrl-C cancels a turn or ends the command; see console.interrupts. It is a channel and not a
	// context, because the program reads the events of a cancelled turn to their end, and an
	// interactive chat continues after Ctrl-C.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)

	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		width = 0 // Standard output is not a terminal, or one that does not say its size.
	}
	return run(ctx, os.Args[1:], console{
		program:     os.Args[0],
		in:          os.Stdin,
		out:         os.Stdout,
		err:         os.Stderr,
		inTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		outTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		errTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		width:       width,
		interrupts:  interrupts,
		getenv:      os.Getenv,
		now:         time.Now,
		build:       buildinfo.Of(version, commit, date),
	})
}
