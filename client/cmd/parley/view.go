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

// view records what a command has received of a turn.
type view struct {
	conversation string         // The id; empty until the turn has started.
	turnID       string         // Empty until the first event.
	turn         *parleyv1.Turn // The ended turn; nil before.

	agent             string // The agent that the request named, if any.
	namedConversation bool   // The request contained the conversation id.
	resumed           bool   // The command is resume, not chat.
	mayBeRepeated     bool   // The request may have been sent before, with the same request id.
	midLine           bool   // The text so far does not end with a line feed.
	midReasoning      bool   // The reasoning so far does not end with a line feed.
	queuePosition     int32  // The last printed position in the queue.
}

// show prints an event as a line of JSON, or with showEvent.
func (a *app) show(event *parleyv1.TurnEvent, seen *view) error {
	seen.turnID = cmp.Or(event.GetTurnId(), seen.turnID)
	if started := event.GetStarted(); started != nil {
		seen.conversation = started.GetConversation().GetId()
	}
	if finished := event.GetFinished(); finished != nil {
		seen.turn = finished.GetTurn()
	}
	if a.output == "json" {
		return a.printLine(event)
	}
	return a.showEvent(event, seen)
}

// showEvent prints the text of an answer to standard output, and everything else to standard error. It prints
// reasoning only if a.reasoning is set.
func (a *app) showEvent(event *parleyv1.TurnEvent, seen *view) error {
	switch step := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_TextDelta:
		text := step.TextDelta.GetText()
		if text == "" {
			return nil
		}
		a.endReasoning(seen)
		seen.midLine = !strings.HasSuffix(text, "\n")
		_, err := io.WriteString(a.out, a.printable(text))
		return err
	case *parleyv1.TurnEvent_ReasoningDelta:
		return a.showReasoning(seen, step.ReasoningDelta.GetText())
	case *parleyv1.TurnEvent_AnswerStarted:
		return errors.Join(a.endLine(seen), a.note(seen, step.AnswerStarted.GetAgent()+" answers:"))
	case *parleyv1.TurnEvent_Finished:
		err := a.endLine(seen)
		if seen.awaitsToolResults() {
			fmt.Fprintln(a.err, "the agent waits for the results of its tool calls;",
				a.toolResultHint(seen, step.Finished.GetMessages()))
		}
		return err
	default:
		if note := describeEvent(event, seen); note != "" {
			return a.note(seen, note)
		}
		return nil
	}
}

// describeEvent describes an event other than text. It returns "" if there is nothing to print.
func describeEvent(event *parleyv1.TurnEvent, seen *view) string {
	switch step := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_Started:
		switch {
		case seen.resumed:
		case step.Started.GetReplayed() && seen.mayBeRepeated:
			return "this request id was already used; showing the same turn:"
		case step.Started.GetCreated() && seen.namedConversation:
			return "new conversation " + quoted(seen.conversation) // The note reveals a mistyped id.
		}
	case *parleyv1.TurnEvent_StructuredData:
		return describeData(step.StructuredData)
	case *parleyv1.TurnEvent_ToolCall:
		return describeCall(step.ToolCall)
	case *parleyv1.TurnEvent_ToolResult:
		return describeResult(step.ToolResult)
	case *parleyv1.TurnEvent_Queued:
		if position := step.Queued.GetPosition(); position != seen.queuePosition { // The server repeats it periodically.
			seen.queuePosition = position
			return fmt.Sprintf("waiting, number %d in the queue", position)
		}
	case *parleyv1.TurnEvent_Progress:
		return step.Progress.GetText()
	case *parleyv1.TurnEvent_Record:
		what := "writes"
		if step.Record.GetDeleted() {
			what = "deletes"
		}
		note := "the answer " + what + " record " + step.Record.GetKey()
		if step.Record.GetTenantScope() {
			note += " of the tenant"
		}
		return note
	}
	return ""
}

// note prints a line to standard error. On a terminal it first ends the current line of the answer, so that the
// two do not mix.
func (a *app) note(seen *view, text string) error {
	var err error
	if a.outTerminal {
		err = a.endLine(seen)
	}
	a.endReasoning(seen)
	fmt.Fprintln(a.err, oneLine(text))
	return err
}

