package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutResume = `See the answer of the turn that runs in a conversation, from its start and on as it comes;
where none runs, the newest one's; or that of TURN. It is shown as chat shows it, and the
exit code is 1 when the turn did not complete.

Ctrl-C stops watching and leaves the turn alone; parley cancel ends it.`

func (a *app) newResumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "resume CONVERSATION [TURN]",
		Short: "See an answer that is being given, or was",
		Long:  aboutResume,
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(command *cobra.Command, args []string) error {
			request := &parleyv1.ResumeTurnRequest{ConversationId: args[0]}
			if len(args) == 2 {
				request.TurnId = args[1]
			}
			if !a.timeoutSet {
				a.timeout = 0 // As with chat.
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.resume(ctx, c, request)
			})
		},
	}
}

// resume shows a turn as it comes.
func (a *app) resume(ctx context.Context, c *client.Client, request *parleyv1.ResumeTurnRequest) error {
	got := view{resumed: true}
	for event, err := range c.ResumeTurn(ctx, request) {
		if err != nil {
			if got.turnID != "" && errors.Is(context.Cause(ctx), errInterrupted) {
				err = fmt.Errorf("stopped watching; the turn is left alone, cancel it with: %s cancel %s %s", a.self(), request.GetConversationId(), got.turnID)
			}
			return errors.Join(a.endLine(&got), err)
		}
		if err := a.show(event, &got); err != nil {
			return err
		}
	}
	return got.failure()
}
