package turn

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
)

// liveTurn is a turn that waits, runs, or has ended and is retained. Its own fields never change, so no
// lock guards them. See the package comment for the parts that change and for what guards them.
type liveTurn struct {
	output
	completion

	conversation key
	accepted     time.Time
	// These come from the request.
	requestID, requestedAgent string

	interrupts         bool // on_busy is INTERRUPT
	cancelOnDisconnect bool // on_disconnect is CANCEL

	mayStart     chan struct{}   // closed when the turn may start
	startDecided chan struct{}   // closed when it is known whether the turn starts
	ctx          context.Context //nolint:containedctx // the context of the turn, derived from the manager's
	cancel       context.CancelCauseFunc
	span         *tracing.Span // of the turn; ends with it
}

// completion is the end of a turn. The turn's goroutine writes it once; other goroutines read it
// after done is closed.
type completion struct {
	done chan struct{} // closed after the last event
	turn *parleyv1.Turn
}

// complete records the turn as it ended, nil if it has no end in the store.
func (c *completion) complete(turn *parleyv1.Turn) {
	c.turn = turn
	close(c.done)
}

// await waits for the end of the turn and returns the turn as it ended, nil if it has no end in the
// store.
func (c *completion) await(ctx context.Context) (*parleyv1.Turn, error) {
	select {
	case <-c.done:
		return c.turn, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// newLiveTurn returns a turn that the store does not know yet. ctx is the context of the call. The caller holds
// Manager.mu.
func newLiveTurn(ctx context.Context, m *Manager, conversation key, request *parleyv1.ChatRequest) *liveTurn {
	t := &liveTurn{
		conversation: conversation, accepted: time.Now(),
		requestID: request.GetRequestId(), requestedAgent: request.GetAgent(),
		interrupts:         request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT,
		cancelOnDisconnect: request.GetOnDisconnect() == parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL,
		mayStart:           make(chan struct{}), startDecided: make(chan struct{}),
		completion: completion{done: make(chan struct{})},
	}
	t.id = uuid.Must(uuid.NewV7()).String() // The ids rise, since the caller holds Manager.mu.
	t.events = eventlog.New(t.id, conversation.tenant, conversation.id, m.o.EventSink)
	t.answer = answer.New(t.id, m.o.MaxAnswerBytes, t.events)
	// The context is not derived from the call's: the turn continues when its caller leaves.
	t.ctx, t.span = tracing.BeginTurn(ctx, m.ctx, conversation.id, t.id)
	t.ctx, t.cancel = context.WithCancelCause(t.ctx)
	return t
}

// queuedTurn describes a turn that has not started.
func (t *liveTurn) queuedTurn() *parleyv1.Turn {
	return &parleyv1.Turn{
		Id: t.id, ConversationId: t.conversation.id, RequestId: t.requestID, Agent: t.requestedAgent,
		State: parleyv1.TurnState_TURN_STATE_QUEUED, CreateTime: timestamppb.New(t.accepted),
	}
}
