package a2a

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// tasks answers the operations for one agent. Its methods get the metadata of the calls in their context.
type tasks struct {
	api      parleyv1.ConversationServiceClient
	records  parleyv1.RecordServiceClient
	notifier *Notifier // nil if there are no push notifications
	signIn   SignIn    // Required with a notifier.
	agent    string
	overREST bool // The requests are those of HTTP+JSON.
}

var _ a2asrv.RequestHandler = (*tasks)(nil)

// events are the events of a turn as a call streams them.
type events interface {
	// Recv returns the next event, or an error; io.EOF after the last event.
	Recv() (*parleyv1.TurnEvent, error)
}

// eventStream are the events of Chat and ResumeTurn, whose responses differ in their names only.
type eventStream[R interface{ GetEvent() *parleyv1.TurnEvent }] struct {
	receive func() (R, error)
}

// Recv returns the next event.
func (s eventStream[R]) Recv() (*parleyv1.TurnEvent, error) {
	response, err := s.receive()
	return response.GetEvent(), err
}

// SendMessage starts a task, or continues one that waits for input. It returns the task after its end, or when it
// waits for input; with returnImmediately when the message is stored or queued.
func (t *tasks) SendMessage(ctx context.Context, r *a2a.SendMessageRequest) (a2a.SendMessageResult, error) {
	s, err := t.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer s.cancel()
	id := s.task
	for {
		event, err := s.Recv()
		if err == nil {
			err = t.notify(ctx, s, event)
		} else {
			err = t.streamFault(ctx, err)
		}
		if err != nil {
			return nil, err
		}
		id = cmp.Or(id, event.GetTurnId()) // Later events may be those of a turn that continues the task.
		begun := event.GetStarted() != nil || event.GetQueued() != nil
		if event.GetFinished() == nil && (!begun || r.Config == nil || !r.Config.ReturnImmediately) {
			continue
		}
		return t.get(ctx, id, historyLength(r))
	}
}

// historyLength returns how many messages the client wants in a task; nil means all.
func historyLength(r *a2a.SendMessageRequest) *int {
	if r.Config == nil {
		return nil
	}
	return r.Config.HistoryLength
}

// SendStreamingMessage is like SendMessage and returns the events of the task. If the client leaves, the task
// continues.
func (t *tasks) SendStreamingMessage(ctx context.Context, r *a2a.SendMessageRequest) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		s, err := t.send(ctx, r)
		if err != nil {
			yield(nil, err)
			return
		}
		defer s.cancel()
		t.stream(ctx, notified{s, t, ctx}, &progress{task: s.task, history: historyLength(r)}, yield)
	}
}

// SubscribeToTask returns the events of a task that has not ended, from its first event on: a client that lost its
// stream replaces what it has of each artifact by the first event of that artifact, and misses nothing. If the task
// waits for input, the only event is the task: A2A 1.0, 11.7 ends streams in that state.
func (t *tasks) SubscribeToTask(ctx context.Context, r *a2a.SubscribeToTaskRequest) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		turns, err := t.turnsOf(ctx, string(r.ID))
		if err != nil {
			yield(nil, err)
			return
		}
		newest := turns[len(turns)-1]
		switch state := stateOf(newest); {
		case state.Terminal():
			yield(nil, a2a.NewError(a2a.ErrUnsupportedOperation, fmt.Sprintf(
				"task %q has ended as %s; read it with GetTask", r.ID, state)))
			return
		case state == a2a.TaskStateInputRequired:
			messages, err := t.messages(ctx, turns)
			if err != nil {
				yield(nil, err)
				return
			}
			yield(taskOf(turns, messages, nil), nil)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		events, err := t.resume(ctx, newest)
		if err != nil {
			yield(nil, t.faultOf(ctx, err))
			return
		}
		t.stream(ctx, t.continuing(ctx, string(r.ID), events), &progress{task: string(r.ID)}, yield)
	}
}

