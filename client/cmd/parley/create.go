package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (a *app) newCreateCommand() *cobra.Command {
	conversation := &parleyv1.Conversation{Retention: &parleyv1.Retention{}}
	request := &parleyv1.CreateConversationRequest{Conversation: conversation}
	var ttl time.Duration
	command := &cobra.Command{
		Use:   "create [ID]",
		Short: "Create a conversation and print its id",
		Example: `  parley create shop --title "The shop" --label team=blue
  id=$(parley create --ttl 24h)`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 1 {
				conversation.Id = args[0]
			}
			if command.Flags().Changed("ttl") {
				conversation.Retention.Ttl = durationpb.New(ttl)
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.CreateConversation(ctx, request)
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { fmt.Fprintln(w, reply.GetConversation().GetId()) })
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&conversation.Title, "title", "", "title, shown to people")
	flags.StringToStringVar(&conversation.Labels, "label", nil,
		"label as key=value, which list can search for; may be repeated")
	flags.StringVar(&conversation.Agent, "agent", "", "agent that answers chat")
	flags.StringVar(&conversation.SystemPrompt, "system", "", "system prompt, before the history")
	flags.Int32Var(&conversation.Retention.MaxMessages, "max-messages", 0,
		"number of messages to keep, 0 for the server's default")
	flags.DurationVar(&ttl, "ttl", 0, "time to live after the last append (default: set by the server)")
	flags.StringVar(&request.RequestId, "request-id", "",
		"id of the request: a second create with the same id returns the same conversation")
	return command
}
