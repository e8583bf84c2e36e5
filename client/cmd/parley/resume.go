package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutResume = `Print the answer of the running turn of a conversation from its start, and continue as it arrives.
If no turn is running, print the newest turn's answer. With TURN, print the answer of that turn. The
output is that of chat. The exit code is 1 if the turn did not complete.

Ctrl-C stops watching; the turn continues. parley cancel cancels it.`

func (a *app) newResumeCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "resume CONVERSATION [TURN]",
		Short: "Print the answer of a running or ended turn",
		Long:  aboutResume,
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(command *cobra.Command, args []string) error {
			request := &parleyv1.ResumeTurnRequest{ConversationId: args[0]}
			if len(args) == 2 {
				request.TurnId = args[1]
			}
			if !a.timeoutSet {
				a.timeout = 0 // An answer may take minutes, as with chat.
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.resume(ctx, c, request)
			})
		},
	}
	a.addReasoningFlag(command)
	return command
}

// resume prints a turn as its events arrive.
func (a *app) resume(ctx context.Context, c *client.Client, request *parleyv1.ResumeTurnRequest) error {
	seen := view{resumed: true}
	for event, err := range c.ResumeTurn(ctx, request) {
		if err != nil {
			if seen.turnID != "" && errors.Is(context.Cause(ctx), errInterrupted) {
				err = fmt.Errorf("stopped watching; the turn continues, cancel it with: %s cancel %s %s", a.programCommand(),
					argument(request.GetConversationId()), seen.turnID)
			}
			return errors.Join(a.endLine(&seen), err)
		}
		if err := a.show(event, &seen); err != nil {
			return err
		}
	}
	return seen.failure()
}
