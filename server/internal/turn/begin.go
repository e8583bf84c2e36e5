package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/window"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// begin has the store begin the turn.
func (t *live) begin() error {
	uid, err := t.m.mayBegin(t)
	if err != nil {
		return err
	}
	for {
		a, err := t.beginning()
		var result *store.Result
		if err == nil {
			a.UID = uid
			result, err = t.m.o.Store.Append(context.WithoutCancel(t.ctx), a)
		}
		switch again, err := t.again(err); {
		case again:
			t.found = nil
			continue
		case uid != "" && errors.Is(err, store.ErrNotFound):
			return ErrConversationGone
		case err != nil:
			return err
		case result.Replayed:
			return &seenError{&store.Seen{Created: result.Created, TurnID: result.Turn.GetId()}}
		}
		if len(result.Appended) > 0 {
			number(t.input, result.Appended[0])
		}
		t.result, t.log = result, t.log.With("agent", t.entry.Name)
		t.marks = a.Events
		t.marks.Created = result.Created
		t.m.begun(t)
		close(t.decided)
		return nil
	}
}

// again says whether to try once more to begin.
func (t *live) again(err error) (bool, error) {
	if _, changed := errors.AsType[*store.VersionError](err); changed && t.ifVersion() == nil {
		return true, nil // What is to be answered may have changed as well.
	}
	if busy, ok := errors.AsType[*store.BusyError](err); ok {
		reclaimed, err := t.m.reclaim(context.WithoutCancel(t.ctx), t.line.key, busy.TurnID)
		if reclaimed || err != nil {
			return reclaimed, err
		}
	}
	return false, err
}

// ifVersion is the version that the conversation must have when the turn begins. A turn that
// interrupts was held against it when it came: the one that it cut off has added to it.
func (t *live) ifVersion() *int32 {
	if t.queued && t.interrupts() {
		return nil
	}
	return t.request.IfVersion
}

// beginning is what the store is to do to begin the turn.
func (t *live) beginning() (*store.Append, error) {
	pending := t.request.GetAnswerPending()
	if t.found == nil || pending {
		if err := t.find(pending); err != nil {
			return nil, err
		}
	}
	var err error
	if t.entry, err = t.m.choose(t.request, t.found.Conversation); err != nil {
		return nil, err
	}
	t.answer.by(t.entry.Name)
	a := &store.Append{
		Tenant: t.line.tenant, ConversationID: t.line.id, Request: t.q, MustExist: t.request.GetMustExist(), IfVersion: t.ifVersion(),
		Begin: &parleyv1.Turn{Id: t.id, RequestId: t.request.GetRequestId(), Agent: t.entry.Name},
		// Created is what a crash would leave; the store's result will say for certain.
		Events: &storev1.TurnEvents{Started: t.events.last() + 1, AnswerPending: pending, Created: t.found.Conversation == nil},
	}
	if t.queued {
		a.Begin.CreateTime = timestamppb.New(t.accepted)
	}
	if !pending {
		a.Messages = []*parleyv1.Message{t.input}
		return a, nil
	}
	if t.input, err = pendingIn(t.found.Messages); err != nil {
		return nil, err
	}
	a.Begin.InputSequence = t.input.GetSequence()
	// What was read is what is answered, whatever comes in between.
	version := t.found.Conversation.GetVersion()
	if a.IfVersion != nil && *a.IfVersion != version {
		return nil, &store.VersionError{Current: version}
	}
	a.IfVersion = &version
	return a, nil
}

// find reads the conversation in which the turn is to begin, with its messages when what is
// to be answered is among them.
func (t *live) find(pending bool) error {
	read := &store.Read{Tenant: t.line.tenant, ConversationID: t.line.id, Request: t.q}
	if pending {
		read.Newest = -1
	}
	found, err := t.m.o.Store.Read(context.WithoutCancel(t.ctx), read)
	switch {
	case errors.Is(err, store.ErrNotFound) && !pending:
		found = &store.Snapshot{}
	case err != nil:
		return err
	case found.Seen != nil:
		return &seenError{found.Seen}
	}
	t.found = found
	return nil
}

