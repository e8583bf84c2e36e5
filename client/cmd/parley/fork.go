package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutFork = `Copy a conversation, or its messages up to a sequence, to a new conversation and print its id. The
messages keep their sequences. Title, labels, system prompt, agent and retention are copied too. With
--records, the records are copied as they are now, whatever --at is.`

func (a *app) newForkCommand() *cobra.Command {
	var request parleyv1.ForkConversationRequest
	command := &cobra.Command{
		Use:   "fork ID",
		Short: "Copy a conversation up to a message and print the copy's id",
		Long:  aboutFork,
		Example: `  parley fork shop --at 4 --id shop-again
  parley chat -c $(parley fork shop) What if it were salt`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request.ConversationId = args[0]
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.ForkConversation(ctx, &request)
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { fmt.Fprintln(w, a.printable(reply.GetConversation().GetId())) })
			})
		},
	}
	flags := command.Flags()
	flags.Int32Var(&request.AtSequence, "at", 0, "sequence of the last message to copy, 0 for all")
	flags.StringVar(&request.NewConversationId, "id", "", "id of the copy; if empty, the server chooses one")
	flags.BoolVar(&request.IncludeRecords, "records", false, "also copy the records of the conversation")
	flags.StringVar(&request.RequestId, "request-id", "",
		"id of the request: a second fork with the same id returns the same copy")
	return command
}
