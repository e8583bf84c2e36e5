// Command parleyd stores the conversations of agent services and serves them over gRPC, HTTP and
// MCP. Start at [app.Main].
package main

import "github.com/parleyhq/parley/server/internal/app"

// version is the version of the program. The Makefile sets it with -ldflags.
var version = "dev"

func main() { app.Main(version) }
