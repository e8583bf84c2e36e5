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

// answerSequences returns the sequences of the answer of a turn, such as "4" or "4-6", or "" if there is none.
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

const aboutCancel = `Cancel the running turn of a conversation, or TURN, which may also be queued, and print how it
ended. The partial answer is stored as an incomplete message. A turn that has ended does not change.
The exit code is 1 if no turn is running.`

func (a *app) newCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel CONVERSATION [TURN]",
		Short: "Cancel a running or queued turn",
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

// cancel cancels the turn of request, or the running turn if request has no turn id.
func (a *app) cancel(ctx context.Context, c *client.Client, request *parleyv1.CancelTurnRequest) error {
	if request.GetTurnId() == "" {
		id := request.GetConversationId()
		reply, err := c.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: id})
		if err != nil {
			return err
		}
		request.TurnId = reply.GetConversation().GetActiveTurnId()
		if request.GetTurnId() == "" {
			return fmt.Errorf("no turn is running in conversation %s; list the latest turns with: %s turns %s",
				quoted(id), a.programCommand(), argument(id))
		}
	}
	reply, err := c.CancelTurn(ctx, request)
	if err != nil {
		return err
	}
	return a.print(reply, func(w io.Writer) {
		answer := "no answer"
		if sequences := answerSequences(reply.GetTurn()); sequences != "" {
			answer = "answer " + sequences
		}
		fmt.Fprintf(w, "turn %s ended: %s, %s\n", reply.GetTurn().GetId(), stateName(reply.GetTurn().GetState()), answer)
	})
}
