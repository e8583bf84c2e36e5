package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (a *app) newClearCommand() *cobra.Command {
	var request parleyv1.ClearConversationRequest
	command := &cobra.Command{
		Use:   "clear ID",
		Short: "Remove messages and keep the conversation",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request.ConversationId = args[0]
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.ClearConversation(ctx, &request)
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) {
					fmt.Fprintf(w, "cleared %s: %d messages left\n",
						reply.GetConversation().GetId(), reply.GetConversation().GetMessageCount())
				})
			})
		},
	}
	command.Flags().Int32Var(&request.AfterSequence, "after-sequence", 0,
		"keep messages up to and including this sequence, 0 for none")
	return command
}

func (a *app) newDeleteCommand() *cobra.Command {
	var allowMissing bool
	command := &cobra.Command{
		Use:   "delete ID...",
		Short: "Delete conversations with their messages",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				for _, id := range args {
					reply, err := c.DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{
						ConversationId: id, AllowMissing: allowMissing,
					})
					if err != nil {
						return err
					}
					err = a.print(reply, func(w io.Writer) { fmt.Fprintf(w, "deleted %s\n", id) })
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	command.Flags().BoolVar(&allowMissing, "allow-missing", false, "succeed if a conversation does not exist")
	return command
}
