//go:build !manpages

// Command parleyd stores the conversations of agent services and serves them over gRPC, HTTP and
// MCP. Start at [app.Main].
package main

import (
	"github.com/parleyhq/parley/client/buildinfo"
	"github.com/parleyhq/parley/server/internal/app"
)

// The Makefile sets these with -ldflags: '-X main.version=…'.
var (
	version = buildinfo.Unset
	commit  string
	date    string
)

func main() { app.Main(buildinfo.Of(version, commit, date)) }
