package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const aboutTurns = `List the turns of a conversation, newest first. Turns that wait in its queue precede all others.
Without CONVERSATION, list the turns of all conversations of the tenant, and begin with the turn that the
server accepted last. Turns that an earlier version of the server started may be missing from this list.`

func (a *app) newTurnsCommand() *cobra.Command {
	var request parleyv1.ListTurnsRequest
	var limit int32
	command := &cobra.Command{
		Use:   "turns [CONVERSATION]",
		Short: "List turns, newest first",
		Long:  aboutTurns,
		Example: `  parley turns shop
  parley turns --state queued,running
  parley turns --state failed --limit 0 --output json | jq -r '.turns[].error.message'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if limit < 0 {
				return usageError(fmt.Sprintf("--limit %d: must not be negative", limit))
			}
			if len(args) == 1 {
				if request.ConversationId = args[0]; args[0] == "" { // An unset variable of a script, perhaps.
					return usageError("CONVERSATION: must not be empty; leave it out to list the turns of all conversations")
				}
			}
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				return a.turns(ctx, c, &request, limit)
			})
		},
	}
	flags := command.Flags()
	flags.Int32Var(&limit, "limit", 50, "maximum number of turns, 0 for all")
	flags.Var(statesFlag{&request.States}, "state", "only turns in these states, such as running,failed")
	flags.StringVar(&request.PageToken, "page-token", "", "continue a previous list")
	return command
}

// turns prints at most limit turns of a list, or all if limit is 0. As JSON, it prints each page when it arrives.
func (a *app) turns(ctx context.Context, c *client.Client, request *parleyv1.ListTurnsRequest, limit int32) error {
	var all []*parleyv1.Turn
	for count := int32(0); limit == 0 || count < limit; {
		request.PageSize = maxPage
		if limit > 0 {
			request.PageSize = min(limit-count, maxPage)
		}
		page, err := c.ListTurns(ctx, request)
		if err != nil {
			return err
		}
		if a.output == "json" {
			err = a.print(page, nil)
		} else {
			all = append(all, page.GetTurns()...)
		}
		if err != nil {
			return err
		}
		count += int32(len(page.GetTurns()))
		if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" {
			break
		}
	}
	if a.output == "json" {
		return nil
	}
	err := a.print(nil, func(w io.Writer) { a.turnTable(w, all, request.GetConversationId() == "") })
	if err == nil && request.GetPageToken() != "" {
		fmt.Fprintf(a.err, "there may be more; use --page-token %s to continue\n", request.GetPageToken())
	}
	return err
}

func (a *app) newTurnCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "turn TURN",
		Short:   "Show a turn by its id",
		Example: "  parley turn 0198c5a2-7b1e-7c3d-9f4a-5b6c7d8e9f00",
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.call(command.Context(), func(ctx context.Context, c *client.Client) error {
				reply, err := c.GetTurn(ctx, &parleyv1.GetTurnRequest{TurnId: args[0]})
				if err != nil {
					return err
				}
				return a.print(reply, func(w io.Writer) { a.printTurn(w, reply.GetTurn()) })
			})
		},
	}
}

// printTurn writes the fields of a turn that are set.
func (a *app) printTurn(w io.Writer, turn *parleyv1.Turn) {
	rows := [][]string{
		{"turn", turn.GetId()},
		{"conversation", turn.GetConversationId()},
		{"state", stateName(turn.GetState())},
	}
	row := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	row("agent", turn.GetAgent())
	row("request id", turn.GetRequestId())
	if turn.GetInputSequence() > 0 {
		row("input", fmt.Sprint(turn.GetInputSequence()))
	}
	row("answer", answerSequences(turn))
	row("created", a.when(turn.GetCreateTime()))
	row("finished", a.when(turn.GetFinishTime()))
	if turn.GetError() != nil {
		row("error", fmt.Sprintf("%s (%s)", turn.GetError().GetMessage(), turn.GetError().GetReason()))
	}
	table(w, rows...)
}

// turnTable writes a table of turns. If withConversation is true, a column has the ids of their conversations.
func (a *app) turnTable(w io.Writer, turns []*parleyv1.Turn, withConversation bool) {
	rows := [][]string{{"ID", "STATE", "AGENT", "CREATED", "DURATION", "INPUT", "ANSWER", "ERROR"}}
	if withConversation {
		rows[0] = slices.Insert(rows[0], 1, "CONVERSATION")
	}
	now := a.now()
	for _, turn := range turns {
		created, end := turn.GetCreateTime().AsTime(), now
		if turn.GetFinishTime() != nil {
			end = turn.GetFinishTime().AsTime()
		}
		row := []string{
			turn.GetId(),
			stateName(turn.GetState()),
			turn.GetAgent(),
			relative(now, created),
			max(end.Sub(created), 0).Round(time.Millisecond).String(), // The clocks of server and client may differ.
			fmt.Sprint(turn.GetInputSequence()),
			answerSequences(turn),
			turn.GetError().GetReason(),
		}
		if withConversation {
			row = slices.Insert(row, 1, turn.GetConversationId())
		}
		rows = append(rows, row)
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
