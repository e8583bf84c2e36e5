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
	events, offsets := make([]*parleyv1.TurnEvent, len(steps)), make(map[string]int32)
	for i, step := range steps {
		event := proto.CloneOf(step)
		event.TurnId, event.Index = turn, int32(i+1)
		if beginsMessage(event) {
			clear(offsets)
		}
		if of, text, offset := delta(event); of != "" {
			*offset = offsets[of]
			offsets[of] += int32(len(*text))
		}
		events[i] = event
	}
	return events
}

// delta returns what event is a delta of, "" if it is none, and its text and offset.
func delta(event *parleyv1.TurnEvent) (of string, text *string, offset *int32) {
	switch e := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_TextDelta:
		return "text", &e.TextDelta.Text, &e.TextDelta.Offset
	case *parleyv1.TurnEvent_ReasoningDelta:
		return "reasoning", &e.ReasoningDelta.Text, &e.ReasoningDelta.Offset
	case *parleyv1.TurnEvent_ToolCallDelta:
		return "call " + e.ToolCallDelta.GetId(), &e.ToolCallDelta.Arguments, &e.ToolCallDelta.Offset
	default:
		return "", nil, nil
	}
}

// beginsMessage reports whether event begins the next message of an answer.
func beginsMessage(event *parleyv1.TurnEvent) bool {
	return event.GetAnswerStarted() != nil || event.GetToolResult() != nil
}

// Merged returns events as the store replays them: texts are merged, and so is reasoning, up to a delta of
// another kind. Progress notes and the deltas of calls are left out, except those of calls that the agent is
// still writing, which are merged.
func Merged(events []*parleyv1.TurnEvent) []*parleyv1.TurnEvent {
	var merged []*parleyv1.TurnEvent
	runs := make(map[string]*parleyv1.TurnEvent) // The open runs of the current message, by what they are of.
	for _, event := range events {
		event = proto.CloneOf(event)
		of, text, _ := delta(event)
		for other := range runs {
			if of != "" && of != other && !strings.HasPrefix(other, "call ") {
				delete(runs, other)
			}
		}
		switch {
		case event.GetProgress() != nil, event.GetQueued() != nil:
			continue
		case event.GetStarted() != nil:
			event.GetStarted().Replayed = true
		case beginsMessage(event):
			merged = withoutDeltasOf(merged, "")
			clear(runs)
		case event.GetToolCall() != nil:
			merged = withoutDeltasOf(merged, event.GetToolCall().GetId())
			delete(runs, "call "+event.GetToolCall().GetId())
		case of != "" && runs[of] != nil:
			_, before, _ := delta(runs[of])
			*before += *text
			runs[of].Index = event.GetIndex()
			continue
		case of != "":
			runs[of] = event
		}
		merged = append(merged, event)
	}
	slices.SortFunc(merged, func(a, b *parleyv1.TurnEvent) int { return cmp.Compare(a.GetIndex(), b.GetIndex()) })
	return merged
}

// withoutDeltasOf removes the deltas of a call, or of all calls if id is empty.
func withoutDeltasOf(events []*parleyv1.TurnEvent, id string) []*parleyv1.TurnEvent {
	return slices.DeleteFunc(events, func(e *parleyv1.TurnEvent) bool {
		return e.GetToolCallDelta() != nil && (id == "" || e.GetToolCallDelta().GetId() == id)
	})
}

// Summary describes events in lines that do not depend on how the texts were cut: one line for the
// text of a message, one line for its reasoning, one line for each other event. It leaves out progress
// notes and the deltas of calls.
func Summary(events []*parleyv1.TurnEvent) []string {
	var lines []string
	texts := make(map[string]string)
	message := 0
	flush := func() {
		for _, of := range []string{"reasoning", "text"} {
			if texts[of] != "" {
				lines = append(lines, fmt.Sprintf("%s %d: %s", of, message, texts[of]))
			}
		}
		clear(texts)
	}
	for _, event := range events {
		of, text, _ := delta(event)
		switch {
		case of != "":
			texts[of] += *text
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

// Reasoning returns a reasoning delta.
func Reasoning(text string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{
		Event: &parleyv1.TurnEvent_ReasoningDelta{ReasoningDelta: &parleyv1.ReasoningDelta{Text: text}},
	}
}

// CallDelta returns a delta of the arguments of a tool call.
func CallDelta(id, arguments string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolCallDelta{
		ToolCallDelta: &parleyv1.ToolCallDelta{Id: id, Name: "f", Arguments: arguments},
	}}
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

// Stored returns the event of a record of the answer.
func Stored(key string) *parleyv1.TurnEvent {
	return &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Record{Record: &parleyv1.TurnRecord{Key: key}}}
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
