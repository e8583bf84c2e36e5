package main

import (
	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/mcp"
)

const aboutMCP = `Offer the server's conversations to a client of the Model Context Protocol, as tools:
ask_question, list_conversations, get_history, clear_conversation and search_interactions.

The client starts the command and talks to it on standard input and output, so the command
belongs into the client's configuration, which often looks like this:

  {
    "mcpServers": {
      "parley": {
        "command": "parley",
        "args": ["mcp", "--address", "127.0.0.1:50051"]
      }
    }
  }

The command ends with its input, or at SIGTERM or SIGINT. A question that is being answered
then is cancelled; what the agent had said stays in the history. --timeout bounds every call
but those of ask_question, whose answers take as long as the server lets them.

Clients that speak streamable HTTP need no command: the server itself has the same tools at
/mcp of its --http-address.`

func (a *app) newMCPCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mcp",
		Short: "Serve MCP, for models that use tools, on standard input and output",
		Long:  aboutMCP,
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := a.interruptible(command.Context())
			defer stop()
			return a.dialled(func(c *client.Client) error {
				return mcp.New(c, mcp.Options{Version: version, Timeout: a.timeout}).Serve(ctx, a.in, a.out)
			})
		},
	}
}
