//go:build manpages

// Command parleyd, built with the tag manpages, writes the manual pages of parleyd to the directory of its argument.
package main

import (
	"fmt"
	"os"

	"github.com/parleyhq/parley/server/deploy/release/manual"
	"github.com/parleyhq/parley/server/internal/app"
)

func main() {
	if err := manual.Write(app.Command(), "8", os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
