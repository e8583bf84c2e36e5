package turn

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
	"github.com/parleyhq/parley/store"
)

// keepAliveInterval is the maximum time without an event for readers. After this time they receive
// TurnQueued or TurnProgress.
const keepAliveInterval = 15 * time.Second

// keepAliveCheckInterval is how often a turn checks when its readers last received an event.
const keepAliveCheckInterval = 500 * time.Millisecond

// liveTurn is a turn that waits, runs, or has ended and is retained.
type liveTurn struct {
	// These fields never change.

	manager      *Manager
	queue        *queue
	id           string
	accepted     time.Time
	events       *eventlog.Log
	answer       *answer.Answer
	mayStart     chan struct{}   // closed when the turn may start
	startDecided chan struct{}   // closed when it is known whether the turn starts
	done         chan struct{}   // closed after the last event
	ctx          context.Context //nolint:containedctx // the context of the turn, derived from the manager's
	cancel       context.CancelCauseFunc

	// These fields belong to the turn's goroutine.

	log          *slog.Logger
	conversation *store.Snapshot // read for this turn; nil after the start
	agent        *agent.Entry
	inputs       []*parleyv1.Message // messages to be stored at the start
	input        *parleyv1.Message   // the message to be answered; has its sequence after the start
	startResult  *store.Result       // the store's result of the start
	eventIndexes *storev1.TurnEvents
	finalTurn    *parleyv1.Turn // the turn as it ended, valid after done is closed; nil if it did not end

	// Manager.mu guards the following fields until the turn has ended.

	request         *parleyv1.ChatRequest
	requestKey      *store.Request
	hadToWait       bool // the turn was not first in its queue
	readers         int
	position        int      // in the queue, from 1
	removalCause    error    // why the turn was removed from the queue before its start
	uid             string   // of the conversation; empty before the start
	version         int32    // of the conversation at the start
	deletedUIDs     []string // uids of conversations with this id that were deleted during the start
	ended           bool
	retainedBytes   int           // memory of the turn after its end
	retainedElement *list.Element // in Manager.retained
	releaseTimer    *time.Timer
}

// newLiveTurn returns a turn with one reader. The store does not know the turn yet.
func newLiveTurn(
	m *Manager, l *queue, request *parleyv1.ChatRequest, q *store.Request, found *store.Snapshot,
) *liveTurn {
	t := &liveTurn{
		manager: m, queue: l, id: uuid.NewString(), request: request, requestKey: q, conversation: found,
		accepted: time.Now(), readers: 1,
		mayStart: make(chan struct{}), startDecided: make(chan struct{}), done: make(chan struct{}),
	}
	for _, t.input = range Inputs(t.request) {
		t.input.Id = uuid.NewString()
		t.inputs = append(t.inputs, t.input)
	}
	t.log = m.o.Log.With("tenant", l.tenant, "conversation_id", l.id, "turn_id", t.id)
	t.events = eventlog.New(t.id, l.tenant, l.id, m.o.Audience)
	t.answer = answer.New(t.id, m.o.MaxAnswerBytes, t.events)
	// The context is not derived from the call's: the turn continues when its caller leaves.
	t.ctx, t.cancel = context.WithCancelCause(m.ctx)
	return t
}

// dropReferences releases the memory that a turn does not need after its end.
func (t *liveTurn) dropReferences() {
	t.request, t.conversation, t.startResult, t.agent, t.inputs, t.input = nil, nil, nil, nil, nil, nil
}

// dependsOnHistory reports whether a request depends on stored messages: answer_pending needs the
// pending message, and tool results need open calls.
func dependsOnHistory(r *parleyv1.ChatRequest) bool {
	return r.GetAnswerPending() || len(r.GetToolResults()) > 0
}

func (t *liveTurn) interrupts() bool {
	return t.request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT
}

