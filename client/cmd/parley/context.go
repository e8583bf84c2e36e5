package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (a *app) newContextCommand() *cobra.Command {
	window := &parleyv1.ContextWindow{}
	command := &cobra.Command{
		Use:     "context ID",
		Short:   "Show the system prompt and the history window for a model",
		Example: `  parley context shop --max-exchanges 5`,
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.GetContext(ctx, &parleyv1.GetContextRequest{ConversationId: args[0], Window: window})
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { a.printContext(w, reply) })
			})
		},
	}
	flags := command.Flags()
	flags.Int32Var(&window.MaxMessages, "max-messages", 0, "maximum number of messages, 0 for all")
	flags.Int32Var(&window.MaxExchanges, "max-exchanges", 0,
		"maximum number of exchanges (a user message and the answers to it), 0 for all")
	flags.Int32Var(&window.MaxBytes, "max-bytes", 0, "maximum number of encoded bytes, 0 for all")
	flags.BoolVar(&window.CacheStable, "cache-stable", false,
		"move the start of the window in blocks, so that the prompt cache of a provider is effective")
	return command
}

func (a *app) printContext(w io.Writer, reply *parleyv1.GetContextResponse) {
	if prompt := reply.GetSystemPrompt(); prompt != "" {
		fmt.Fprintf(w, "system prompt\n%s\n\n", a.printable(prompt))
	}
	if omitted := reply.GetOmittedCount(); omitted > 0 {
		fmt.Fprintf(w, "%d older messages left out\n\n", omitted)
	}
	a.printMessages(w, reply.GetMessages())
}