// stream passes the events of a turn to yield.
func (t *tasks) stream(ctx context.Context, s events, p *progress, yield func(a2a.Event, error) bool) {
	for {
		event, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			yield(nil, t.streamFault(ctx, err))
			return
		}
		if !p.begun && (event.GetStarted() != nil || event.GetQueued() != nil || event.GetFinished() != nil) {
			if err := t.begin(ctx, p, event); err != nil {
				yield(nil, err)
				return
			}
			if !yield(p.first, nil) {
				return
			}
		}
		for out := range p.next(event) {
			if !yield(out, nil) {
				return
			}
		}
	}
}

// streamFault returns the error for a stream that has ended without the last event of its turn.
func (t *tasks) streamFault(ctx context.Context, err error) error {
	if errors.Is(err, io.EOF) {
		return a2a.NewError(a2a.ErrInternalError, "the stream of the turn ended before the turn")
	}
	if _, ok := errors.AsType[*a2a.Error](err); ok {
		return err
	}
	return t.faultOf(ctx, err)
}

// chatRequest returns the Chat request for a message, and the turns of the task that the message continues.
func (t *tasks) chatRequest(
	ctx context.Context, r *a2a.SendMessageRequest,
) (request *parleyv1.ChatRequest, turns []*parleyv1.Turn, err error) {
	if err := t.checkSend(r); err != nil {
		return nil, nil, err
	}
	in, err := t.input(r.Message)
	if err != nil {
		return nil, nil, err
	}
	request = &parleyv1.ChatRequest{
		ConversationId: r.Message.ContextID, Agent: t.agent, OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE, Metadata: in.metadata,
		Content: in.text, StructuredData: in.data, Attachments: in.attachments, ToolResults: in.results,
	}
	if request.RequestId, err = requestID(r.Message, request); err != nil {
		return nil, nil, a2a.NewError(t.invalid(), "message: "+err.Error())
	}
	if r.Message.TaskID == "" {
		if len(in.results) > 0 {
			return nil, nil, a2a.NewError(t.invalid(),
				"message.taskId is required with a tool result: name the task that waits for it")
		}
		return request, nil, nil
	}
	turns, err = t.continueTask(ctx, r.Message, request)
	return request, turns, err
}

// continueTask completes the request for a message to a task that waits for input. Only such a task takes messages. A
// text alone is the result of the only open call. It returns the turns of the task.
func (t *tasks) continueTask(
	ctx context.Context, m *a2a.Message, request *parleyv1.ChatRequest,
) ([]*parleyv1.Turn, error) {
	turns, err := t.turnsOf(ctx, string(m.TaskID))
	if err != nil {
		return nil, err
	}
	first, newest := turns[0], turns[len(turns)-1]
	if m.ContextID != "" && m.ContextID != first.GetConversationId() {
		return nil, a2a.NewError(t.invalid(), fmt.Sprintf(
			"message.contextId: task %q belongs to context %q; send that one or none", m.TaskID, first.GetConversationId()))
	}
	if agent := first.GetAgent(); agent != t.agent {
		return nil, a2a.NewError(t.invalid(), fmt.Sprintf(
			"message.taskId: task %q is one of the agent %q; send the message to that agent", m.TaskID, agent))
	}
	request.ConversationId = first.GetConversationId()
	if repeated(turns, request) != nil {
		return turns, nil
	}
	if state := stateOf(newest); state != a2a.TaskStateInputRequired {
		return nil, a2a.NewError(a2a.ErrUnsupportedOperation, fmt.Sprintf(
			"task %q is %s and takes no messages; send the message without taskId, in the same context", m.TaskID, state))
	}
	if len(request.GetToolResults()) > 0 {
		return turns, nil
	}
	messages, err := t.messages(ctx, turns)
	if err != nil {
		return nil, err
	}
	calls := openCalls(messages)
	if len(calls) != 1 || len(request.GetStructuredData()) > 0 || len(request.GetAttachments()) > 0 {
		return nil, a2a.NewError(t.invalid(), fmt.Sprintf("message.parts: the task waits for results of the tool calls %s; "+
			`send a data part {"toolResult": {"callId": …, "content": …}} for each`, callIDs(calls)))
	}
	request.ToolResults = []*parleyv1.ToolResult{{CallId: calls[0].GetId(), Content: request.GetContent()}}
	request.Content, request.Metadata[keyText] = "", "true"
	return turns, nil
}

