package turn

import (
	"context"
	"iter"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/proto"
)

// replay returns the events of the turn that a request began when it came first: those of
// the live turn, else what the store kept of it.
func (m *Manager) replay(ctx context.Context, tenant, id string, first *store.Seen) (iter.Seq2[*parleyv1.TurnEvent, error], error) {
	m.mu.Lock()
	t := m.live[first.TurnID]
	m.mu.Unlock()
	if t != nil {
		return markReplayed(t.events.read(ctx, 0)), nil
	}
	snapshot, err := m.o.Store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Newest: -1, Turns: true})
	if err != nil {
		return nil, err
	}
	kept, err := snapshot.Messages.Messages()
	if err != nil {
		return nil, err
	}
	for _, turn := range snapshot.Turns {
		switch {
		case turn.GetId() != first.TurnID:
		case turn.GetFinishTime() == nil:
			// The store could not take its end; the next start will see to it.
			return nil, &store.BusyError{TurnID: turn.GetId()}
		default:
			return stored(snapshot.Conversation, kept, turn, first.Created), nil
		}
	}
	return nil, &EventsGoneError{}
}

// markReplayed marks the started event of a live turn for somebody who joins it.
func markReplayed(events iter.Seq2[*parleyv1.TurnEvent, error]) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		for event, err := range events {
			if event.GetStarted() != nil {
				event = proto.CloneOf(event)
				event.GetStarted().Replayed = true
			}
			if !yield(event, err) {
				return
			}
		}
	}
}

// stored makes events of what the store kept of a turn that has ended: the same as the
// first reader saw, with the text of each message in one piece.
func stored(c *parleyv1.Conversation, kept []*parleyv1.Message, turn *parleyv1.Turn, created bool) iter.Seq2[*parleyv1.TurnEvent, error] {
	c.SystemPrompt = "" // The event only reports a change.
	started := &parleyv1.TurnStarted{Conversation: c, Agent: turn.GetAgent(), Replayed: true, Created: created}
	var answer []*parleyv1.Message
	for _, m := range kept {
		switch {
		case m.GetSequence() == turn.GetInputSequence():
			started.UserMessage = m
		case m.GetTurnId() == turn.GetId():
			answer = append(answer, m)
		}
	}
	events := []*parleyv1.TurnEvent{{Event: &parleyv1.TurnEvent_Started{Started: started}}}
	for i, m := range answer {
		events = append(events, messageEvents(m, i > 0)...)
	}
	events = append(events, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{
		Turn: turn, Messages: answer, ConversationVersion: c.GetVersion(),
	}}})
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		for i, event := range events {
			event.TurnId, event.Index = turn.GetId(), int32(i+1)
			if !yield(event, nil) {
				return
			}
		}
	}
}

// messageEvents are the events that a stored message of an answer was made of.
func messageEvents(m *parleyv1.Message, another bool) []*parleyv1.TurnEvent {
	if result := m.GetToolResult(); result != nil {
		return []*parleyv1.TurnEvent{{Event: &parleyv1.TurnEvent_ToolResult{ToolResult: result}}}
	}
	var events []*parleyv1.TurnEvent
	if another {
		events = append(events, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_AnswerStarted{AnswerStarted: &parleyv1.AnswerStarted{Agent: m.GetAgent()}}})
	}
	if text := m.GetContent(); text != "" {
		events = append(events, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: text}}})
	}
	for _, data := range m.GetStructuredData() {
		events = append(events, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_StructuredData{StructuredData: data}})
	}
	for _, call := range m.GetToolCalls() {
		events = append(events, &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_ToolCall{ToolCall: call}})
	}
	return events
}
