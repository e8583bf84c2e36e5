package a2a

import (
	"cmp"
	"context"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// sent are the events of the task of a message.
type sent struct {
	events

	conversation string // "" if the message starts one
	task         string // that the message continues; "" if the message starts one
	pushes       *pushes
	queued       bool // The turn was in the queue.
	cancel       context.CancelFunc
}

// notify starts the push notifications of a task with the first event of its turn. If the turn is queued, it stays so
// when the client leaves.
func (t *tasks) notify(ctx context.Context, s *sent, event *parleyv1.TurnEvent) error {
	if event.GetQueued() != nil && !s.queued && t.notifier != nil {
		s.queued = true
		if err := t.notifier.keepQueued(ctx, s.conversation, event.GetTurnId()); err != nil {
			return t.faultOf(ctx, err)
		}
	}
	if len(s.pushes.ids) == 0 || s.pushes.begun {
		return nil
	}
	reply, err := t.api.GetTurn(ctx, &parleyv1.GetTurnRequest{TurnId: event.GetTurnId()})
	if err != nil {
		return t.faultOf(ctx, err)
	}
	turn := reply.GetTurn()
	if event.GetQueued() != nil {
		turn.State = parleyv1.TurnState_TURN_STATE_QUEUED // It may have started since.
	}
	return t.beginPushes(ctx, s.pushes, cmp.Or(s.task, turn.GetId()), turn)
}

// notified are the events of a message whose push notifications start with the first one.
type notified struct {
	*sent

	tasks *tasks
	ctx   context.Context //nolint:containedctx // That of the operation.
}

// Recv returns the next event.
func (n notified) Recv() (*parleyv1.TurnEvent, error) {
	event, err := n.sent.Recv()
	if err == nil {
		err = n.tasks.notify(n.ctx, n.sent, event)
	}
	return event, err
}

// send makes the call for a message. Its task continues when the call is cancelled.
func (t *tasks) send(ctx context.Context, r *a2a.SendMessageRequest) (*sent, error) {
	request, turns, err := t.chatRequest(ctx, r)
	if err != nil {
		return nil, err
	}
	pushes, err := t.preparePushes(ctx, r, request.GetRequestId(), turns)
	if err != nil {
		return nil, err
	}
	called, cancel := context.WithCancel(ctx)
	events, err := t.start(called, request, turns)
	if err != nil {
		cancel()
		pushes.end()
		return nil, t.faultOf(ctx, err)
	}
	task := string(r.Message.TaskID)
	return &sent{
		events: t.continuing(called, task, events), conversation: request.GetConversationId(), task: task, pushes: pushes,
		cancel: func() {
			cancel()
			if !pushes.begun {
				pushes.end()
			}
		},
	}, nil
}

// start makes the Chat call for a request. If one of the turns of its task is that of the same message, it returns the
// events of that turn: the call whose result a text alone was is no longer open.
func (t *tasks) start(ctx context.Context, request *parleyv1.ChatRequest, turns []*parleyv1.Turn) (events, error) {
	if turn := repeated(turns, request); turn != nil {
		return t.resume(ctx, turn)
	}
	stream, err := t.api.Chat(ctx, request)
	if err != nil {
		return nil, err
	}
	return eventStream[*parleyv1.ChatResponse]{stream.Recv}, nil
}

// repeated returns the turn that a request repeats, or nil.
func repeated(turns []*parleyv1.Turn, request *parleyv1.ChatRequest) *parleyv1.Turn {
	i := slices.IndexFunc(turns, func(turn *parleyv1.Turn) bool { return turn.GetRequestId() == request.GetRequestId() })
	if i < 0 {
		return nil
	}
	return turns[i]
}

// resume returns the events of a turn from its first one on.
func (t *tasks) resume(ctx context.Context, turn *parleyv1.Turn) (events, error) {
	stream, err := t.api.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{
		ConversationId: turn.GetConversationId(), TurnId: turn.GetId(),
	})
	if err != nil {
		return nil, err
	}
	return eventStream[*parleyv1.ResumeTurnResponse]{stream.Recv}, nil
}

// continuation are the events of a task from those of a turn on. A turn that waits for input is not the end if the task
// has continued since, as when its first message is repeated.
type continuation struct {
	events

	tasks *tasks
	ctx   context.Context //nolint:containedctx // That of the streams.
	task  string          // "" before the end of the first turn of a new task
}

// continuing returns the events of a task from those of a turn on.
func (t *tasks) continuing(ctx context.Context, task string, turn events) events {
	return &continuation{events: turn, tasks: t, ctx: ctx, task: task}
}

// Recv returns the next event.
func (c *continuation) Recv() (*parleyv1.TurnEvent, error) {
	for {
		event, err := c.events.Recv()
		if err != nil || event.GetFinished().GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED {
			return event, err
		}
		c.task = cmp.Or(c.task, event.GetTurnId())
		turns, err := c.tasks.turnsOf(c.ctx, c.task)
		if err != nil {
			return nil, err
		}
		i := len(until(turns, event.GetTurnId())) - 1
		if i == len(turns)-1 {
			event = proto.CloneOf(event)
			event.GetFinished().Turn = turns[i] // It may be cancelled.
			return event, nil
		}
		if c.events, err = c.tasks.resume(c.ctx, turns[i+1]); err != nil {
			return nil, err
		}
	}
}