// checkSend returns an error if a request to send a message asks for what this package does not do.
func (t *tasks) checkSend(r *a2a.SendMessageRequest) error {
	switch m := r.Message; {
	case m == nil:
		return a2a.NewError(t.invalid(), "message is required")
	case m.ID == "":
		return a2a.NewError(t.invalid(), "message.messageId is required; use a new id for each message")
	case m.Role != a2a.MessageRoleUser:
		return a2a.NewError(t.invalid(), fmt.Sprintf("message.role: is %.40q, must be ROLE_USER", m.Role))
	case len(m.Parts) == 0:
		return a2a.NewError(t.invalid(), "message.parts: needs at least one part")
	case len(m.ReferenceTasks) > 0:
		return a2a.NewError(a2a.ErrUnsupportedOperation, "message.referenceTaskIds is not supported: an agent sees the "+
			"tasks of its context; send the message with their contextId")
	}
	if r.Tenant != "" && r.Tenant != t.agent {
		return a2a.NewError(t.invalid(), fmt.Sprintf("tenant: is %.80q, must be empty or the agent, %q", r.Tenant, t.agent))
	}
	if r.Config == nil {
		return nil
	}
	if modes := r.Config.AcceptedOutputModes; len(modes) > 0 && !acceptsText(modes) {
		return a2a.NewError(a2a.ErrUnsupportedContentType, fmt.Sprintf(
			"configuration.acceptedOutputModes: %.200q has neither %s nor %s, which agents answer with", modes, mediaText,
			mediaJSON))
	}
	if n := r.Config.HistoryLength; n != nil && *n < 0 {
		return a2a.NewError(t.invalid(), fmt.Sprintf("configuration.historyLength: is %d, must be at least 0", *n))
	}
	return nil
}

// GetTask returns a task.
func (t *tasks) GetTask(ctx context.Context, r *a2a.GetTaskRequest) (*a2a.Task, error) {
	if n := r.HistoryLength; n != nil && *n < 0 {
		return nil, a2a.NewError(t.invalid(), fmt.Sprintf("historyLength: is %d, must be at least 0", *n))
	}
	return t.get(ctx, string(r.ID), r.HistoryLength)
}

// get returns a task with at most this many messages; nil means all.
func (t *tasks) get(ctx context.Context, id string, history *int) (*a2a.Task, error) {
	turns, messages, err := t.load(ctx, id)
	if err != nil {
		return nil, err
	}
	return taskOf(turns, messages, history), nil
}

// CancelTask stops a task that is queued or working. It ends one that waits for input.
func (t *tasks) CancelTask(ctx context.Context, r *a2a.CancelTaskRequest) (*a2a.Task, error) {
	turns, err := t.turnsOf(ctx, string(r.ID))
	if err != nil {
		return nil, err
	}
	newest := turns[len(turns)-1]
	switch {
	case stateOf(newest) == a2a.TaskStateInputRequired:
		if err := t.abandon(ctx, turns); err != nil {
			return nil, err
		}
		return t.get(ctx, string(r.ID), nil)
	case newest.GetFinishTime() == nil:
		reply, err := t.api.CancelTurn(ctx, &parleyv1.CancelTurnRequest{
			ConversationId: newest.GetConversationId(), TurnId: newest.GetId(),
		})
		if err != nil {
			return nil, t.faultOf(ctx, err)
		}
		if newest = reply.GetTurn(); stateOf(newest) == a2a.TaskStateCanceled {
			turns[len(turns)-1] = newest
			messages, err := t.messages(ctx, turns)
			if err != nil {
				return nil, err
			}
			return taskOf(turns, messages, nil), nil
		}
	}
	return nil, a2a.NewError(a2a.ErrTaskNotCancelable, fmt.Sprintf(
		"task %q is %s; only a task that has not ended can be cancelled", r.ID, stateOf(newest)))
}

// GetExtendedAgentCard returns an error: the card that everyone can read contains everything.
func (t *tasks) GetExtendedAgentCard(context.Context, *a2a.GetExtendedAgentCardRequest) (*a2a.AgentCard, error) {
	return nil, a2a.ErrExtendedCardNotConfigured
}
