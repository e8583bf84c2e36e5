package replay

import (
	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// LostIndexGap is the distance between the last saved event index of a turn that a crash cut off
// and the index of its finished event. It is larger than the number of events between two saves, so
// that no reader has already received an event with that index.
const LostIndexGap = 1 << 20

// assignIndexes returns event indexes for a turn of an earlier version, which stored none. A reader
// cannot resume within such a turn.
func assignIndexes(answer map[int32]*parleyv1.Message, first, last int32) *storev1.TurnEvents {
	e, index := &storev1.TurnEvents{Started: 1, LostAfter: 1}, int32(1)
	next := func() int32 { index++; return index }
	for at := first; at <= last; at++ {
		m, indexes := answer[at], new(storev1.MessageEvents)
		if at > first && m.GetToolResult() == nil {
			indexes.AnswerStarted = next()
		}
		if n := len(m.GetReasoning()); n > 0 {
			only := next()
			indexes.Deltas = append(indexes.Deltas, &storev1.DeltaRun{
				First: only, Last: only, Bytes: int32(n), Reasoning: true,
			})
		}
		if n := len(m.GetContent()); n > 0 {
			only := next()
			indexes.FirstText, indexes.LastText = only, only
			indexes.Deltas = append(indexes.Deltas, &storev1.DeltaRun{First: only, Last: only, Bytes: int32(n)})
		}
		for range m.GetStructuredData() {
			indexes.StructuredData = append(indexes.StructuredData, next())
		}
		for range m.GetToolCalls() {
			indexes.ToolCalls = append(indexes.ToolCalls, next())
		}
		if m.GetToolResult() != nil {
			indexes.ToolResult = next()
		}
		e.Messages = append(e.Messages, indexes)
	}
	e.Finished = next()
	return e
}

// CompleteIndexes completes the event indexes of a turn that a crash cut off.
func CompleteIndexes(e *storev1.TurnEvents) *storev1.TurnEvents {
	if e == nil {
		return nil
	}
	e.LostAfter = max(e.GetLostAfter(), e.GetStarted())
	e.Finished = e.GetLostAfter() + LostIndexGap
	return e
}
