package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func (a *app) newTurnsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "turns CONVERSATION",
		Short: "List the turns of a conversation, newest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.ListTurns(ctx, &parleyv1.ListTurnsRequest{ConversationId: args[0]})
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { a.turnTable(w, reply.GetTurns()) })
			})
		},
	}
}

func (a *app) turnTable(w io.Writer, turns []*parleyv1.Turn) {
	rows := [][]string{{"ID", "STATE", "AGENT", "CREATED", "DURATION", "INPUT", "ANSWER", "ERROR"}}
	now := a.now()
	for _, turn := range turns {
		created, end := turn.GetCreateTime().AsTime(), now
		if turn.GetFinishTime() != nil {
			end = turn.GetFinishTime().AsTime()
		}
		rows = append(rows, []string{
			turn.GetId(),
			stateName(turn.GetState()),
			turn.GetAgent(),
			relative(now, created),
			max(end.Sub(created), 0).Round(time.Millisecond).String(), // The clocks of server and client may differ.
			fmt.Sprint(turn.GetInputSequence()),
			answerSequences(turn),
			turn.GetError().GetReason(),
		})
	}
	table(w, rows...)
}

// answerSequences says which messages are the answer of a turn: "4", "4-6"; empty: none.
func answerSequences(turn *parleyv1.Turn) string {
	switch first, last := turn.GetFirstAnswerSequence(), turn.GetLastAnswerSequence(); first {
	case 0:
		return ""
	case last:
		return fmt.Sprint(first)
	default:
		return fmt.Sprintf("%d-%d", first, last)
	}
}

const aboutCancel = `Cancel the turn that runs in a conversation, or TURN, which may also wait in the queue, and
say how it ended. What had arrived of its answer is kept as an incomplete message. A turn
that has ended is left as it is. The exit code is 1 where nothing runs.`

func (a *app) newCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel CONVERSATION [TURN]",
		Short: "Cancel a turn that runs or waits",
		Long:  aboutCancel,
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(command *cobra.Command, args []string) error {
			request := &parleyv1.CancelTurnRequest{ConversationId: args[0]}
			if len(args) == 2 {
				request.TurnId = args[1]
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.cancel(ctx, c, request)
			})
		},
	}
}

// cancel cancels a turn, the running one when request names none.
func (a *app) cancel(ctx context.Context, c *client.Client, request *parleyv1.CancelTurnRequest) error {
	if request.GetTurnId() == "" {
		id := request.GetConversationId()
		reply, err := c.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: id})
		if err != nil {
			return err
		}
		request.TurnId = reply.GetConversation().GetActiveTurnId()
		if request.GetTurnId() == "" {
			return fmt.Errorf("no turn runs in conversation %s; see how the last ones ended with: %s turns %s", id, a.self(), id)
		}
	}
	reply, err := c.CancelTurn(ctx, request)
	if err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) {
		kept := "no answer"
		if sequences := answerSequences(reply.GetTurn()); sequences != "" {
			kept = "answer " + sequences
		}
		fmt.Fprintf(w, "turn %s ended: %s, %s\n", reply.GetTurn().GetId(), stateName(reply.GetTurn().GetState()), kept)
	})
}
