package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (a *app) newCreateCommand() *cobra.Command {
	var header headerFlags
	request := new(parleyv1.CreateConversationRequest)
	command := &cobra.Command{
		Use:   "create [ID]",
		Short: "Create a conversation and print its id",
		Example: `  parley create shop --title "The shop" --label team=blue
  id=$(parley create --ttl 24h)
  parley create archive --keep-all --no-expiry --no-eviction`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			request.Conversation = header.conversation()
			if len(args) == 1 {
				request.Conversation.Id = args[0]
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.CreateConversation(ctx, request)
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { fmt.Fprintln(w, a.printable(reply.GetConversation().GetId())) })
			})
		},
	}
	header.add(command, false)
	command.Flags().StringVar(&request.RequestId, "request-id", "",
		"id of the request: a second create with the same id returns the same conversation")
	return command
}

// headerFlags are the flags for the fields of a conversation that clients choose.
type headerFlags struct {
	chosen parleyv1.Conversation
	retentionFlags
}

// add adds the flags to a command. If clearable is true, an empty --label removes all labels.
func (f *headerFlags) add(command *cobra.Command, clearable bool) {
	f.chosen.Retention = new(parleyv1.Retention)
	flags := command.Flags()
	flags.StringVar(&f.chosen.Title, "title", "", "title, shown to people")
	flags.Var(labelsFlag{&f.chosen.Labels, clearable}, "label",
		"label as key=value, which list can search for; may be repeated")
	flags.StringVar(&f.chosen.Agent, "agent", "", "agent that answers chat")
	flags.StringVar(&f.chosen.SystemPrompt, "system", "", "system prompt, before the history")
	flags.Int32Var(&f.chosen.Retention.MaxMessages, "max-messages", 0,
		"number of messages to keep, 0 for the server's default")
	flags.Var(ttlFlag{&f.chosen.Retention.Ttl}, "ttl",
		"time to live after the last append, such as 90s or 7d (default: set by the server)")
	f.retentionFlags.add(command, "")
}

// conversation returns the fields that the flags set.
func (f *headerFlags) conversation() *parleyv1.Conversation {
	f.apply(f.chosen.GetRetention())
	return &f.chosen
}

// ifCreated ends the descriptions of flags that describe a conversation that the command may create.
const ifCreated = ", if this command creates it"

// defaultMaxTurns is the number of turns that a conversation keeps if max_turns of its retention is 0.
const defaultMaxTurns = 32

// retentionFlags are the flags for the retention of a conversation that keeps more than others.
type retentionFlags struct {
	maxTurns                      int32
	keepAll, noExpiry, noEviction bool
}

// add adds the flags to a command. when ends their descriptions.
func (f *retentionFlags) add(command *cobra.Command, when string) {
	flags := command.Flags()
	flags.Int32Var(&f.maxTurns, "max-turns", 0,
		fmt.Sprintf("number of turns to keep, up to 10000; 0 means %d", defaultMaxTurns)+when)
	flags.BoolVar(&f.keepAll, "keep-all", false, "keep all messages; a full conversation refuses more"+when)
	flags.BoolVar(&f.noExpiry, "no-expiry", false, "do not expire the conversation"+when)
	flags.BoolVar(&f.noEviction, "no-eviction", false,
		"do not evict the conversation when its tenant is at its capacity"+when)
}

// apply sets the fields of a retention.
func (f *retentionFlags) apply(r *parleyv1.Retention) {
	r.MaxTurns, r.KeepAll, r.NoExpiry, r.NoEviction = f.maxTurns, f.keepAll, f.noExpiry, f.noEviction
}

// createWith returns the field create_with of a request, nil if no flag is set.
func (f *retentionFlags) createWith() *parleyv1.Conversation {
	if *f == (retentionFlags{}) {
		return nil
	}
	c := &parleyv1.Conversation{Retention: new(parleyv1.Retention)}
	f.apply(c.GetRetention())
	return c
}
