package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// view is what has been seen of a turn.
type view struct {
	conversation string         // Its id; empty until the turn has started.
	turnID       string         // Empty until the first event.
	turn         *parleyv1.Turn // As it ended; nil until then.

	agent   string // That the question named; empty: none.
	named   bool   // The question named its conversation.
	resumed bool   // It was asked for with resume, not with a question.
	again   bool   // The question may have been asked before.
	inLine  bool   // The text so far does not end with a line feed.
	place   int32  // In the queue, as told last.
}

// show shows one event: as a line of JSON or, for people, as showEvent does.
func (a *app) show(event *parleyv1.TurnEvent, got *view) error {
	got.turnID = cmp.Or(event.GetTurnId(), got.turnID)
	if started := event.GetStarted(); started != nil {
		got.conversation = started.GetConversation().GetId()
	}
	if finished := event.GetFinished(); finished != nil {
		got.turn = finished.GetTurn()
	}
	if a.output == "json" {
		return a.printLine(event)
	}
	return a.showEvent(event, got)
}

// showEvent writes the text of an answer to standard output, and all that is beside it to
// standard error.
func (a *app) showEvent(event *parleyv1.TurnEvent, got *view) error {
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
		if got.waits() {
			fmt.Fprintln(a.err, "the agent waits for the results of its tool calls;", a.goingOn(got, step.Finished.GetMessages()))
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
func beside(event *parleyv1.TurnEvent, got *view) string {
	switch step := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_Started:
		switch {
		case got.resumed:
		case step.Started.GetReplayed() && got.again:
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
		if place := step.Queued.GetPosition(); place != got.place { // Also sent to break a silence.
			got.place = place
			return fmt.Sprintf("waiting, number %d in the queue", place)
		}
	case *parleyv1.TurnEvent_Progress:
		return step.Progress.GetText()
	}
	return ""
}

// note writes a line to standard error. On a terminal, where it would else run into the text
// of the answer, the text goes on in a new line.
func (a *app) note(got *view, text string) error {
	var err error
	if a.outTerminal {
		err = a.endLine(got)
	}
	fmt.Fprintln(a.err, oneLine(text))
	return err
}

// endLine ends the line that the answer is in, if it is in one.
func (a *app) endLine(got *view) error {
	if !got.inLine {
		return nil
	}
	got.inLine = false
	_, err := fmt.Fprintln(a.out)
	return err
}

// runs reports whether there is a turn, as far as is known, that has not ended.
func (v view) runs() bool { return v.turnID != "" && v.turn == nil }

// cancellation asks for the end of the turn that request began.
func (v view) cancellation(request *parleyv1.ChatRequest) *parleyv1.CancelTurnRequest {
	return &parleyv1.CancelTurnRequest{
		// A turn that is queued has not told its conversation, but then the request has.
		ConversationId: cmp.Or(v.conversation, request.GetConversationId()), TurnId: v.turnID,
	}
}

// waits reports whether the turn ended with tool calls that have no result.
func (v view) waits() bool {
	return v.turn.GetState() == parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED
}

// goingOn says how to give the open calls of an answer their results: with a line to paste, where
// --tool-result can name them all. Their ids are the agent's words: no shell is to take them for
// anything else.
func (a *app) goingOn(got *view, answer []*parleyv1.Message) string {
	var open []string
	for _, m := range answer {
		for _, call := range m.GetToolCalls() {
			open = append(open, call.GetId())
		}
		if i := slices.Index(open, m.GetToolResult().GetCallId()); i >= 0 {
			open = slices.Delete(open, i, i+1)
		}
	}
	words := []string{got.chat(a.self())}
	for _, id := range open {
		if strings.Contains(id, "=") {
			return fmt.Sprintf("--tool-result cannot name call %q, since that has a \"=\": go on with tool_results of Chat", id)
		}
		words = append(words, "--tool-result", quoted(id)+"=...")
	}
	return "go on with: " + harmless(strings.Join(words, " "))
}

// chat is the command line that goes on with the conversation and, where the question named
// one, its agent.
func (v view) chat(self string) string {
	line := self + " chat -c " + v.conversation
	if v.agent != "" {
		line += " --agent " + quoted(v.agent)
	}
	return line
}

// worthAsking reports whether the same may be answered when asked again.
func (v view) worthAsking() bool {
	return v.turn.GetState() == parleyv1.TurnState_TURN_STATE_CANCELLED || v.turn.GetError().GetRetryable()
}

// failure is nil when the turn completed or waits for tool results.
func (v view) failure() error {
	switch v.turn.GetState() {
	case parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED:
		return nil
	}
	what := "the turn was " + stateName(v.turn.GetState())
	if v.turn.GetState() == parleyv1.TurnState_TURN_STATE_FAILED {
		what = "the turn failed"
	}
	if problem := v.turn.GetError(); problem != nil {
		if problem.GetMessage() != what { // That of a cancelled turn says no more.
			what += ": " + problem.GetMessage()
		}
		what += " (" + problem.GetReason() + ")"
	}
	return errors.New(what)
}

func stateName(state parleyv1.TurnState) string {
	return strings.ToLower(strings.TrimPrefix(state.String(), "TURN_STATE_"))
}
