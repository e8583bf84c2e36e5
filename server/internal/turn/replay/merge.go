package replay

import (
	"cmp"
	"slices"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Merge returns the events of messages in the order of their indexes. The text of each
// message is one event.
func Merge(
	turnID string, messages []*parleyv1.Message, allIndexes []*storev1.MessageEvents,
) []*parleyv1.TurnEvent {
	var events []*parleyv1.TurnEvent
	add := func(index int32, e *parleyv1.TurnEvent) {
		e.TurnId, e.Index = turnID, index
		events = append(events, e)
	}
	for i, m := range messages {
		indexes := allIndexes[i]
		if index := indexes.GetAnswerStarted(); index > 0 {
			add(index, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_AnswerStarted{
				AnswerStarted: &parleyv1.AnswerStarted{Agent: m.GetAgent()},
			}})
		}
		if index := indexes.GetLastText(); index > 0 {
			add(index, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{
				TextDelta: &parleyv1.TextDelta{Text: m.GetContent()},
			}})
		}
		for j, index := range indexes.GetStructuredData() {
			add(index, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_StructuredData{StructuredData: m.GetStructuredData()[j]}})
		}
		for j, index := range indexes.GetToolCalls() {
			add(index, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolCall{ToolCall: m.GetToolCalls()[j]}})
		}
		if index := indexes.GetToolResult(); index > 0 {
			add(index, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolResult{ToolResult: m.GetToolResult()}})
		}
	}
	slices.SortFunc(events, func(a, b *parleyv1.TurnEvent) int { return cmp.Compare(a.GetIndex(), b.GetIndex()) })
	return events
}

// lastEventIndex returns the index of the last event of a message.
func lastEventIndex(indexes *storev1.MessageEvents) int32 {
	last := max(indexes.GetAnswerStarted(), indexes.GetLastText(), indexes.GetToolResult())
	for _, indexes := range [][]int32{indexes.GetStructuredData(), indexes.GetToolCalls()} {
		if n := len(indexes); n > 0 {
			last = max(last, indexes[n-1])
		}
	}
	return last
}
