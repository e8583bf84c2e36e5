package openai

import (
	"context"
	"errors"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// responseTTL is how long a conversation that a response created is kept after its last response.
	responseTTL = 30 * 24 * time.Hour
	// unstoredTTL is how long the conversation of a response with store: false may be kept after its end. It is
	// normally deleted at once; this is for a server that is killed in between.
	unstoredTTL = time.Minute
	// unstoredMessages is the maximum number of messages of such a conversation.
	unstoredMessages = 10_000
	// undoTime is the maximum time to remove what a request that failed had stored.
	undoTime = 10 * time.Second
)

// startedTurn is a turn with its events. The first event has been read.
type startedTurn struct {
	ref      turnRef
	response *response
	events   func() (*parleyv1.TurnEvent, error)
}

// start stores the input of a request and starts its turn. If the turn cannot start, nothing stays stored.
func (h *handler) start(q *request, p *params) (*startedTurn, error) {
	chat := h.newChat(q, p)
	if err := h.continuePrevious(q, p, chat); err != nil {
		return nil, err
	}
	undo, err := h.storeBefore(q, p, chat)
	if err != nil {
		return nil, err
	}
	started, err := h.chat(q, p, chat)
	for relax(chat.GetCreateWith().GetRetention(), err) {
		started, err = h.chat(q, p, chat)
	}
	if err != nil && undo != nil && chat.GetRequestId() == "" {
		h.undo(q, undo)
	}
	return started, err
}

// newChat returns the call for a request, without its conversation if it names a previous response.
func (h *handler) newChat(q *request, p *params) *parleyv1.ChatRequest {
	chat := &parleyv1.ChatRequest{
		ConversationId: p.conversation, MustExist: p.conversation != "", Agent: p.model, SystemPrompt: p.instructions,
		RequestId: q.header.Get(idempotencyKey), Content: p.content, Attachments: p.attachments, ToolResults: p.results,
		OnDisconnect: parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL, Metadata: make(map[string]string, len(p.metadata)+4),
	}
	if p.background || p.store && chat.GetRequestId() != "" { // The client can come back.
		chat.OnDisconnect = parleyv1.OnDisconnect_ON_DISCONNECT_CONTINUE
	}
	maps.Copy(chat.Metadata, p.metadata)
	if p.background {
		chat.Metadata[backgroundKey] = "true"
	}
	if p.previous != "" && len(p.previous) <= maxMetadataValue {
		chat.Metadata[previousKey] = p.previous
	}
	if p.instructions != nil && len(*p.instructions) <= maxMetadataValue {
		chat.Metadata[instructionsKey] = *p.instructions
	}
	count := len(p.before) + len(p.results)
	if p.hasUser {
		count++
	}
	if count > 1 {
		chat.Metadata[inputCountKey] = strconv.Itoa(count)
	}
	return chat
}

// retention returns the retention of the conversation that a request creates.
func (p *params) retention() *parleyv1.Retention {
	if p.store {
		return keptFor(responseTTL)
	}
	return &parleyv1.Retention{MaxMessages: unstoredMessages, Ttl: durationpb.New(unstoredTTL)}
}

// continuePrevious sets the conversation of a request with a previous response. If the conversation has continued after
// that response, the request continues a copy of it that ends there.
func (h *handler) continuePrevious(q *request, p *params, chat *parleyv1.ChatRequest) error {
	if p.previous == "" {
		return nil
	}
	const param = "previous_response_id"
	ref, ok := parseResponseID(p.previous)
	if !ok {
		return notFound(param, "response", p.previous)
	}
	reply, err := h.api.GetTurn(q, &parleyv1.GetTurnRequest{ConversationId: ref.conversation, TurnId: ref.turn})
	if err != nil {
		return err
	}
	t := reply.GetTurn()
	if t.GetFinishTime() == nil {
		return invalid(param, "names a response that is not complete; wait for its end, or cancel it")
	}
	chat.ConversationId, chat.MustExist = ref.conversation, true
	end := max(t.GetInputSequence(), t.GetLastAnswerSequence())
	if end == 0 {
		return invalid(param, "names a response that was cancelled before its input was stored")
	}
	later, err := h.api.ListMessages(q, &parleyv1.ListMessagesRequest{
		ConversationId: ref.conversation, AfterSequence: end, Ascending: true, PageSize: 1,
	})
	if err != nil {
		return err
	}
	key := chat.GetRequestId()
	if len(later.GetMessages()) == 0 {
		if key == "" {
			chat.IfVersion = &later.GetConversation().Version
		}
		return nil
	}
	if key != "" {
		retried, err := h.hasTurn(q, ref.conversation, key)
		if retried || err != nil {
			return err
		}
	}
	fork, err := h.api.ForkConversation(q, &parleyv1.ForkConversationRequest{
		ConversationId: ref.conversation, AtSequence: end, RequestId: derivedKey(key, "fork"),
	})
	chat.ConversationId = fork.GetConversation().GetId()
	return err
}

// hasTurn reports whether one of the newest turns of a conversation has a request_id.
func (h *handler) hasTurn(q *request, conversation, requestID string) (bool, error) {
	turns, err := h.api.ListTurns(q, &parleyv1.ListTurnsRequest{ConversationId: conversation, PageSize: 100})
	for _, t := range turns.GetTurns() {
		if t.GetRequestId() == requestID {
			return true, err
		}
	}
	return false, err
}