// showReasoning prints a piece of reasoning to standard error, dimmed on a terminal.
func (a *app) showReasoning(seen *view, text string) error {
	if text == "" || !a.reasoning {
		return nil
	}
	var err error
	if a.outTerminal && seen.midLine {
		err = a.endLine(seen)
	}
	seen.midReasoning = !strings.HasSuffix(text, "\n")
	if a.errTerminal {
		if text = sanitize(text); a.getenv("NO_COLOR") == "" {
			text = string(dim) + text + endColour
		}
	}
	fmt.Fprint(a.err, text)
	return err
}

// endReasoning ends the current line of reasoning, if there is one.
func (a *app) endReasoning(seen *view) {
	if seen.midReasoning {
		fmt.Fprintln(a.err)
	}
	seen.midReasoning = false
}

// endLine ends the current line of the answer or of reasoning, if there is one.
func (a *app) endLine(seen *view) error {
	a.endReasoning(seen)
	if !seen.midLine {
		return nil
	}
	seen.midLine = false
	_, err := fmt.Fprintln(a.out)
	return err
}

// running reports whether the turn is known and has not ended.
func (v view) running() bool { return v.turnID != "" && v.turn == nil }

// cancelRequest returns the request that cancels the turn which request has started.
func (v view) cancelRequest(request *parleyv1.ChatRequest) *parleyv1.CancelTurnRequest {
	return &parleyv1.CancelTurnRequest{
		// A queued turn has no conversation id yet, but its request has one.
		ConversationId: cmp.Or(v.conversation, request.GetConversationId()), TurnId: v.turnID,
	}
}

// awaitsToolResults reports whether the turn ended with tool calls that have no result.
func (v view) awaitsToolResults() bool {
	return v.turn.GetState() == parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED
}

// toolResultHint explains how to pass the results of the open tool calls. It returns a command if
// --tool-result can name all calls. The ids are quoted for the shell, because the agent chooses them.
func (a *app) toolResultHint(seen *view, answer []*parleyv1.Message) string {
	var open []string
	for _, m := range answer {
		for _, call := range m.GetToolCalls() {
			open = append(open, call.GetId())
		}
		if i := slices.Index(open, m.GetToolResult().GetCallId()); i >= 0 {
			open = slices.Delete(open, i, i+1)
		}
	}
	words := []string{seen.chatCommand(a.programCommand())}
	for _, id := range open {
		if strings.Contains(id, "=") {
			return fmt.Sprintf("--tool-result cannot name call %q, because it contains \"=\": use tool_results of Chat", id)
		}
		words = append(words, "--tool-result", quoted(id)+"=...")
	}
	return "continue with: " + sanitize(strings.Join(words, " "))
}

// chatCommand returns the command that continues the conversation, with the agent that the request named.
func (v view) chatCommand(self string) string {
	command := self + " chat -c " + quoted(v.conversation)
	if v.agent != "" {
		command += " --agent " + quoted(v.agent)
	}
	return command
}

// retryable reports whether the same message may succeed in another turn.
func (v view) retryable() bool {
	return v.turn.GetState() == parleyv1.TurnState_TURN_STATE_CANCELLED || v.turn.GetError().GetRetryable()
}

// failure returns nil if the turn completed or waits for tool results, and otherwise how it ended.
func (v view) failure() error {
	switch v.turn.GetState() {
	case parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED:
		return nil
	}
	text := "the turn was " + stateName(v.turn.GetState())
	if v.turn.GetState() == parleyv1.TurnState_TURN_STATE_FAILED {
		text = "the turn failed"
	}
	if problem := v.turn.GetError(); problem != nil {
		if problem.GetMessage() != text { // The message of a cancelled turn is the same.
			text += ": " + problem.GetMessage()
		}
		text += " (" + problem.GetReason() + ")"
	}
	return errors.New(text)
}

func stateName(state parleyv1.TurnState) string {
	return strings.ToLower(strings.TrimPrefix(state.String(), "TURN_STATE_"))
}
