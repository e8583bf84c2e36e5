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
		Short: "Make a conversation and print its id",
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
	flags.StringVar(&conversation.Title, "title", "", "for people")
	flags.StringToStringVar(&conversation.Labels, "label", nil, "key=value to find it by; more than once for more")
	flags.StringVar(&conversation.Agent, "agent", "", "agent that answers chat")
	flags.StringVar(&conversation.SystemPrompt, "system", "", "system prompt, ahead of every history")
	flags.Int32Var(&conversation.Retention.MaxMessages, "max-messages", 0, "messages kept, 0 as the server says")
	flags.DurationVar(&ttl, "ttl", 0, "life after the last append (default: as the server says)")
	flags.StringVar(&request.RequestId, "request-id", "", "made twice with the same, it is made once")
	return command
}
