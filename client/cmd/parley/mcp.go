package main

import (
	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/mcp"
)

const aboutMCP = `Serve the Model Context Protocol (MCP) on standard input and output, with these tools:
ask_question, list_conversations, get_history, clear_conversation and search_interactions.

The MCP client starts the command, so add it to the client's configuration, which often looks like
this:

  {
    "mcpServers": {
      "parley": {
        "command": "parley",
        "args": ["mcp", "--address", "127.0.0.1:50051"]
      }
    }
  }

For a server that needs sign-in, add "--token-file" and a path to the arguments, or PARLEY_TOKEN to
the environment of the command.

The command exits at the end of its input, or at SIGTERM or SIGINT. It then cancels running turns; the
partial answers remain in the history. --timeout limits every call except those of ask_question, whose
answers are limited only by the server.

Clients that use streamable HTTP do not need this command: the server has the same tools at /mcp of
its --http-address.`

func (a *app) newMCPCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mcp",
		Short: "Serve MCP, tools for models, on standard input and output",
		Long:  aboutMCP,
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := a.interruptible(command.Context())
			defer stop()
			return a.withClient(func(c *client.Client) error {
				return mcp.New(c, mcp.Options{Version: a.build.Version, Timeout: a.timeout}).Serve(ctx, a.in, a.out)
			})
		},
	}
}