// run runs the turn from the queue to its end. It is the turn's goroutine.
func (t *liveTurn) run() {
	defer close(t.done)
	err := t.waitForStart()
	if err == nil {
		err = t.start()
	}
	if err != nil {
		t.endWithoutStart(err)
		return
	}
	request, err := t.agentRequest()
	// Start after agentRequest: the store records the index of the started event, which a keep-alive would change.
	stop := t.startKeepAlive()
	if err == nil {
		err = t.respond(request)
	}
	finished, err := t.finish(err)
	stop()
	t.finalTurn = finished.GetTurn()
	t.endStreams(finished, err)
}

// endStreams ends the turn and the streams of its readers, with a finished event or an error.
func (t *liveTurn) endStreams(finished *parleyv1.TurnFinished, err error) {
	var lastEvent eventlog.Encoded
	if err == nil {
		lastEvent = eventlog.Encode(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: finished}})
	}
	// Do this before the last event: a client that receives it may start the next turn at once.
	t.manager.finishTurn(t, lastEvent)
	if err == nil {
		t.events.AddEncoded(lastEvent, nil)
		t.answer.Release(t.eventIndexes.GetMessages())
	}
	t.events.End(err)
}

// waitForStart waits until the turn may start. It returns an error if the turn must not start.
func (t *liveTurn) waitForStart() error {
	if !t.hadToWait {
		return nil
	}
	ticker := time.NewTicker(keepAliveInterval)
	defer ticker.Stop()
	for {
		select {
		case <-t.mayStart:
			return nil
		case <-ticker.C:
			t.manager.mu.Lock()
			t.reportPosition()
			t.manager.mu.Unlock()
		case <-t.ctx.Done():
			// A turn that is cancelled when it may already start does start, and ends at once. Its
			// messages are stored.
			if err := t.manager.removeCancelled(t); err != nil {
				return err
			}
			<-t.mayStart
			return nil
		}
	}
}

// removeCancelled removes a cancelled turn from its queue and returns the cause. It returns nil if
// the turn may start.
func (m *Manager) removeCancelled(t *liveTurn) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeWaiting(t, context.Cause(t.ctx))
	return t.removalCause
}

// reportPosition reports the turn's position in the queue to its readers. The caller holds
// Manager.mu.
func (t *liveTurn) reportPosition() {
	if t.removalCause == nil && t.position > 0 {
		t.events.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Queued{
			Queued: &parleyv1.TurnQueued{Position: int32(t.position)},
		}})
	}
}

// endWithoutStart ends a turn that does not start. A turn that was cancelled ends with a finished
// event, although the store does not know the turn.
func (t *liveTurn) endWithoutStart(err error) {
	var finished *parleyv1.TurnFinished
	if errors.Is(err, errCancelled) {
		t.finalTurn = t.queuedTurn()
		t.finalTurn.State, t.finalTurn.Error = t.outcome(err)
		t.finalTurn.FinishTime = timestamppb.Now()
		finished, err = &parleyv1.TurnFinished{Turn: t.finalTurn}, nil
	}
	t.endStreams(finished, err)
	close(t.startDecided)
}

// Memory in bytes of a turn that has ended, without its events, as measured: turnOverheadBytes for
// each turn, messageOverheadBytes for each message of the answer and valueOverheadBytes for each of
// its values.
const (
	turnOverheadBytes    = 2 << 10
	messageOverheadBytes = 192
	valueOverheadBytes   = 8
)

// retainedSize returns the approximate memory in bytes of a turn that has ended with this event.
func (t *liveTurn) retainedSize(finished eventlog.Encoded) int {
	total := turnOverheadBytes + t.events.Memory() + finished.Len()
	for _, mark := range t.eventIndexes.GetMessages() {
		total += messageOverheadBytes + valueOverheadBytes*(len(mark.GetStructuredData())+len(mark.GetToolCalls()))
	}
	return total
}

// queuedTurn describes a turn that has not started.
func (t *liveTurn) queuedTurn() *parleyv1.Turn {
	return &parleyv1.Turn{
		Id: t.id, ConversationId: t.queue.id, RequestId: t.request.GetRequestId(), Agent: t.request.GetAgent(),
		State: parleyv1.TurnState_TURN_STATE_QUEUED, CreateTime: timestamppb.New(t.accepted),
	}
}
