//go:build manpages

// Command parley, built with the tag manpages, writes the manual pages of parley to the directory of its argument.
package main

import (
	"fmt"
	"os"

	"github.com/parleyhq/parley/server/deploy/release/manual"
)

func main() {
	a := &app{console: console{getenv: func(string) string { return "" }}} // Defaults are those without an environment.
	if err := manual.Write(a.newRootCommand(), "1", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
