package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutReplace = `Remove all messages after a sequence and append others in their place, in one commit: a reader
receives either the old or the new history. FILE has up to 100 messages as JSON: one after the other,
in an array, or in an object with the array messages, as parley show --output json prints it. An empty
array only removes messages. Fields that the server sets (sequence, exchange, times) are ignored.
Sequences continue: those of removed messages are not used again.

With --after 0, a conversation that does not exist is created, unless --must-exist is set. With a higher
sequence the command then fails. It also fails while a turn runs, and if a tool call would stay without
its result.`

func (a *app) newHistoryCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "history",
		Short: "Replace the end of a conversation",
		Args:  cobra.NoArgs, // With NoArgs, cobra reports an unknown subcommand.
		RunE:  func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(a.newHistoryReplaceCommand())
	return command
}

func (a *app) newHistoryReplaceCommand() *cobra.Command {
	var request parleyv1.AppendMessagesRequest
	var from string
	var after, ifVersion int32
	command := &cobra.Command{
		Use:   "replace ID --after SEQUENCE --from FILE",
		Short: "Replace all messages after a sequence",
		Long:  aboutReplace,
		Example: `  parley history replace shop --after 4 --from edited.jsonl
  parley show draft --output json | parley history replace shop --after 0 --from -`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if !command.Flags().Changed("after") || from == "" {
				return usageError("set --after, the sequence of the last message to keep, and --from, a file of messages")
			}
			request.ConversationId, request.ReplaceAfterSequence = args[0], &after
			if after > 0 { // A conversation without that sequence is a mistyped one.
				request.MustExist = true
			}
			if command.Flags().Changed("if-version") {
				request.IfVersion = &ifVersion
			}
			var err error
			if request.Messages, err = a.messagesFrom(command.Context(), from); err != nil {
				return err
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.append(ctx, c, &request)
			})
		},
	}
	flags := command.Flags()
	flags.Int32Var(&after, "after", 0, "keep messages up to and including this sequence, 0 for none")
	flags.StringVar(&from, "from", "", "append the messages of `FILE` after those; - is standard input")
	flags.StringVar(&request.RequestId, "request-id", "",
		"id of the request: a second replacement with the same id changes nothing")
	flags.Int32Var(&ifVersion, "if-version", 0,
		"replace only if the conversation is at this version; 0: only if it does not exist")
	flags.BoolVar(&request.MustExist, "must-exist", false,
		"fail if the conversation does not exist, instead of creating it; always set if --after is higher than 0")
	return command
}

// messagesFrom returns the messages that a file contains as JSON, or standard input if name is "-".
func (a *app) messagesFrom(ctx context.Context, name string) ([]*parleyv1.Message, error) {
	input, err := a.readInput(ctx, name)
	if err != nil {
		return nil, err
	}
	if name == "-" {
		name = standardInput
	}
	return parseMessages(input, name)
}
