package client

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The functions of this file model the events of a turn. The tests of both packages in this
// directory use them.

// Numbered returns copies of steps as the single events of turn, with indexes and text offsets.
func Numbered(turn string, steps ...*parleyv1.TurnEvent) []*parleyv1.TurnEvent {
	events, offset := make([]*parleyv1.TurnEvent, len(steps)), 0
	for i, step := range steps {
		event := proto.CloneOf(step)
		event.TurnId, event.Index = turn, int32(i+1)
		switch {
		case beginsMessage(event):
			offset = 0
		case event.GetTextDelta() != nil:
			event.GetTextDelta().Offset = int32(offset)
			offset += len(event.GetTextDelta().GetText())
		}
		events[i] = event
	}
	return events
}

// beginsMessage reports whether event begins the next message of an answer.
func beginsMessage(event *parleyv1.TurnEvent) bool {
	return event.GetAnswerStarted() != nil || event.GetToolResult() != nil
}

// Merged returns events as the store replays them: texts are merged, progress notes are left out.
func Merged(events []*parleyv1.TurnEvent) []*parleyv1.TurnEvent {
	var merged []*parleyv1.TurnEvent
	var text *parleyv1.TurnEvent // The text of the current message.
	for _, event := range events {
		switch event = proto.CloneOf(event); {
		case event.GetProgress() != nil, event.GetQueued() != nil:
			continue
		case event.GetStarted() != nil:
			event.GetStarted().Replayed = true
		case beginsMessage(event):
			text = nil
		case event.GetTextDelta() != nil && text != nil:
			text.Index = event.GetIndex()
			text.GetTextDelta().Text += event.GetTextDelta().GetText()
			continue
		case event.GetTextDelta() != nil:
			text = event
		}
		merged = append(merged, event)
	}
	slices.SortFunc(merged, func(a, b *parleyv1.TurnEvent) int { return cmp.Compare(a.GetIndex(), b.GetIndex()) })
	return merged
}

// Summary describes events in lines that do not depend on how the texts were cut: one line for the
// text of a message, one line for each other event. It leaves out progress notes.
func Summary(events []*parleyv1.TurnEvent) []string {
	var lines []string
	var text strings.Builder
	message := 0
	flush := func() {
		if text.Len() > 0 {
			lines = append(lines, fmt.Sprintf("text %d: %s", message, text.String()))
		}
		text.Reset()
	}
	for _, event := range events {
		switch {
		case event.GetTextDelta() != nil:
			text.WriteString(event.GetTextDelta().GetText())
		case event.GetProgress() != nil, event.GetQueued() != nil:
		default:
			if beginsMessage(event) || event.GetFinished() != nil {
				flush()
				message = int(event.GetIndex()) // The same for all streams of a turn.
			}
			event = proto.CloneOf(event)
			if event.GetStarted() != nil {
				event.GetStarted().Replayed = false
			}
			lines = append(lines, fmt.Sprintf("%d %T", event.GetIndex(), event.GetEvent()))
		}
	}
	flush()
	return lines
}

// The following functions return events without turn id and index.

// Started returns the event that the turn of conversation has started.
func Started(conversation string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: &parleyv1.TurnStarted{
		Conversation: &parleyv1.Conversation{Id: conversation},
	}}}
}

// Text returns a text delta.
func Text(text string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: text}}}
}

// Data returns structured data of type kind.
func Data(kind string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		Event: &parleyv1.TurnEvent_StructuredData{StructuredData: &parleyv1.StructuredData{Type: kind}},
	}
}

// Call returns a tool call.
func Call(id string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolCall{ToolCall: &parleyv1.ToolCall{Id: id}}}
}

// Result returns a tool result, which ends the current message.
func Result(id string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolResult{ToolResult: &parleyv1.ToolResult{CallId: id}}}
}

// Next returns the event that begins the next message of the answer.
func Next(agent string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		Event: &parleyv1.TurnEvent_AnswerStarted{AnswerStarted: &parleyv1.AnswerStarted{Agent: agent}},
	}
}

// Note returns a progress note of the agent.
func Note(text string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{Text: text}}}
}

// Queued returns the event that the turn waits in the queue.
func Queued(position int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Queued{Queued: &parleyv1.TurnQueued{Position: position}}}
}

// Finished returns the event that ends a turn.
func Finished() *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{
		Turn: &parleyv1.Turn{State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	}}}
}
