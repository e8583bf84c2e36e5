// Command parley talks to a Parley server from a terminal and from scripts: it asks agents,
// and shows, fills and clears conversations. Begin with `parley chat hello there`, or with
// `parley --help`; the scripts in testdata read like a manual.
//
// In the code begin with newRootCommand in root.go. There is one file for each command or two,
// named for them; answer.go is how a question is followed to its end, view.go how turns are
// shown, print.go how replies are, progress.go how far long work is, explain.go how errors are.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

// Set by the linker: -ldflags '-X main.version=…'.
var version = "dev"

func main() {
	os.Exit(start())
}

func start() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	// Ctrl-C cancels a turn or ends the command, see console.interrupts; not a context, since
	// what a turn brings is read on, and an interactive chat outlives it.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)

	return run(ctx, os.Args[1:], console{
		program:     os.Args[0],
		in:          os.Stdin,
		out:         os.Stdout,
		err:         os.Stderr,
		inTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		outTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		errTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		interrupts:  interrupts,
		getenv:      os.Getenv,
		now:         time.Now,
	})
}
