// Signin creates an authority and certificates of a server and a client in a folder, for tests in other languages:
//
//	go run ./server/parleydtest/signin DIR
package main

import (
	"fmt"
	"os"

	"github.com/parleyhq/parley/server/parleydtest"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: signin DIR")
		os.Exit(64)
	}
	if _, err := parleydtest.NewSignIn(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "signin:", err)
		os.Exit(74)
	}
}
