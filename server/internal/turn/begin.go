package turn

import (
	"context"
	"errors"
	"slices"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/window"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// begin has the store begin the turn.
func (t *live) begin() error {
	if t.m.isDeserted(t) {
		return errLeft
	}
	for {
		a, err := t.beginning()
		if err != nil {
			return err
		}
		result, err := t.m.o.Store.Append(context.WithoutCancel(t.ctx), a)
		if changed := new(store.VersionError); errors.As(err, &changed) && t.request.IfVersion == nil {
			continue // What is to be answered may have changed as well.
		}
		switch {
		case err != nil:
			return err
		case result.Replayed:
			return &seenError{&store.Seen{Created: result.Created, TurnID: result.Turn.GetId()}}
		}
		if len(result.Appended) > 0 {
			number(t.input, result.Appended[0])
		}
		t.begun, t.log = result, t.log.With("agent", t.entry.Name)
		t.marks = a.Events
		t.marks.Created = result.Created
		t.m.begun(t)
		close(t.decided)
		return nil
	}
}

// beginning is what the store is to do to begin the turn.
func (t *live) beginning() (*store.Append, error) {
	pending := t.request.GetAnswerPending()
	if t.found == nil || pending {
		newest := 0
		if pending {
			newest = -1
		}
		found, err := t.m.o.Store.Read(context.WithoutCancel(t.ctx), &store.Read{
			Tenant: t.line.tenant, ConversationID: t.line.id, Request: t.q, Newest: newest,
		})
		switch {
		case errors.Is(err, store.ErrNotFound) && !pending:
			found = &store.Snapshot{}
		case err != nil:
			return nil, err
		case found.Seen != nil:
			return nil, &seenError{found.Seen}
		}
		t.found = found
	}
	var err error
	if t.entry, err = t.m.choose(t.request, t.found.Conversation); err != nil {
		return nil, err
	}
	t.answer.by(t.entry.Name)
	a := &store.Append{
		Tenant: t.line.tenant, ConversationID: t.line.id, Request: t.q,
		MustExist: t.request.GetMustExist(), IfVersion: t.request.IfVersion,
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

// isDeserted says whether everybody has left a turn that is about to begin.
func (m *Manager) isDeserted(t *live) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.readers > 0 {
		return false
	}
	t.q = nil // Nobody is to join it any more.
	delete(m.turns, t.id)
	return true
}

// begun notes what the store gave the turn, and what has come up since it was asked.
func (m *Manager) begun(t *live) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.uid = t.begun.Conversation.GetUid()
	switch {
	case slices.Contains(t.gone, t.uid):
		m.shut(t.line)
	case len(t.line.waiting) > 0 && t.line.waiting[0].interrupts():
		t.cancel(errInterrupted)
	default:
		m.deserted(t)
	}
}

// prepare reads the history, tells readers that the turn has started, and makes the
// agent's request.
func (t *live) prepare() (*parleyv1.RespondRequest, error) {
	snapshot, err := t.m.o.Store.Read(context.WithoutCancel(t.ctx), &store.Read{
		Tenant: t.line.tenant, ConversationID: t.line.id, Newest: -1,
	})
	if err != nil {
		return nil, err
	}
	if snapshot.Conversation.GetUid() != t.begun.Conversation.GetUid() {
		return nil, ErrConversationGone
	}
	kept, err := snapshot.Messages.Messages()
	if err != nil {
		return nil, err
	}
	history := t.window(kept)
	t.log.Info("conversation history", "message_count", len(history))
	started := &parleyv1.TurnStarted{
		Conversation: t.begun.Conversation, Agent: t.entry.Name, HistoryCount: int32(len(history)), Created: t.begun.Created,
	}
	started.Conversation.SystemPrompt = "" // The event only reports a change.
	if !t.request.GetAnswerPending() {
		started.UserMessage = t.input
	}
	t.marks.HistoryCount = started.GetHistoryCount()
	t.events.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: started}})
	t.log.Debug("stream started")
	return &parleyv1.RespondRequest{
		Conversation: snapshot.Conversation, Messages: append(history, t.input),
		SystemPrompt: t.systemPrompt(snapshot.Conversation), Agent: t.entry.Name, TurnId: t.id,
	}, nil
}

// window is the history that the agent is given ahead of the input. What follows the input,
// from others or from a turn that did not complete, is none; the exchange that the input
// goes on with is not cut.
func (t *live) window(kept []*parleyv1.Message) []*parleyv1.Message {
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
	return history[window.Start(history[:open], bounds):]
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