// storeBefore creates the conversation of a request and stores the items before those to answer, unless Chat can do all
// of it. It returns a function that undoes this, or nil if nothing was stored.
func (h *handler) storeBefore(
	q *request, p *params, chat *parleyv1.ChatRequest,
) (undo func(*request) error, err error) {
	isNew, key := chat.GetConversationId() == "", chat.GetRequestId()
	if isNew && len(p.before) == 0 && len(p.results) == 0 {
		chat.CreateWith = &parleyv1.Conversation{Retention: p.retention()}
		return nil, nil
	}
	if isNew {
		c, err := h.create(q, &parleyv1.Conversation{Retention: p.retention()}, derivedKey(key, "conversation"))
		if err != nil {
			return nil, err
		}
		chat.ConversationId, chat.MustExist = c.GetId(), true
		undo = func(q *request) error {
			_, err := h.api.DeleteConversation(q, &parleyv1.DeleteConversationRequest{ConversationId: c.GetId()})
			return err
		}
	}
	if len(p.before) == 0 {
		return undo, nil
	}
	if !isNew && key == "" {
		// The items must not be added while a turn runs, and no other ones may come between them and the message.
		reply, err := h.api.GetConversation(q, &parleyv1.GetConversationRequest{ConversationId: chat.GetConversationId()})
		if err != nil {
			return nil, err
		}
		if reply.GetConversation().GetActiveTurnId() != "" {
			return nil, errLocked()
		}
		if chat.IfVersion == nil {
			chat.IfVersion = &reply.GetConversation().Version
		}
	}
	stored, err := h.appendBefore(q, p, chat)
	if undo == nil && len(stored) > 0 {
		undo = func(q *request) error {
			change := &parleyv1.ClearConversationRequest{ConversationId: chat.GetConversationId(), Sequences: stored}
			_, err := h.api.ClearConversation(q, change)
			return err
		}
	}
	if err != nil {
		if undo != nil && key == "" {
			h.undo(q, undo)
		}
		return nil, asInput(q, err)
	}
	return undo, nil
}

// appendBefore stores the items before those to answer. It returns the sequences of the stored messages.
func (h *handler) appendBefore(q *request, p *params, chat *parleyv1.ChatRequest) (stored []int32, err error) {
	for i := 0; i < len(p.before); i += maxItems {
		some := p.before[i:min(i+maxItems, len(p.before))]
		requestID := derivedKey(chat.GetRequestId(), "items"+strconv.Itoa(i))
		reply, err := h.append(q, chat.GetConversationId(), some, requestID, chat.IfVersion)
		if err != nil {
			return stored, err
		}
		if requestID == "" {
			chat.IfVersion = &reply.GetConversation().Version
		}
		for _, m := range reply.GetAppended() {
			stored = append(stored, m.GetSequence())
		}
	}
	return stored, nil
}

// errLocked returns the error for a conversation with a running turn.
func errLocked() *fault {
	return &fault{
		Message: "another response of the conversation is in progress; wait for its end, or cancel it",
		Type:    typeConflict, Code: codesOf["CONVERSATION_BUSY"], status: 409,
	}
}

// asInput names the items of the input in an error of an append.
func asInput(ctx context.Context, err error) error {
	f := faultOf(ctx, err)
	if f.Param != nil {
		if rest, found := strings.CutPrefix(*f.Param, "items"); found {
			f.Param = new("input" + rest)
		}
	}
	return f
}

// chat starts the turn and reads its first event.
func (h *handler) chat(q *request, p *params, chat *parleyv1.ChatRequest) (*startedTurn, error) {
	stream, err := h.api.Chat(q, chat)
	if err != nil {
		return nil, err
	}
	events := func() (*parleyv1.TurnEvent, error) {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // The last event is finished, and nothing is read after it.
		}
		return reply.GetEvent(), err
	}
	for {
		event, err := events()
		if err != nil {
			return nil, err
		}
		begun := event.GetStarted()
		if begun == nil && event.GetFinished() == nil {
			continue // The turn is queued: it was started by another kind of client.
		}
		ref := turnRef{begun.GetConversation().GetId(), event.GetTurnId()}
		agent := begun.GetAgent()
		if begun == nil {
			ref.conversation, agent = event.GetFinished().GetTurn().GetConversationId(), event.GetFinished().GetTurn().GetAgent()
		}
		started := &startedTurn{ref: ref, response: newResponse(ref, agent, chat.GetMetadata())}
		started.response.Instructions = p.instructions
		if !p.store {
			started.response.Store, started.response.Conversation = false, nil
		}
		started.events = func() (*parleyv1.TurnEvent, error) {
			if first := event; first != nil {
				event = nil
				return first, nil
			}
			return events()
		}
		return started, nil
	}
}

// undo removes what a request has stored, also if its client has left. An error changes nothing for the client: what
// stays expires.
func (h *handler) undo(q *request, remove func(*request) error) {
	md, _ := metadata.FromOutgoingContext(q)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.Context), undoTime)
	defer cancel()
	_ = remove(&request{Context: metadata.NewOutgoingContext(ctx, md)})
}
