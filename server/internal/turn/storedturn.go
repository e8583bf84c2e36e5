package turn

import (
	"cmp"
	"slices"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// storedTurn is what the store retains of a turn that has ended.
type storedTurn struct {
	started        *parleyv1.TurnStarted
	finished       *parleyv1.TurnFinished
	answer         []*parleyv1.Message // the part of the answer that is still in the history
	indexes        []*storev1.MessageEvents
	turnEvents     *storev1.TurnEvents
	missingThrough int32 // index of the last event of a message that is not in answer
}

func newStoredTurn(s *store.Snapshot, turn *parleyv1.Turn) (*storedTurn, error) {
	messages, err := s.Messages.Messages()
	if err != nil {
		return nil, err
	}
	s.Conversation.SystemPrompt = "" // The event only reports a change.
	r := &storedTurn{started: &parleyv1.TurnStarted{Conversation: s.Conversation, Agent: turn.GetAgent(), Replayed: true}}
	first, last := turn.GetFirstAnswerSequence(), turn.GetLastAnswerSequence()
	answer := make(map[int32]*parleyv1.Message)
	for _, m := range messages {
		switch at := m.GetSequence(); {
		case at == turn.GetInputSequence() && m.GetRole() == parleyv1.Role_ROLE_USER:
			r.started.UserMessage = m
		case first > 0 && at >= first && at <= last:
			answer[at] = m
		}
	}
	i := slices.IndexFunc(s.Events, func(e *storev1.TurnEvents) bool { return e.GetTurnId() == turn.GetId() })
	if i >= 0 {
		r.turnEvents = s.Events[i]
	} else {
		r.turnEvents = assignIndexes(answer, first, last)
	}
	for i, mark := range r.turnEvents.GetMessages() {
		if m := answer[first+int32(i)]; m != nil {
			r.answer, r.indexes = append(r.answer, m), append(r.indexes, mark)
		} else {
			r.missingThrough = max(r.missingThrough, lastEventIndex(mark))
		}
	}
	if r.turnEvents.GetAnswerPending() {
		r.started.UserMessage = nil
	}
	r.started.HistoryCount, r.started.Created = r.turnEvents.GetHistoryCount(), r.turnEvents.GetCreated()
	r.finished = &parleyv1.TurnFinished{
		Turn: turn, Messages: r.answer,
		ConversationVersion: r.turnEvents.GetConversationVersion(),
	}
	return r, nil
}

// assignIndexes returns event indexes for a turn of an earlier version, which stored none. A reader
// cannot resume within such a turn.
func assignIndexes(answer map[int32]*parleyv1.Message, first, last int32) *storev1.TurnEvents {
	e, index := &storev1.TurnEvents{Started: 1, LostAfter: 1}, int32(1)
	next := func() int32 { index++; return index }
	for at := first; at <= last; at++ {
		m, mark := answer[at], new(storev1.MessageEvents)
		if at > first && m.GetToolResult() == nil {
			mark.AnswerStarted = next()
		}
		if m.GetContent() != "" {
			mark.FirstText = next()
			mark.LastText = mark.FirstText
		}
		for range m.GetStructuredData() {
			mark.StructuredData = append(mark.StructuredData, next())
		}
		for range m.GetToolCalls() {
			mark.ToolCalls = append(mark.ToolCalls, next())
		}
		if m.GetToolResult() != nil {
			mark.ToolResult = next()
		}
		e.Messages = append(e.Messages, mark)
	}
	e.Finished = next()
	return e
}

// eventsAfter returns the events after an index. The text of a message is one event, so a reader
// cannot resume within a text.
func (r *storedTurn) eventsAfter(index int32) ([]*parleyv1.TurnEvent, error) {
	finished, lost := r.turnEvents.GetFinished(), r.turnEvents.GetLostAfter()
	unavailable := index > finished || index < r.missingThrough || lost > 0 && index > lost
	for _, mark := range r.indexes {
		unavailable = unavailable || index >= mark.GetFirstText() && index < mark.GetLastText()
	}
	switch {
	case index == 0:
	case index == finished:
		return nil, nil
	case unavailable:
		return nil, &EventsGoneError{After: index, Oldest: 1, Last: finished}
	}
	turnID := r.finished.GetTurn().GetId()
	all := []*parleyv1.TurnEvent{{
		TurnId: turnID, Index: r.turnEvents.GetStarted(),
		Event: &parleyv1.TurnEvent_Started{Started: r.started},
	}}
	all = append(all, mergedEvents(turnID, r.answer, r.indexes)...)
	all = append(all, &parleyv1.TurnEvent{
		TurnId: turnID, Index: finished,
		Event: &parleyv1.TurnEvent_Finished{Finished: r.finished},
	})
	return slices.DeleteFunc(all, func(e *parleyv1.TurnEvent) bool { return e.GetIndex() <= index }), nil
}

// mergedEvents returns the events of messages in the order of their indexes. The text of each
// message is one event.
func mergedEvents(
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
