package turn

import (
	"context"
	"errors"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// errStopYielding says that a reader has left the sequence.
var errReaderStopped = errors.New("the reader has left")

// seenError says that a request began a turn which is in the store.
type repeatedRequestError struct{ *store.Seen }

// Error says so.
func (e *repeatedRequestError) Error() string {
	return "turn " + e.TurnID + " was begun by this request"
}

// yielder takes events; false: no more.
type yieldFunc = func(*parleyv1.TurnEvent, error) bool

// follow yields the turn's events behind an index to a reader that is attached to it.
func (t *liveTurn) follow(ctx context.Context, after int32, replayed bool, yield yieldFunc) error {
	defer t.manager.detachReader(t)
	for event, err := range t.events.read(ctx, after) {
		if gone := new(EventsGoneError); after == 0 && errors.As(err, &gone) {
			return t.followMerged(ctx, replayed, yield)
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

// catchUp yields what has happened so far with merged texts, since the first events are no
// longer kept, and then what follows.
func (t *liveTurn) followMerged(ctx context.Context, replayed bool, yield yieldFunc) error {
	partial := t.answer.snapshot(-1)
	events := mergedEvents(t.id, partial.messages, partial.indexes)
	if started := t.events.started(); started != nil && started.GetIndex() <= partial.lastIndex {
		events = slices.Insert(events, 0, started)
	}
	for _, event := range events {
		if !yield(markReplayed(event, replayed), nil) {
			return errReaderStopped
		}
	}
	for event, err := range t.events.read(ctx, partial.lastIndex) {
		if err != nil {
			return err
		}
		if !yield(event, nil) {
			return errReaderStopped
		}
	}
	return nil
}

// marked marks a started event for a reader that did not begin the turn. The caller owns the event.
func markReplayed(event *parleyv1.TurnEvent, replayed bool) *parleyv1.TurnEvent {
	if started := event.GetStarted(); replayed && started != nil {
		started.Replayed = true
	}
	return event
}

// replay yields the events of a turn behind an index: of a live one, else what the store
// kept. An empty turnID is the running turn, else the newest.
func (m *Manager) replay(ctx context.Context, at key, turnID string, after int32, yield yieldFunc) error {
	read := &store.Read{Tenant: at.tenant, ConversationID: at.id, Turns: true}
	snapshot, err := m.o.Store.Read(ctx, read)
	if err != nil {
		return err
	}
	if turnID == "" {
		turnID = currentTurnID(snapshot)
	}
	if t := m.attach(at, turnID, snapshot.Conversation.GetUid()); t != nil {
		return t.follow(ctx, after, true, yield)
	}
	read.Newest = -1
	if snapshot, err = m.o.Store.Read(ctx, read); err != nil {
		return err
	}
	turn := findTurn(snapshot.Turns, turnID)
	switch {
	case turn == nil:
		return &NotFoundError{TurnID: turnID}
	case turn.GetFinishTime() == nil:
		return &store.BusyError{TurnID: turnID} // The store could not take its end: the next start will see to it.
	}
	r, err := newStoredTurn(snapshot, turn)
	if err != nil {
		return err
	}
	events, err := r.eventsAfter(after)
	for _, event := range events {
		if !yield(event, nil) {
			return errReaderStopped
		}
	}
	return err
}

// newest is the running turn of a conversation, else the newest; empty: it had none.
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

// attach attaches a reader to a live turn of the conversation with that uid; nil when there
// is none.
func (m *Manager) attach(at key, turnID, uid string) *liveTurn {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.turns[turnID]
	if t == nil || t.queue.key != at || t.uid != "" && t.uid != uid {
		return nil
	}
	t.readers++
	return t
}
