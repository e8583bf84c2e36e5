package agui

import (
	"context"
	"errors"
	"io"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway"
)

// protocolVersion is the version of AG-UI that the server speaks.
const protocolVersion = "1.0"

// event is an event of AG-UI. Fields that the type does not have are empty.
type event struct {
	Type            string    `json:"type"`
	ThreadID        string    `json:"threadId,omitempty"`
	RunID           string    `json:"runId,omitempty"`
	ProtocolVersion string    `json:"protocolVersion,omitempty"`
	MessageID       string    `json:"messageId,omitempty"`
	Role            string    `json:"role,omitempty"`
	Name            string    `json:"name,omitempty"`
	ToolCallID      string    `json:"toolCallId,omitempty"`
	ToolCallName    string    `json:"toolCallName,omitempty"`
	ParentMessageID string    `json:"parentMessageId,omitempty"`
	Delta           string    `json:"delta,omitempty"`
	Content         *string   `json:"content,omitempty"`
	Value           *any      `json:"value,omitempty"`
	Snapshot        *any      `json:"snapshot,omitempty"`
	Messages        []message `json:"messages,omitzero"`
	Outcome         *outcome  `json:"outcome,omitempty"`
	Usage           []usage   `json:"usage,omitempty"`
	Message         string    `json:"message,omitempty"`
	Code            string    `json:"code,omitempty"`
	Metadata        any       `json:"metadata,omitempty"`
}

type outcome struct {
	Type               string   `json:"type"`
	PendingToolCallIDs []string `json:"pendingToolCallIds,omitempty"`
}

type usage struct {
	Model             string `json:"model,omitempty"`
	InputTokens       int32  `json:"inputTokens"`
	OutputTokens      int32  `json:"outputTokens"`
	ReasoningTokens   int32  `json:"reasoningTokens,omitempty"`
	CachedInputTokens int32  `json:"cachedInputTokens,omitempty"`
}

// translation makes events of AG-UI of the events of one turn.
type translation struct {
	request         *request
	threadID, runID string
	ids             gateway.EventIDs
	at              position // What was sent.

	// number and hasContent are those of the events that arrive. They differ from those of at while events that
	// the client has already are skipped.
	number     int
	hasContent bool
	agent      string
	batch      []sentEvent // The events for the current event of the turn.
}

// sentEvent is an event, and the position after it.
type sentEvent struct {
	event *event
	at    position
}

// translation returns the translation of a turn that begins.
func (c *request) translation(threadID, runID string) *translation {
	return &translation{request: c, threadID: threadID, runID: runID, at: position{open: nothingOpen}}
}

// startAfter sets the index after which events arrive. It is 0 if they arrive from the beginning of the turn.
func (t *translation) startAfter(index int32) {
	t.ids = gateway.EventIDsAfter(index)
	if index > 0 {
		t.number, t.hasContent = t.at.number, t.at.hasContent
	}
}

// run translates the events that next returns until the end of the turn.
func (t *translation) run(ctx context.Context, next func() (*parleyv1.TurnEvent, error)) error {
	for {
		e, err := next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := t.add(ctx, e); err != nil {
			return err
		}
		t.request.out.flush()
	}
}

// add adds the events for an event of the turn to the stream.
func (t *translation) add(ctx context.Context, e *parleyv1.TurnEvent) error {
	if t.at.turnID == "" {
		t.at.turnID = e.GetTurnId()
		t.send(&event{
			Type: "RUN_STARTED", ThreadID: t.threadID, RunID: t.runID, ProtocolVersion: protocolVersion,
		})
		t.flushBatch()
	}
	if err := t.translate(ctx, e); err != nil {
		return err
	}
	// A client that has all events for e has e.
	index, pending, _ := gateway.ParseEventID(t.ids.ID(e))
	if index > t.at.index {
		t.at.index, t.at.textPending = index, pending
		if last := len(t.batch) - 1; last >= 0 {
			t.batch[last].at.index, t.batch[last].at.textPending = index, pending
		}
	}
	t.flushBatch()
	return nil
}

// send adds an event to the batch. The state in t.at must be that after the event.
func (t *translation) send(e *event) {
	at := t.at
	at.calls = slices.Clone(at.calls)
	t.batch = append(t.batch, sentEvent{e, at})
}

// flushBatch adds the events of the batch to the stream.
func (t *translation) flushBatch() {
	for _, sent := range t.batch {
		t.request.out.add(sent.event, sent.at.String())
	}
	clear(t.batch)
	t.batch = t.batch[:0]
}

