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
const silence = 15 * time.Second

// silenceStep is how often a turn checks when its readers last received an event.
const silenceStep = 500 * time.Millisecond

// live is a turn that waits, runs, or has ended and is kept.
type live struct {
	// These never change.

	m        *Manager
	line     *line
	id       string
	accepted time.Time
	events   *events
	answer   *answer
	ahead    chan struct{}   // closed when it may begin
	decided  chan struct{}   // closed when it has begun, or will not
	done     chan struct{}   // closed after its last event
	ctx      context.Context //nolint:containedctx // the turn's own life, within the manager's
	cancel   context.CancelCauseFunc

	// These are its own goroutine's.

	log    *slog.Logger
	found  *store.Snapshot // the conversation, if it was read just now; nil once the turn has begun
	entry  *agent.Entry
	inputs []*parleyv1.Message // what is stored as the turn begins
	input  *parleyv1.Message   // what is answered, numbered once it is stored
	result *store.Result       // what the store said when the turn began
	marks  *storev1.TurnEvents
	final  *parleyv1.Turn // as it ended, for all once done is closed; nil: it did not

	// The manager's mu guards the rest, until the turn has ended.

	request   *parleyv1.ChatRequest
	q         *store.Request
	queued    bool // it had to wait
	readers   int
	position  int      // in line, from 1
	withdrawn error    // why it is out of the line before it could begin
	uid       string   // of the conversation, empty until the turn has begun
	version   int32    // of the conversation, as the turn began
	gone      []string // uids of conversations of that id deleted meanwhile
	ended     bool
	memory    int           // bytes that it takes once it has ended
	element   *list.Element // of Manager.kept
	expiry    *time.Timer
}

// newLive makes a turn of which the store does not know yet, with one reader.
func newLive(m *Manager, l *line, request *parleyv1.ChatRequest, q *store.Request, found *store.Snapshot) *live {
	t := &live{
		m: m, line: l, id: uuid.NewString(), request: request, q: q, found: found, accepted: time.Now(), readers: 1,
		ahead: make(chan struct{}), decided: make(chan struct{}), done: make(chan struct{}),
	}
	for _, t.input = range Inputs(t.request) {
		t.input.Id = uuid.NewString()
		t.inputs = append(t.inputs, t.input)
	}
	t.log = m.o.Log.With("tenant", l.tenant, "conversation_id", l.id, "turn_id", t.id)
	t.events = newEvents(t.id, l.key, m.o.Audience)
	t.answer = newAnswer(t.id, m.o.MaxAnswerBytes, t.events)
	// Not of the call's life: leaving is not cancelling.
	t.ctx, t.cancel = context.WithCancelCause(m.stop)
	return t
}

// release gives back what a turn that has ended does not need.
func (t *live) release() {
	t.request, t.found, t.result, t.entry, t.inputs, t.input = nil, nil, nil, nil, nil, nil
}

// fromHistory reports whether a request asks to go on with what the history holds, which
// then has to be looked at: to answer what is pending there, or to give open calls results.
func fromHistory(r *parleyv1.ChatRequest) bool {
	return r.GetAnswerPending() || len(r.GetToolResults()) > 0
}

func (t *live) interrupts() bool {
	return t.request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT
}

// run takes the turn to its end.
func (t *live) run() {
	defer close(t.done)
	err := t.wait()
	if err == nil {
		err = t.begin()
	}
	if err != nil {
		t.refuse(err)
		return
	}
	request, err := t.prepare()
	stop := t.breakSilence() // Not earlier: the store records the index of the started event, which a sign would change.
	if err == nil {
		err = t.respond(request)
	}
	finished, err := t.finish(err)
	stop()
	t.final = finished.GetTurn()
	t.end(finished, err)
}

// end ends the turn and the streams of its readers, with a finished event or with an error.
func (t *live) end(finished *parleyv1.TurnFinished, err error) {
	var last entry
	if err == nil {
		last = newEntry(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: finished}})
	}
	// Before the last event: a client that has received it may begin the next turn at once.
	t.m.leave(t, last)
	if err == nil {
		t.events.addEntry(last, nil)
		t.answer.release(t.marks.GetMessages())
	}
	t.events.end(err)
}

// wait returns when the turn may begin, or why it is not to.
func (t *live) wait() error {
	if !t.queued {
		return nil
	}
	ticker := time.NewTicker(silence)
	defer ticker.Stop()
	for {
		select {
		case <-t.ahead:
			return nil
		case <-ticker.C:
			t.m.mu.Lock()
			t.tellPosition()
			t.m.mu.Unlock()
		case <-t.ctx.Done():
			// What is cut off when it may begin already begins, and ends at once: its words
			// are stored.
			if err := t.m.gaveUp(t); err != nil {
				return err
			}
			<-t.ahead
			return nil
		}
	}
}

// gaveUp withdraws a turn whose life has ended, and says why; nil: it may begin.
func (m *Manager) gaveUp(t *live) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.withdraw(t, context.Cause(t.ctx))
	return t.withdrawn
}

// tellPosition tells readers how many turns are ahead. Under the manager's mu.
func (t *live) tellPosition() {
	if t.withdrawn == nil && t.position > 0 {
		t.events.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Queued{Queued: &parleyv1.TurnQueued{Position: int32(t.position)}}})
	}
}

// refuse ends a turn that does not begin. One that was cancelled has an end like others,
// which the store does not know.
func (t *live) refuse(err error) {
	var finished *parleyv1.TurnFinished
	if errors.Is(err, errCancelled) {
		t.final = t.waiting()
		t.final.State, t.final.Error = t.outcome(err)
		t.final.FinishTime = timestamppb.Now()
		finished, err = &parleyv1.TurnFinished{Turn: t.final}, nil
	}
	t.end(finished, err)
	close(t.decided)
}

// Memory in bytes of a turn that has ended, besides its events, as measured: liveBytes for each turn,
// messageBytes for each message of the answer and valueBytes for each of its values.
const (
	liveBytes    = 2 << 10
	messageBytes = 192
	valueBytes   = 8
)

// memoryWith returns about how many bytes a turn takes that has ended with this event.
func (t *live) memoryWith(finished entry) int {
	total := liveBytes + t.events.memory() + len(finished.data)
	for _, mark := range t.marks.GetMessages() {
		total += messageBytes + valueBytes*(len(mark.GetStructuredData())+len(mark.GetToolCalls()))
	}
	return total
}

// waiting describes a turn that has not begun.
func (t *live) waiting() *parleyv1.Turn {
	return &parleyv1.Turn{
		Id: t.id, ConversationId: t.line.id, RequestId: t.request.GetRequestId(), Agent: t.request.GetAgent(),
		State: parleyv1.TurnState_TURN_STATE_QUEUED, CreateTime: timestamppb.New(t.accepted),
	}
}
