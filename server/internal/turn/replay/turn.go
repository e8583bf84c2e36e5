// Package replay restores the events of a turn that has ended from what the store retains of it.
//
// The store retains the messages of the turn and the indexes of their events. A replay has the same
// indexes as the original events, but each run of the text or the reasoning of a message is one event, and
// the deltas of tool calls are left out. The package is pure.
//
// Start at [New].
package replay

import (
	"slices"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
	"github.com/parleyhq/parley/store"
)

// Turn is a turn that has ended, as far as the store retains it.
type Turn struct {
	started        *parleyv1.TurnStarted
	finished       *parleyv1.TurnFinished
	answer         []*parleyv1.Message // the part of the answer that is still in the history
	messageIndexes []*storev1.MessageEvents
	indexes        *storev1.TurnEvents
	missingThrough int32 // index of the last event of a message that is not in answer
}

// New returns a turn with its events. found is the turn in the store. The snapshot must include the messages from the
// input of the turn to its answer. New clears the system prompt of its conversation.
func New(s *store.Snapshot, found *store.FoundTurn) (*Turn, error) {
	turn := found.Turn
	messages, err := s.Messages.Messages()
	if err != nil {
		return nil, err
	}
	s.Conversation.SystemPrompt = "" // The event only reports a change.
	r := &Turn{started: &parleyv1.TurnStarted{Conversation: s.Conversation, Agent: turn.GetAgent(), Replayed: true}}
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
	r.indexes = found.Events
	if r.indexes == nil {
		r.indexes = assignIndexes(answer, first, last)
	}
	for i, indexes := range r.indexes.GetMessages() {
		if m := answer[first+int32(i)]; m != nil {
			r.answer, r.messageIndexes = append(r.answer, m), append(r.messageIndexes, indexes)
		} else {
			r.missingThrough = max(r.missingThrough, lastEventIndex(indexes))
		}
	}
	if r.indexes.GetAnswerPending() {
		r.started.UserMessage = nil
	}
	r.started.HistoryCount, r.started.Created = r.indexes.GetHistoryCount(), r.indexes.GetCreated()
	r.finished = &parleyv1.TurnFinished{
		Turn: turn, Messages: r.answer,
		ConversationVersion: r.indexes.GetConversationVersion(),
	}
	return r, nil
}

// After returns the events after an index; 0 returns all. It returns an eventlog.GoneError if the
// index is within a text or reasoning, which is a single event now, within dropped or lost events, or
// after the end.
func (r *Turn) After(index int32) ([]*parleyv1.TurnEvent, error) {
	finished, lost := r.indexes.GetFinished(), r.indexes.GetLostAfter()
	unavailable := index > finished || index < r.missingThrough || lost > 0 && index > lost
	for i, indexes := range r.messageIndexes {
		for _, run := range runs(r.answer[i], indexes) {
			unavailable = unavailable || index >= run.GetFirst() && index < run.GetLast()
		}
	}
	switch {
	case index == 0:
	case index == finished:
		return nil, nil
	case unavailable:
		return nil, &eventlog.GoneError{After: index, Oldest: 1, Last: finished}
	}
	turnID := r.finished.GetTurn().GetId()
	all := []*parleyv1.TurnEvent{{
		TurnId: turnID, Index: r.indexes.GetStarted(),
		Event: &parleyv1.TurnEvent_Started{Started: r.started},
	}}
	all = append(all, Merge(turnID, r.answer, r.messageIndexes)...)
	all = append(all, &parleyv1.TurnEvent{
		TurnId: turnID, Index: finished,
		Event: &parleyv1.TurnEvent_Finished{Finished: r.finished},
	})
	return slices.DeleteFunc(all, func(e *parleyv1.TurnEvent) bool { return e.GetIndex() <= index }), nil
}