// translate adds the events for an event of the turn to the batch, except those that the client has.
func (t *translation) translate(ctx context.Context, e *parleyv1.TurnEvent) error {
	isNew := e.GetIndex() > t.at.index
	switch kind := e.GetEvent().(type) {
	case *parleyv1.TurnEvent_Started:
		if t.agent = kind.Started.GetAgent(); isNew && kind.Started.GetReplayed() {
			return t.sendHistory(ctx, e.GetTurnId(), kind.Started)
		}
	case *parleyv1.TurnEvent_AnswerStarted:
		if t.hasContent {
			t.number++
		}
		if t.hasContent, t.agent = false, kind.AnswerStarted.GetAgent(); isNew {
			t.closeMessage()
			t.at.number, t.at.text, t.at.reasoning, t.at.hasContent = t.number, 0, 0, false
		}
	case *parleyv1.TurnEvent_TextDelta:
		t.addText(kind.TextDelta.GetText(), int(kind.TextDelta.GetOffset()))
	case *parleyv1.TurnEvent_ReasoningDelta:
		t.addReasoning(kind.ReasoningDelta.GetText(), int(kind.ReasoningDelta.GetOffset()))
	case *parleyv1.TurnEvent_ToolCallDelta:
		t.addCallDelta(kind.ToolCallDelta, isNew)
	case *parleyv1.TurnEvent_ToolCall:
		t.beginContent()
		if isNew {
			t.addCall(kind.ToolCall)
		}
	case *parleyv1.TurnEvent_StructuredData:
		t.beginContent()
		if isNew {
			t.addData(kind.StructuredData)
		}
	case *parleyv1.TurnEvent_ToolResult:
		if isNew {
			t.addResult(kind.ToolResult)
		}
	case *parleyv1.TurnEvent_Finished:
		return t.finish(ctx, kind.Finished)
	case *parleyv1.TurnEvent_Queued:
		t.sendCustom(isNew, "parley.queued", map[string]any{"position": kind.Queued.GetPosition()})
	case *parleyv1.TurnEvent_Record:
		t.sendCustom(isNew, "parley.record", map[string]any{
			"key": kind.Record.GetKey(), "deleted": kind.Record.GetDeleted(), "tenantScope": kind.Record.GetTenantScope(),
		})
	case *parleyv1.TurnEvent_Progress:
		if text := kind.Progress.GetText(); text != "" {
			t.sendCustom(isNew, "parley.progress", map[string]any{"text": text})
		} else {
			t.request.out.addComment()
		}
	}
	return nil
}

// sendHistory sends the messages of the thread before the answer of a turn. The client may have a part of the answer.
func (t *translation) sendHistory(ctx context.Context, turnID string, started *parleyv1.TurnStarted) error {
	input := started.GetUserMessage().GetSequence()
	if input == 0 {
		reply, err := t.request.api.GetTurn(ctx, &parleyv1.GetTurnRequest{ConversationId: t.threadID, TurnId: turnID})
		if err != nil {
			return err
		}
		input = reply.GetTurn().GetInputSequence()
	}
	return t.sendMessages(ctx, &parleyv1.Turn{Id: turnID, InputSequence: input})
}

// sendMessages sends the messages and the state of the thread, without the answer of a turn.
func (t *translation) sendMessages(ctx context.Context, except *parleyv1.Turn) error {
	stored, err := t.request.history(ctx, t.threadID, except)
	if err != nil {
		return err
	}
	messages, state := fromStored(stored)
	t.send(&event{Type: "MESSAGES_SNAPSHOT", Messages: messages})
	if state != nil {
		t.send(&event{Type: "STATE_SNAPSHOT", Snapshot: &state})
	}
	return nil
}

// sendCustom sends an event that AG-UI has no type for.
func (t *translation) sendCustom(isNew bool, name string, value any) {
	if isNew {
		t.send(&event{Type: "CUSTOM", Name: name, Value: &value})
	}
}

// beginContent notes that the message of the events that arrive has content.
func (t *translation) beginContent() {
	if t.hasContent = true; t.number == t.at.number {
		t.at.hasContent = true
	}
}

// unsent returns the part of a text, which begins at an offset, that was not sent. sent is the number of bytes that
// were sent of the texts of the message.
func (t *translation) unsent(text string, offset, sent int) string {
	t.beginContent()
	switch {
	case t.number < t.at.number || offset+len(text) <= sent:
		return ""
	case offset < sent:
		return text[sent-offset:]
	}
	return text
}

func (t *translation) addText(text string, offset int) {
	if text = t.unsent(text, offset, t.at.text); text == "" {
		return
	}
	id := answerID(t.at.turnID, t.at.number)
	if t.at.open != textOpen {
		t.closeMessage()
		t.at.open = textOpen
		t.send(&event{Type: "TEXT_MESSAGE_START", MessageID: id, Role: "assistant", Name: t.agent})
	}
	t.at.text += len(text)
	t.send(&event{Type: "TEXT_MESSAGE_CONTENT", MessageID: id, Delta: text})
}

func (t *translation) addReasoning(text string, offset int) {
	if text = t.unsent(text, offset, t.at.reasoning); text == "" {
		return
	}
	id := reasoningID(answerID(t.at.turnID, t.at.number))
	if t.at.open == textOpen {
		t.closeMessage()
	}
	if t.at.open == nothingOpen {
		t.at.open = spanOpen
		t.send(&event{Type: "REASONING_START", MessageID: id})
	}
	if t.at.open == spanOpen {
		t.at.open = reasoningOpen
		t.send(&event{Type: "REASONING_MESSAGE_START", MessageID: id, Role: "reasoning"})
	}
	t.at.reasoning += len(text)
	t.send(&event{Type: "REASONING_MESSAGE_CONTENT", MessageID: id, Delta: text})
}

// closeMessage ends the text or the reasoning that is open.
func (t *translation) closeMessage() {
	id := answerID(t.at.turnID, t.at.number)
	if t.at.open == textOpen {
		t.at.open = nothingOpen
		t.send(&event{Type: "TEXT_MESSAGE_END", MessageID: id})
	}
	if t.at.open == reasoningOpen {
		t.at.open = spanOpen
		t.send(&event{Type: "REASONING_MESSAGE_END", MessageID: reasoningID(id)})
	}
	if t.at.open == spanOpen {
		t.at.open = nothingOpen
		t.send(&event{Type: "REASONING_END", MessageID: reasoningID(id)})
	}
}

// addData sends data of an answer: the state of the thread, or a custom event with the name of its type.
func (t *translation) addData(data *parleyv1.StructuredData) {
	value := data.GetValue().AsInterface()
	if data.GetType() == stateType {
		t.send(&event{Type: "STATE_SNAPSHOT", Snapshot: &value})
		return
	}
	t.send(&event{Type: "CUSTOM", Name: data.GetType(), Value: &value})
}