// mayBegin says whether a turn whose time has come may begin, and in which conversation: that
// of the turns ahead; empty for the first of a line.
func (m *Manager) mayBegin(t *live) (uid string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case t.line.gone:
		err = ErrConversationGone
	case t.readers == 0:
		err = errDropped
	}
	if err != nil {
		t.q = nil // Nobody is to find it any more.
		delete(m.turns, t.id)
	}
	return t.line.uid, err
}

// begun notes what the store gave the turn, and what has come up since it was asked.
func (m *Manager) begun(t *live) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.uid, t.version = t.result.Conversation.GetUid(), t.result.Conversation.GetVersion()
	switch {
	case slices.Contains(t.gone, t.uid):
		m.shut(t.line) // Again, if need be: this turn runs now.
	case len(t.line.waiting) > 0 && t.line.waiting[0].interrupts():
		t.cancel(errInterrupted)
	default:
		m.deserted(t)
	}
}

// errUnreadable is the cause of a turn whose conversation the store could not read.
var errUnreadable = errors.New("history could not be read")

// prepare reads the history, tells readers that the turn has started, and makes the
// agent's request.
func (t *live) prepare() (*parleyv1.RespondRequest, error) {
	started := &parleyv1.TurnStarted{Conversation: t.result.Conversation, Agent: t.entry.Name, Created: t.result.Created}
	started.Conversation.SystemPrompt = "" // The event only reports a change.
	if !t.request.GetAnswerPending() {
		started.UserMessage = t.input
	}
	c, history, err := t.history()
	started.HistoryCount = int32(len(history))
	t.marks.HistoryCount = started.GetHistoryCount()
	t.events.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: started}})
	if err != nil {
		return nil, err
	}
	t.log.Info("conversation history", "message_count", len(history))
	t.log.Debug("stream started")
	return &parleyv1.RespondRequest{
		Conversation: c, Messages: append(history, t.input),
		SystemPrompt: t.systemPrompt(c), Agent: t.entry.Name, TurnId: t.id,
	}, nil
}

// history returns the conversation and what the agent is given of it ahead of the input.
func (t *live) history() (*parleyv1.Conversation, []*parleyv1.Message, error) {
	snapshot, err := t.m.o.Store.Read(context.WithoutCancel(t.ctx), &store.Read{
		Tenant: t.line.tenant, ConversationID: t.line.id, Newest: -1,
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil, ErrConversationGone
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %w", errUnreadable, err)
	case snapshot.Conversation.GetUid() != t.result.Conversation.GetUid():
		return nil, nil, ErrConversationGone
	}
	kept, err := snapshot.Messages.Messages()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return snapshot.Conversation, t.window(kept, snapshot.Offsets()), nil
}

// window is the history that the agent is given ahead of the input. What follows the input,
// from others or from a turn that did not complete, is none; the exchange that the input
// goes on with is not cut. Offsets are those of the messages kept.
func (t *live) window(kept []*parleyv1.Message, offsets []int64) []*parleyv1.Message {
	history := slices.DeleteFunc(kept, func(m *parleyv1.Message) bool { return m.GetSequence() >= t.input.GetSequence() })
	bounds := t.request.GetWindow()
	if bounds == nil {
		bounds = t.entry.Window
	}
	open := len(history)
	if t.input.GetRole() == parleyv1.Role_ROLE_TOOL {
		for i, m := range slices.Backward(history) {
			if m.GetRole() == parleyv1.Role_ROLE_USER {
				open = i
				break
			}
		}
	}
	return history[window.Start(history[:open], offsets[:open+1], bounds):]
}

// systemPrompt is the request's, else the conversation's, else the agent's.
func (t *live) systemPrompt(c *parleyv1.Conversation) string {
	switch {
	case t.request.SystemPrompt != nil:
		return t.request.GetSystemPrompt()
	case c.GetSystemPrompt() != "":
		return c.GetSystemPrompt()
	}
	return t.entry.SystemPrompt
}
