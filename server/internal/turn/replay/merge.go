package replay

import (
	"cmp"
	"slices"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Merge returns the events of messages in the order of their indexes. Each run of the text or the reasoning
// of a message is one event. others are further events, which have an index.
func Merge(
	turnID string, messages []*parleyv1.Message, allIndexes []*storev1.MessageEvents, others ...*parleyv1.TurnEvent,
) []*parleyv1.TurnEvent {
	var events []*parleyv1.TurnEvent
	add := func(index int32, e *parleyv1.TurnEvent) {
		e.TurnId, e.Index = turnID, index
		events = append(events, e)
	}
	for _, e := range others {
		add(e.GetIndex(), e)
	}
	for i, m := range messages {
		indexes := allIndexes[i]
		if index := indexes.GetAnswerStarted(); index > 0 {
			add(index, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_AnswerStarted{
				AnswerStarted: &parleyv1.AnswerStarted{Agent: m.GetAgent()},
			}})
		}
		text, reasoning := int32(0), int32(0) // offsets of the next runs
		for _, run := range runs(m, indexes) {
			if n := run.GetBytes(); run.GetReasoning() {
				add(run.GetLast(), &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ReasoningDelta{
					ReasoningDelta: &parleyv1.ReasoningDelta{Text: part(m.GetReasoning(), reasoning, n), Offset: reasoning},
				}})
				reasoning += n
			} else {
				add(run.GetLast(), &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{
					TextDelta: &parleyv1.TextDelta{Text: part(m.GetContent(), text, n), Offset: text},
				}})
				text += n
			}
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

// runs returns the runs of text and reasoning of a message, in order.
func runs(m *parleyv1.Message, indexes *storev1.MessageEvents) []*storev1.DeltaRun {
	if len(indexes.GetDeltas()) > 0 || indexes.GetLastText() == 0 {
		return indexes.GetDeltas()
	}
	return []*storev1.DeltaRun{{
		First: indexes.GetFirstText(), Last: indexes.GetLastText(), Bytes: int32(len(m.GetContent())),
	}}
}

// part returns n bytes of s from offset on. If s is shorter, it returns what there is.
func part(s string, offset, n int32) string {
	return s[min(int(offset), len(s)):min(int(offset+n), len(s))]
}

// lastEventIndex returns the index of the last event of a message.
func lastEventIndex(indexes *storev1.MessageEvents) int32 {
	last := max(indexes.GetAnswerStarted(), indexes.GetLastText(), indexes.GetToolResult())
	for _, run := range indexes.GetDeltas() {
		last = max(last, run.GetLast())
	}
	for _, indexes := range [][]int32{indexes.GetStructuredData(), indexes.GetToolCalls()} {
		if n := len(indexes); n > 0 {
			last = max(last, indexes[n-1])
		}
	}
	return last
}
