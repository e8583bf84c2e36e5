package turn

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// silence is how long nothing may be heard of a turn before its readers are told that it
// still waits or runs: see TurnQueued and TurnProgress.
const keepAliveInterval = 15 * time.Second

// silenceStep is how often a turn checks when its readers last received an event.
const keepAliveCheckInterval = 500 * time.Millisecond

// live is a turn that waits, runs, or has ended and is kept.
type liveTurn struct {
	// These never change.

	manager      *Manager
	queue        *queue
	id           string
	accepted     time.Time
	events       *eventLog
	answer       *answer
	mayStart     chan struct{}   // closed when it may begin
	startDecided chan struct{}   // closed when it has begun, or will not
	done         chan struct{}   // closed after its last event
	ctx          context.Context //nolint:containedctx // the turn's own life, within the manager's
	cancel       context.CancelCauseFunc

	// These are its own goroutine's.

	log          *slog.Logger
	conversation *store.Snapshot // the conversation, if it was read just now; nil once the turn has begun
	agent        *agent.Entry
	inputs       []*parleyv1.Message // what is stored as the turn begins
	input        *parleyv1.Message   // what is answered, numbered once it is stored
	startResult  *store.Result       // what the store said when the turn began
	eventIndexes *storev1.TurnEvents
	finalTurn    *parleyv1.Turn // as it ended, for all once done is closed; nil: it did not

	// The manager's mu guards the rest, until the turn has ended.

	request         *parleyv1.ChatRequest
	requestKey      *store.Request
	hadToWait       bool // it had to wait
	readers         int
	position        int      // in line, from 1
	removalCause    error    // why it is out of the line before it could begin
	uid             string   // of the conversation, empty until the turn has begun
	version         int32    // of the conversation, as the turn began
	deletedUIDs     []string // uids of conversations of that id deleted meanwhile
	ended           bool
	retainedBytes   int           // bytes that it takes once it has ended
	retainedElement *list.Element // of Manager.kept
	releaseTimer    *time.Timer
}

// newLive makes a turn of which the store does not know yet, with one reader.
func newLiveTurn(m *Manager, l *queue, request *parleyv1.ChatRequest, q *store.Request, found *store.Snapshot) *liveTurn {
	t := &liveTurn{
		manager: m, queue: l, id: uuid.NewString(), request: request, requestKey: q, conversation: found, accepted: time.Now(), readers: 1,
		mayStart: make(chan struct{}), startDecided: make(chan struct{}), done: make(chan struct{}),
	}
	for _, t.input = range Inputs(t.request) {
		t.input.Id = uuid.NewString()
		t.inputs = append(t.inputs, t.input)
	}
	t.log = m.o.Log.With("tenant", l.tenant, "conversation_id", l.id, "turn_id", t.id)
	t.events = newEventLog(t.id, l.key, m.o.Audience)
	t.answer = newAnswer(t.id, m.o.MaxAnswerBytes, t.events)
	// Not of the call's life: leaving is not cancelling.
	t.ctx, t.cancel = context.WithCancelCause(m.ctx)
	return t
}

// release gives back what a turn that has ended does not need.
func (t *liveTurn) dropReferences() {
	t.request, t.conversation, t.startResult, t.agent, t.inputs, t.input = nil, nil, nil, nil, nil, nil
}

// fromHistory reports whether a request asks to go on with what the history holds, which
// then has to be looked at: to answer what is pending there, or to give open calls results.
func dependsOnHistory(r *parleyv1.ChatRequest) bool {
	return r.GetAnswerPending() || len(r.GetToolResults()) > 0
}

func (t *liveTurn) interrupts() bool {
	return t.request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT
}

// run takes the turn to its end.
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
	stop := t.startKeepAlive() // Not earlier: the store records the index of the started event, which a sign would change.
	if err == nil {
		err = t.respond(request)
	}
	finished, err := t.finish(err)
	stop()
	t.finalTurn = finished.GetTurn()
	t.endStreams(finished, err)
}

// end ends the turn and the streams of its readers, with a finished event or with an error.
func (t *liveTurn) endStreams(finished *parleyv1.TurnFinished, err error) {
	var lastEvent encodedEvent
	if err == nil {
		lastEvent = encodeEvent(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: finished}})
	}
	// Before the last event: a client that has received it may begin the next turn at once.
	t.manager.finishTurn(t, lastEvent)
	if err == nil {
		t.events.addEncoded(lastEvent, nil)
		t.answer.release(t.eventIndexes.GetMessages())
	}
	t.events.end(err)
}

// wait returns when the turn may begin, or why it is not to.
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
			// What is cut off when it may begin already begins, and ends at once: its words
			// are stored.
			if err := t.manager.removeCancelled(t); err != nil {
				return err
			}
			<-t.mayStart
			return nil
		}
	}
}

// gaveUp withdraws a turn whose life has ended, and says why; nil: it may begin.
func (m *Manager) removeCancelled(t *liveTurn) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeWaiting(t, context.Cause(t.ctx))
	return t.removalCause
}

// tellPosition tells readers how many turns are ahead. Under the manager's mu.
func (t *liveTurn) reportPosition() {
	if t.removalCause == nil && t.position > 0 {
		t.events.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Queued{Queued: &parleyv1.TurnQueued{Position: int32(t.position)}}})
	}
}

// refuse ends a turn that does not begin. One that was cancelled has an end like others,
// which the store does not know.
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

// Memory in bytes of a turn that has ended, besides its events, as measured: liveBytes for each turn,
// messageBytes for each message of the answer and valueBytes for each of its values.
const (
	turnOverheadBytes    = 2 << 10
	messageOverheadBytes = 192
	valueOverheadBytes   = 8
)

// memoryWith returns about how many bytes a turn takes that has ended with this event.
func (t *liveTurn) retainedSize(finished encodedEvent) int {
	total := turnOverheadBytes + t.events.memory() + len(finished.data)
	for _, mark := range t.eventIndexes.GetMessages() {
		total += messageOverheadBytes + valueOverheadBytes*(len(mark.GetStructuredData())+len(mark.GetToolCalls()))
	}
	return total
}

// waiting describes a turn that has not begun.
func (t *liveTurn) queuedTurn() *parleyv1.Turn {
	return &parleyv1.Turn{
		Id: t.id, ConversationId: t.queue.id, RequestId: t.request.GetRequestId(), Agent: t.request.GetAgent(),
		State: parleyv1.TurnState_TURN_STATE_QUEUED, CreateTime: timestamppb.New(t.accepted),
	}
}
