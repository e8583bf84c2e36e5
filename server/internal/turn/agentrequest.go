package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/history"
	"github.com/parleyhq/parley/server/internal/window"
	"github.com/parleyhq/parley/store"
)

// errHistoryUnreadable is the cause of a turn whose history the store could not read.
var errHistoryUnreadable = errors.New("the history could not be read")

// agentRequest reads the history, adds the started event and returns the request for the agent.
func (t *liveTurn) agentRequest() (*parleyv1.RespondRequest, error) {
	started := &parleyv1.TurnStarted{
		Conversation: t.startResult.Conversation, Agent: t.agent.Name,
		Created: t.startResult.Created,
	}
	started.Conversation.SystemPrompt = "" // The event only reports a change.
	if !t.request.GetAnswerPending() && t.input.GetRole() == parleyv1.Role_ROLE_USER {
		started.UserMessage = t.input
	}
	c, messages, err := t.history()
	started.HistoryCount = int32(len(messages))
	t.eventIndexes.HistoryCount = started.GetHistoryCount()
	t.events.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: started}})
	if err != nil {
		return nil, err
	}
	t.log.Info("conversation history", "message_count", len(messages))
	t.log.Debug("stream started")
	return &parleyv1.RespondRequest{
		Conversation: c, Messages: append(messages, t.input),
		SystemPrompt: t.systemPrompt(c), Agent: t.agent.Name, TurnId: t.id, CacheStable: t.windowBounds().GetCacheStable(),
	}, nil
}

// history returns the conversation and the messages before the input that the agent receives.
func (t *liveTurn) history() (*parleyv1.Conversation, []*parleyv1.Message, error) {
	snapshot, err := t.manager.o.Store.Read(context.WithoutCancel(t.ctx), &store.Read{
		Tenant: t.queue.tenant, ConversationID: t.queue.id, Newest: -1,
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil, ErrConversationGone
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %w", errHistoryUnreadable, err)
	case snapshot.Conversation.GetUid() != t.startResult.Conversation.GetUid():
		return nil, nil, ErrConversationGone
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errHistoryUnreadable, err)
	}
	return snapshot.Conversation, t.window(messages, snapshot.Offsets()), nil
}

// window returns the messages before the input that the agent receives. It excludes messages after
// the input, which come from other writers or from an incomplete turn. It never cuts the exchange
// to which the input belongs. offsets are those of the stored messages.
func (t *liveTurn) window(messages []*parleyv1.Message, offsets []int64) []*parleyv1.Message {
	before := slices.DeleteFunc(messages,
		func(m *parleyv1.Message) bool { return m.GetSequence() >= t.input.GetSequence() })
	exchange := history.ExchangeStart(before, t.input)
	return before[window.Start(before[:exchange], offsets[:exchange+1], t.windowBounds()):]
}

// windowBounds returns the bounds of the request, else those of the agent, else nil.
func (t *liveTurn) windowBounds() *parleyv1.ContextWindow {
	if w := t.request.GetWindow(); w != nil {
		return w
	}
	return t.agent.Window
}

// systemPrompt returns the prompt of the request, else of the conversation, else of the agent.
func (t *liveTurn) systemPrompt(c *parleyv1.Conversation) string {
	switch {
	case t.request.SystemPrompt != nil:
		return t.request.GetSystemPrompt()
	case c.GetSystemPrompt() != "":
		return c.GetSystemPrompt()
	}
	return t.agent.SystemPrompt
}
