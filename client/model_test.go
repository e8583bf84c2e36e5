package client

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// What a server makes of a turn, for the tests of both packages of this folder.

// Numbered are the events of a turn one by one: with its id, indexes and offsets.
func Numbered(turn string, steps ...*parleyv1.TurnEvent) []*parleyv1.TurnEvent {
	events, offset := make([]*parleyv1.TurnEvent, len(steps)), 0
	for i, step := range steps {
		event := proto.CloneOf(step)
		event.TurnId, event.Index = turn, int32(i+1)
		switch {
		case opens(event):
			offset = 0
		case event.GetTextDelta() != nil:
			event.GetTextDelta().Offset = int32(offset)
			offset += len(event.GetTextDelta().GetText())
		}
		events[i] = event
	}
	return events
}

func opens(event *parleyv1.TurnEvent) bool {
	return event.GetAnswerStarted() != nil || event.GetToolResult() != nil
}

// Merged are events as the store has them: texts merged, notes left out.
func Merged(events []*parleyv1.TurnEvent) []*parleyv1.TurnEvent {
	var merged []*parleyv1.TurnEvent
	var text *parleyv1.TurnEvent // Of the answer message under way.
	for _, event := range events {
		switch event = proto.CloneOf(event); {
		case event.GetProgress() != nil, event.GetQueued() != nil:
			continue
		case event.GetStarted() != nil:
			event.GetStarted().Replayed = true
		case opens(event):
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

// Story tells events in lines that do not depend on how they were cut: the text of a message
// in one, its data beside it. Notes may be left out.
func Story(events []*parleyv1.TurnEvent) []string {
	var lines []string
	var text strings.Builder
	message := 0
	tell := func() {
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
			if opens(event) || event.GetFinished() != nil {
				tell()
				message = int(event.GetIndex()) // The same in every telling.
			}
			event = proto.CloneOf(event)
			if event.GetStarted() != nil {
				event.GetStarted().Replayed = false
			}
			lines = append(lines, fmt.Sprintf("%d %T", event.GetIndex(), event.GetEvent()))
		}
	}
	tell()
	return lines
}

// Steps of a turn, without their place in it.

// Started says that the turn of that conversation has started.
func Started(conversation string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: &parleyv1.TurnStarted{
		Conversation: &parleyv1.Conversation{Id: conversation},
	}}}
}

// Text is a piece of text.
func Text(text string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: text}}}
}

// Data is a value beside the text.
func Data(kind string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_StructuredData{StructuredData: &parleyv1.StructuredData{Type: kind}}}
}

// Call asks for a tool.
func Call(id string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolCall{ToolCall: &parleyv1.ToolCall{Id: id}}}
}

// Result ends an answer message.
func Result(id string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolResult{ToolResult: &parleyv1.ToolResult{CallId: id}}}
}

// Next opens the next answer message.
func Next(agent string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_AnswerStarted{AnswerStarted: &parleyv1.AnswerStarted{Agent: agent}}}
}

// Note is a note of the agent's.
func Note(text string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{Text: text}}}
}

// Queued says that the turn waits.
func Queued(position int32) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Queued{Queued: &parleyv1.TurnQueued{Position: position}}}
}

// Finished ends a turn.
func Finished() *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{
		Turn: &parleyv1.Turn{State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	}}}
}
