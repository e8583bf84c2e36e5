package turn

import (
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
	"github.com/parleyhq/parley/store"
)

// keepAliveInterval is the maximum time without an event for readers. After this time they receive
// TurnQueued or TurnProgress.
const keepAliveInterval = 15 * time.Second

// execution runs a turn. Its fields belong to the turn's goroutine, which is run. The goroutines that
// save the answer and send keep-alives only read fields that do not change while they run. An
// execution is not referenced after the turn has ended.
type execution struct {
	live    *liveTurn
	manager *Manager
	entry   *queueEntry // Only methods of manager use its fields, since they hold the lock.
	log     *slog.Logger

	request    *parleyv1.ChatRequest
	requestKey *store.Request
	hadToWait  bool                // the turn was not first in its queue
	snapshot   *store.Snapshot     // the conversation, read for this turn; nil after the start
	agent      *agent.Entry        // the agent that answers; held
	inputs     []*parleyv1.Message // messages to be stored at the start
	input      *parleyv1.Message   // the message to be answered; has its sequence after the start

	agentRecord *parleyv1.Record // that the agent reads; nil if there is none

	startResult  *store.Result // the store's result of the start
	eventIndexes *storev1.TurnEvents

	end End // for Options.OnEnd, complete after finish
}

// newExecution returns the execution of a turn. snapshot is the conversation if it was read just
// now.
func newExecution(
	m *Manager, e *queueEntry, request *parleyv1.ChatRequest, snapshot *store.Snapshot, hadToWait bool,
) *execution {
	at := e.live.conversation
	log := m.o.Log.With("tenant", at.tenant, "conversation_id", at.id, "turn_id", e.live.id)
	if id := tracing.TraceID(e.live.ctx); id != "" {
		log = log.With("trace_id", id)
	}
	x := &execution{
		live: e.live, manager: m, entry: e, request: request, requestKey: e.requestKey, hadToWait: hadToWait, log: log,
	}
	if !hadToWait { // Otherwise the snapshot is outdated when the turn starts.
		x.snapshot = snapshot
	}
	for _, x.input = range Inputs(request) {
		x.input.Id = uuid.NewString()
		x.inputs = append(x.inputs, x.input)
	}
	return x
}

// run runs the turn from the queue to its end. It is the turn's goroutine.
func (x *execution) run() {
	err := x.waitForStart()
	if err == nil {
		err = x.start()
	}
	if err != nil {
		turn := x.endWithoutStart(err)
		x.releaseAgent()
		x.live.complete(turn)
		return
	}
	x.end.Agent, x.end.Wait = x.agent.Name, time.Since(x.live.accepted)
	request, err := x.agentRequest()
	// Start after agentRequest: the store records the index of the started event, which a keep-alive
	// would change.
	stop := x.startKeepAlive()
	if err == nil {
		err = x.respond(request)
	}
	finished, err := x.finish(err)
	stop()
	x.manager.o.OnEnd(x.end)
	x.endStreams(finished, err)
	x.releaseAgent() // A stop closes the agents when all turns are complete.
	x.live.complete(finished.GetTurn())
}

// waitForStart waits until the turn may start. It returns an error if the turn must not start.
func (x *execution) waitForStart() error {
	if !x.hadToWait {
		return nil
	}
	ticker := time.NewTicker(keepAliveInterval)
	defer ticker.Stop()
	for {
		select {
		case <-x.live.mayStart:
			return nil
		case <-ticker.C:
			x.manager.reportPosition(x.entry)
		case <-x.live.ctx.Done():
			// A turn that is cancelled when it may already start does start, and ends at once. Its
			// messages are stored.
			if err := x.manager.removeCancelled(x.entry); err != nil {
				return err
			}
			<-x.live.mayStart
			return nil
		}
	}
}

// endWithoutStart ends a turn that does not start. A turn that was cancelled ends with a finished
// event, although the store does not know the turn; endWithoutStart returns it as it ended.
func (x *execution) endWithoutStart(err error) (turn *parleyv1.Turn) {
	var finished *parleyv1.TurnFinished
	if errors.Is(err, errCancelled) {
		turn = x.live.queuedTurn()
		turn.State, turn.Error = x.outcome(err)
		turn.FinishTime = timestamppb.Now()
		finished, err = &parleyv1.TurnFinished{Turn: turn}, nil
	}
	x.endStreams(finished, err)
	close(x.live.startDecided)
	return turn
}

// endStreams ends the turn and the streams of its readers, with a finished event or an error.
func (x *execution) endStreams(finished *parleyv1.TurnFinished, err error) {
	var lastEvent eventlog.Encoded
	if err == nil {
		lastEvent = eventlog.Encode(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: finished}})
	}
	fault := ""
	if x.end.State == parleyv1.TurnState_TURN_STATE_FAILED {
		fault = x.end.Reason
	}
	x.live.span.End(fault) // Before finishTurn: when no turn is running, a stop sends the last spans.
	// Do this before the last event: a client that receives it may start the next turn at once.
	x.manager.finishTurn(x.entry, !lastEvent.IsZero(), x.retainedSize(lastEvent))
	if err == nil {
		x.live.events.AddEncoded(lastEvent, nil)
		x.live.answer.Release(x.eventIndexes.GetMessages())
	}
	x.live.events.End(err)
	x.manager.endedStreams()
}

// retainedSize returns the approximate memory in bytes of a turn that has ended with this event.
func (x *execution) retainedSize(finished eventlog.Encoded) int {
	total := turnOverheadBytes + x.live.events.Memory() + finished.Len()
	for _, m := range x.eventIndexes.GetMessages() {
		total += messageOverheadBytes + valueOverheadBytes*(len(m.GetStructuredData())+len(m.GetToolCalls())) +
			runOverheadBytes*len(m.GetDeltas())
	}
	return total
}
