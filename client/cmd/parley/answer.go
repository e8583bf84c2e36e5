package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// errStoppedReading says what Ctrl-C during an answer did, and what it did not.
var errStoppedReading = errors.New("stopped reading; the turn goes on at the server, which keeps its answer")

// answer is what became of a question.
type answer struct {
	conversation string         // Its id; empty when the server did not take the question.
	turn         *parleyv1.Turn // nil when the stream broke.

	named  bool // The question named its conversation.
	inLine bool // The text so far does not end with a line feed.
}

// answer sends request and shows the events of the turn as they come. The answer says how
// far that went, also when there is an error.
func (a *app) answer(ctx context.Context, c *client.Client, request *parleyv1.ChatRequest) (answer, error) {
	got := answer{named: request.GetConversationId() != ""}
	for event, err := range c.Chat(ctx, request) {
		if err != nil {
			if got.conversation != "" && errors.Is(context.Cause(ctx), errInterrupted) {
				err = errStoppedReading
			}
			err = errors.Join(a.endLine(&got), err)
			return got, err
		}
		if started := event.GetStarted(); started != nil {
			got.conversation = started.GetConversation().GetId()
		}
		if finished := event.GetFinished(); finished != nil {
			got.turn = finished.GetTurn()
		}
		if a.output == "json" {
			err = a.printLine(event)
		} else {
			err = a.showEvent(event, &got)
		}
		if err != nil {
			return got, err
		}
	}
	return got, nil
}

// showEvent writes the text of an answer to standard output, and all that is beside it to
// standard error.
func (a *app) showEvent(event *parleyv1.TurnEvent, got *answer) error {
	switch step := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_TextDelta:
		text := step.TextDelta.GetText()
		if text == "" {
			return nil
		}
		got.inLine = !strings.HasSuffix(text, "\n")
		_, err := io.WriteString(a.out, a.printable(text))
		return err
	case *parleyv1.TurnEvent_AnswerStarted:
		return errors.Join(a.endLine(got), a.note(got, step.AnswerStarted.GetAgent()+" answers:"))
	case *parleyv1.TurnEvent_Finished:
		err := a.endLine(got)
		if got.turn.GetState() == parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED {
			fmt.Fprintln(a.err, "the agent waits for the results of its tool calls")
		}
		return err
	default:
		if note := beside(event, got); note != "" {
			return a.note(got, note)
		}
		return nil
	}
}

// beside says in words what an event tells beside the text of the answer; empty: nothing.
func beside(event *parleyv1.TurnEvent, got *answer) string {
	switch step := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_Started:
		switch {
		case step.Started.GetReplayed():
			return "this request id was asked before; that turn again:"
		case step.Started.GetCreated() && got.named:
			return "new conversation " + got.conversation // Else it would hide a mistyped id.
		}
	case *parleyv1.TurnEvent_StructuredData:
		return describeData(step.StructuredData)
	case *parleyv1.TurnEvent_ToolCall:
		return describeCall(step.ToolCall)
	case *parleyv1.TurnEvent_ToolResult:
		return describeResult(step.ToolResult)
	case *parleyv1.TurnEvent_Queued:
		return fmt.Sprintf("waiting, number %d in the queue", step.Queued.GetPosition())
	case *parleyv1.TurnEvent_Progress:
		return step.Progress.GetText()
	}
	return ""
}

// note writes a line to standard error. On a terminal, where it would else run into the text
// of the answer, the text goes on in a new line.
func (a *app) note(got *answer, text string) error {
	var err error
	if a.outTerminal {
		err = a.endLine(got)
	}
	fmt.Fprintln(a.err, oneLine(text))
	return err
}

// endLine ends the line that the answer is in, if it is in one.
func (a *app) endLine(got *answer) error {
	if !got.inLine {
		return nil
	}
	got.inLine = false
	_, err := fmt.Fprintln(a.out)
	return err
}

// failure is nil when the turn completed or waits for tool results.
func (g answer) failure() error {
	switch g.turn.GetState() {
	case parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED:
		return nil
	default:
		state := strings.ToLower(strings.TrimPrefix(g.turn.GetState().String(), "TURN_STATE_"))
		if problem := g.turn.GetError(); problem != nil {
			return fmt.Errorf("the turn %s: %s (%s)", state, problem.GetMessage(), problem.GetReason())
		}
		return fmt.Errorf("the turn was %s", state)
	}
}
