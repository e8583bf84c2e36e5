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
func (x *execution) agentRequest() (*parleyv1.RespondRequest, error) {
	started := &parleyv1.TurnStarted{
		Conversation: x.startResult.Conversation, Agent: x.agent.Name,
		Created: x.startResult.Created,
	}
	started.Conversation.SystemPrompt = "" // The event only reports a change.
	if !x.request.GetAnswerPending() && x.input.GetRole() == parleyv1.Role_ROLE_USER {
		started.UserMessage = x.input
	}
	c, messages, err := x.history()
	started.HistoryCount = int32(len(messages))
	x.eventIndexes.HistoryCount = started.GetHistoryCount()
	x.live.events.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: started}})
	if err != nil {
		return nil, err
	}
	if x.agentRecord, err = x.readRecord(x.agent.Record); err != nil {
		return nil, err
	}
	window.RemoveReasoning([]*parleyv1.Message{x.input})
	x.log.Info("conversation history", "message_count", len(messages))
	x.log.Debug("stream started")
	return &parleyv1.RespondRequest{
		Conversation: c, Messages: append(messages, x.input),
		SystemPrompt: x.systemPrompt(c), Agent: x.agent.Name, TurnId: x.live.id,
		CacheStable: x.windowBounds().GetCacheStable(),
	}, nil
}

// history returns the conversation and the messages before the input that the agent receives.
func (x *execution) history() (*parleyv1.Conversation, []*parleyv1.Message, error) {
	snapshot, err := x.manager.o.Store.Read(context.WithoutCancel(x.live.ctx), &store.Read{
		Tenant: x.live.conversation.tenant, ConversationID: x.live.conversation.id, Newest: -1,
		MaxBytes: store.MaxMessageBytes,
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil, ErrConversationDeleted
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %w", errHistoryUnreadable, err)
	case snapshot.Conversation.GetUid() != x.startResult.Conversation.GetUid():
		return nil, nil, ErrConversationDeleted
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errHistoryUnreadable, err)
	}
	bounds := x.windowBounds()
	if snapshot.MoreMessages {
		bounds = window.OfNewest(bounds, store.MaxMessageBytes)
	}
	return snapshot.Conversation, x.window(messages, snapshot.Offsets(), bounds), nil
}

// readRecord returns the record of the conversation with this key, nil if there is none or if the key is empty.
func (x *execution) readRecord(recordKey string) (*parleyv1.Record, error) {
	if recordKey == "" {
		return nil, nil
	}
	found, _, err := x.manager.o.Store.GetRecords(context.WithoutCancel(x.live.ctx), &store.GetRecords{
		Tenant: x.live.conversation.tenant, ConversationID: x.live.conversation.id, Keys: []string{recordKey},
		MaxBytes: maxReadBytes,
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, ErrConversationDeleted
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errHistoryUnreadable, err)
	}
	records, err := found.Records()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errHistoryUnreadable, err)
	}
	if len(records) == 0 {
		return nil, nil
	}
	return records[0], nil
}

// window returns the messages before the input that the agent receives. It excludes messages after
// the input, which come from other writers or from an incomplete turn. It never cuts the exchange
// to which the input belongs. offsets are those of the stored messages.
func (x *execution) window(
	messages []*parleyv1.Message, offsets []int64, bounds *parleyv1.ContextWindow,
) []*parleyv1.Message {
	before := slices.DeleteFunc(messages,
		func(m *parleyv1.Message) bool { return m.GetSequence() >= x.input.GetSequence() })
	window.RemoveReasoning(before)
	exchange := history.ExchangeStart(before, x.input)
	return before[window.Start(before[:exchange], offsets[:exchange+1], bounds):]
}

// windowBounds returns the bounds of the request, else those of the agent, else nil.
func (x *execution) windowBounds() *parleyv1.ContextWindow {
	if w := x.request.GetWindow(); w != nil {
		return w
	}
	return x.agent.Window
}

// systemPrompt returns the prompt of the request, else of the conversation, else of the agent.
func (x *execution) systemPrompt(c *parleyv1.Conversation) string {
	switch {
	case x.request.SystemPrompt != nil:
		return x.request.GetSystemPrompt()
	case c.GetSystemPrompt() != "":
		return c.GetSystemPrompt()
	}
	return x.agent.SystemPrompt
}
