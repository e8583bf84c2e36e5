package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (a *app) newClearCommand() *cobra.Command {
	var request parleyv1.ClearConversationRequest
	var ifVersion int32
	command := &cobra.Command{
		Use:   "clear ID",
		Short: "Remove messages and keep the conversation",
		Example: `  parley clear shop
  parley clear shop --after-sequence 4
  parley clear shop --sequences 2,3`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request.ConversationId = args[0]
			if command.Flags().Changed("after-sequence") && command.Flags().Changed("sequences") {
				return usageError("set --after-sequence or --sequences, not both")
			}
			if command.Flags().Changed("sequences") {
				// Without sequences, or from a server that does not know them, this removes nothing.
				request.AfterSequence = math.MaxInt32
			}
			if command.Flags().Changed("if-version") {
				request.IfVersion = new(ifVersion)
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.ClearConversation(ctx, &request)
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) {
					fmt.Fprintf(w, "cleared %s: %d messages left\n",
						a.printable(reply.GetConversation().GetId()), reply.GetConversation().GetMessageCount())
				})
			})
		},
	}
	flags := command.Flags()
	flags.Int32Var(&request.AfterSequence, "after-sequence", 0,
		"keep messages up to and including this sequence, 0 for none")
	flags.Int32SliceVar(&request.Sequences, "sequences", nil,
		"remove only the messages with these sequences, a call of a tool together with its results")
	flags.StringVar(&request.RequestId, "request-id", "",
		"id of the request: a second clear with the same id removes nothing")
	flags.Int32Var(&ifVersion, "if-version", 0, "remove only if the conversation is at this version")
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
					err = a.print(reply, func(w io.Writer) { fmt.Fprintf(w, "deleted %s\n", a.printable(id)) })
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
