package turn

import (
	"context"
	"errors"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
	"github.com/parleyhq/parley/server/internal/turn/replay"
	"github.com/parleyhq/parley/store"
)

// errReaderStopped reports that the reader has stopped reading.
var errReaderStopped = errors.New("the reader stopped reading")

// repeatedRequestError reports that the request already started a turn, which is in the store.
type repeatedRequestError struct{ *store.Seen }

// Error implements error.
func (e *repeatedRequestError) Error() string {
	return "this request already started turn " + e.TurnID
}

// yieldFunc receives events. It returns false to stop.
type yieldFunc = func(*parleyv1.TurnEvent, error) bool

// output is the part of a turn that readers use. It never changes; the event log and the answer have
// their own locks.
type output struct {
	id     string // of the turn
	events *eventlog.Log
	answer *answer.Answer
}

// followAndDetach yields the turn's events after an index to an attached reader, and detaches the
// reader. If another server has ended the turn, it continues from the store.
func (m *Manager) followAndDetach(
	ctx context.Context, e *queueEntry, after int32, replayed bool, yield yieldFunc,
) error {
	defer m.detachReader(e)
	received := ReceivedThrough(after)
	err := e.live.follow(ctx, after, replayed, func(event *parleyv1.TurnEvent, err error) bool {
		received.Add(event)
		return yield(event, err)
	})
	if errors.Is(err, errEndedElsewhere) {
		return m.followStored(ctx, e.live.conversation, m.uidOf(e), e.live.id, received, yield)
	}
	return err
}

// uidOf returns the uid of the conversation of a turn, empty before its start.
func (m *Manager) uidOf(e *queueEntry) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return e.uid
}

// follow yields the turn's events after an index. replayed is set for readers that did not start the
// turn.
func (o *output) follow(ctx context.Context, after int32, replayed bool, yield yieldFunc) error {
	for event, err := range o.events.Read(ctx, after) {
		if goneErr := new(EventsGoneError); after == 0 && errors.As(err, &goneErr) {
			return o.followMerged(ctx, replayed, yield)
		}
		if err != nil {
			return err
		}
		if after = event.GetIndex(); !yield(markReplayed(event, replayed), nil) {
			return errReaderStopped
		}
	}
	return nil
}

// followMerged yields the answer so far with merged texts, since the first events are no longer
// retained, and then the following events.
func (o *output) followMerged(ctx context.Context, replayed bool, yield yieldFunc) error {
	partial := o.answer.Snapshot(-1)
	events := replay.Merge(o.id, partial.Messages, partial.Indexes, partial.Calls...)
	if started := o.events.Started(); started != nil && started.GetIndex() <= partial.LastIndex {
		events = slices.Insert(events, 0, started)
	}
	for _, event := range events {
		if !yield(markReplayed(event, replayed), nil) {
			return errReaderStopped
		}
	}
	for event, err := range o.events.Read(ctx, partial.LastIndex) {
		if err != nil {
			return err
		}
		if !yield(event, nil) {
			return errReaderStopped
		}
	}
	return nil
}

// markReplayed marks a started event for a reader that did not start the turn. The caller owns the
// event.
func markReplayed(event *parleyv1.TurnEvent, replayed bool) *parleyv1.TurnEvent {
	if started := event.GetStarted(); replayed && started != nil {
		started.Replayed = true
	}
	return event
}

// replay yields the events of a turn after an index, from memory if the turn is retained and else
// from the store. If turnID is empty, it uses currentTurnID.
func (m *Manager) replay(ctx context.Context, at key, turnID string, after int32, yield yieldFunc) error {
	read := &store.Read{Tenant: at.tenant, ConversationID: at.id, Turns: turnID == ""}
	snapshot, err := m.o.Store.Read(ctx, read)
	if err != nil {
		return err
	}
	if turnID == "" {
		turnID = currentTurnID(snapshot)
	}
	uid := snapshot.Conversation.GetUid()
	if e := m.attach(at, turnID, uid); e != nil {
		return m.followAndDetach(ctx, e, after, true, yield)
	}
	if turnID == "" {
		return &NotFoundError{}
	}
	if _, err := m.endIfLeft(ctx, turnID); err != nil {
		return err
	}
	found, err := m.findStored(ctx, at, turnID)
	switch {
	case err != nil:
		return err
	case found.Turn.GetFinishTime() == nil:
		return m.runningError(turnID)
	}
	stored, err := m.readStored(ctx, at, uid, found)
	if err != nil {
		return err
	}
	events, err := stored.After(after)
	for _, event := range events {
		if !yield(event, nil) {
			return errReaderStopped
		}
	}
	return err
}

// messagesOf returns the read of the messages from the input of a turn that has ended to its answer.
func messagesOf(at key, turn *parleyv1.Turn) *store.Read {
	read := &store.Read{Tenant: at.tenant, ConversationID: at.id}
	first, last := turn.GetInputSequence(), max(turn.GetInputSequence(), turn.GetLastAnswerSequence())
	if answered := turn.GetFirstAnswerSequence(); first == 0 || answered > 0 && answered < first {
		first = answered
	}
	if last > 0 {
		read.Newest, read.After, read.Before = -1, first-1, last+1
	}
	return read
}

// currentTurnID returns the id of the running turn, else of the newest turn, else "".
func currentTurnID(s *store.Snapshot) string {
	if id := s.Conversation.GetActiveTurnId(); id != "" {
		return id
	}
	if n := len(s.Turns); n > 0 {
		return s.Turns[n-1].GetId()
	}
	return ""
}

func findTurn(turns []*parleyv1.Turn, id string) *parleyv1.Turn {
	for _, turn := range turns {
		if turn.GetId() == id {
			return turn
		}
	}
	return nil
}

// attach attaches a reader to a turn in memory. It returns nil if there is none or if it belongs to
// an earlier conversation with the same id, one with another uid.
func (m *Manager) attach(at key, turnID, uid string) *queueEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.turns[turnID]
	if e == nil || e.live.conversation != at || e.uid != "" && e.uid != uid {
		return nil
	}
	e.readers++
	return e
}
