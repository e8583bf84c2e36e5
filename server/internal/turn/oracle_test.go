package turn

import (
	"context"
	"fmt"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// oracle predicts the behaviour of a Manager, one step after the other, for TestModel. It has no
// goroutines, contexts or stores.
type oracle struct {
	maxTurns      int
	running       int // queues with a running turn
	queues        map[string]*oracleQueue
	conversations map[string]*oracleConversation
}

// oracleConversation is a stored conversation.
type oracleConversation struct {
	history  []string
	open     []string      // call ids, oldest first
	turns    []*oracleTurn // oldest first
	requests map[string]*oracleTurn
}

// oracleQueue holds the turns of a conversation that readers can follow.
type oracleQueue struct {
	running *oracleTurn
	waiting []*oracleTurn
	ended   []*oracleTurn
}

// oracleTurn is a turn.
type oracleTurn struct {
	request      *parleyv1.ChatRequest
	conversation *oracleConversation // nil before the start
	queue        *oracleQueue
	id           string // assigned by the manager
	position     int
	agentCalled  bool // its agent was called
	agent        *agentRun
	stopState    string // the state in which it must end, if it is cut off
	text         string
	open         []string // ids of the agent's open calls
	state        string   // empty before the end
	err          error    // with which its streams end instead

	log       []string      // its events
	readers   []*oracleRead // attached readers
	firstText int           // index of the event
	lastText  int
}

func newOracle(maxTurns int) *oracle {
	return &oracle{
		maxTurns: maxTurns, queues: make(map[string]*oracleQueue),
		conversations: make(map[string]*oracleConversation),
	}
}

// chat returns the result of a request: the turn to which it is attached, a turn that is only in
// the store, or an error.
func (o *oracle) chat(r *parleyv1.ChatRequest) (t, stored *oracleTurn, joined bool, err error) {
	queue, c := o.queues[r.GetConversationId()], o.conversations[r.GetConversationId()]
	if first := o.find(queue, c, r.GetRequestId()); first != nil {
		switch {
		case requestText(first.request) != requestText(r):
			return nil, nil, true, store.ErrRequestReused
		case slices.Contains(queue.turns(), first):
			return first, nil, true, nil
		case c == nil || !slices.Contains(c.turns, first):
			return nil, nil, true, &EventsGoneError{}
		}
		return nil, first, true, nil
	}
	if queue != nil && queue.running != nil {
		queued, interrupting := 0, 0
		for _, w := range queue.waiting {
			if w.interrupts() {
				interrupting++
			} else {
				queued++
			}
		}
		switch r.GetOnBusy() {
		case parleyv1.OnBusy_ON_BUSY_QUEUE:
			if queued == 16 {
				return nil, nil, false, ErrQueueFull
			}
		case parleyv1.OnBusy_ON_BUSY_INTERRUPT:
			if interrupting == 64 {
				return nil, nil, false, ErrQueueFull
			}
			if err := o.refusal(r); err != nil {
				return nil, nil, false, err
			}
		default:
			return nil, nil, false, &store.BusyError{}
		}
	} else if o.running == o.maxTurns {
		return nil, nil, false, ErrTooManyTurns
	} else if err := o.refusal(r); err != nil {
		return nil, nil, false, err
	}
	if queue == nil {
		queue = new(oracleQueue)
		o.queues[r.GetConversationId()] = queue
	}
	t = &oracleTurn{request: r, queue: queue}
	if queue.running == nil {
		o.running++
		queue.running = t
		o.start(t)
		return t, nil, false, nil
	}
	at := len(queue.waiting)
	if t.interrupts() {
		at = slices.IndexFunc(queue.waiting, func(w *oracleTurn) bool { return !w.interrupts() })
		if at < 0 {
			at = len(queue.waiting)
		}
	}
	queue.waiting = slices.Insert(queue.waiting, at, t)
	queue.reportPositions()
	if t.interrupts() {
		o.stop(queue.running, "INTERRUPTED")
	}
	return t, nil, false, nil
}

// find returns the turn that a request_id started.
func (o *oracle) find(queue *oracleQueue, c *oracleConversation, id string) *oracleTurn {
	if id == "" {
		return nil
	}
	for _, t := range queue.turns() {
		if t.request.GetRequestId() == id {
			return t
		}
	}
	if c == nil {
		return nil
	}
	return c.requests[id]
}

func (l *oracleQueue) turns() []*oracleTurn {
	if l == nil {
		return nil
	}
	turns := slices.Concat(l.ended, l.waiting)
	if l.running != nil {
		turns = append(turns, l.running)
	}
	return turns
}

// reportPositions adds queued events for changed positions.
func (l *oracleQueue) reportPositions() {
	for i, t := range l.waiting {
		if t.position != i+1 {
			t.position = i + 1
			t.add("queued %d", t.position)
		}
	}
}

// refusal returns why a request cannot start a turn now.
func (o *oracle) refusal(r *parleyv1.ChatRequest) error {
	if len(r.GetToolResults()) == 0 {
		return nil
	}
	c := o.conversations[r.GetConversationId()]
	if c == nil {
		return store.ErrNotFound
	}
	for _, result := range r.GetToolResults() {
		if !slices.Contains(c.open, result.GetCallId()) {
			return &NoOpenCallError{}
		}
	}
	return nil
}

// answer adds the tool results of a request and closes their calls.
func (c *oracleConversation) answer(r *parleyv1.ChatRequest) {
	for _, result := range r.GetToolResults() {
		c.history = append(c.history, "tool: "+result.GetContent())
		c.open = slices.DeleteFunc(c.open, func(id string) bool { return id == result.GetCallId() })
	}
}

// start starts the running turn of a queue.
func (o *oracle) start(t *oracleTurn) {
	id := t.request.GetConversationId()
	c, created := o.conversations[id], ""
	if c == nil {
		c, created = &oracleConversation{requests: make(map[string]*oracleTurn)}, " created"
		o.conversations[id] = c
	}
	t.conversation = c
	c.answer(t.request)
	if t.request.GetContent() != "" {
		c.history = append(c.history, "user: "+t.request.GetContent())
	}
	if c.turns = append(c.turns, t); len(c.turns) > 32 {
		c.turns = c.turns[1:]
	}
	if t.request.GetRequestId() != "" {
		c.requests[t.request.GetRequestId()] = t
	}
	t.add("started %q%s", t.request.GetContent(), created)
	if len(t.queue.waiting) > 0 && t.queue.waiting[0].interrupts() {
		o.stop(t, "INTERRUPTED")
		return
	}
	t.agentCalled = true
}

// say adds a text of the agent.
func (t *oracleTurn) say(content string) {
	t.add("text %q at %d", content, len(t.text))
	if t.text += content; t.firstText == 0 {
		t.firstText = len(t.log)
	}
	t.lastText = len(t.log)
}

// call adds a call of the agent.
func (t *oracleTurn) call(id string) {
	t.add("call %q", id)
	t.open = append(t.open, id)
}

// stop ends a running turn in this state; the first stop counts.
func (o *oracle) stop(t *oracleTurn, state string) {
	if t.stopState != "" {
		return
	}
	if t.stopState = state; !t.agentCalled || t.request.GetMetadata() == nil {
		o.end(t, state)
	}
}

// end ends a running turn, whose agent has stopped, and starts the next one.
func (o *oracle) end(t *oracleTurn, state string) {
	if t.stopState != "" {
		state = t.stopState
	}
	if state == "COMPLETED" && len(t.open) > 0 {
		state = "INPUT_REQUIRED"
	}
	if t.conversation == o.conversations[t.request.GetConversationId()] {
		t.state = state
		if t.text != "" || len(t.open) > 0 {
			line := "assistant: " + t.text
			if state != "COMPLETED" && state != "INPUT_REQUIRED" {
				line += " …"
			}
			t.conversation.history = append(t.conversation.history, line)
		}
		// Calls of older answers with the same ids are closed.
		t.conversation.open = append(slices.DeleteFunc(t.conversation.open,
			func(id string) bool { return slices.Contains(t.open, id) }), t.open...)
		t.add("finished %s", state)
		t.queue.retain(t)
	} else {
		t.err = ErrConversationDeleted
	}
	t.release()
	o.startNext(t.queue)
}

// startNext starts the next turn of a queue that can start.
func (o *oracle) startNext(queue *oracleQueue) {
	for queue.running = nil; len(queue.waiting) > 0; queue.running = nil {
		next := queue.waiting[0]
		queue.running, queue.waiting = next, queue.waiting[1:]
		queue.reportPositions()
		if next.err = o.refusal(next.request); next.err == nil {
			o.start(next)
			return
		}
		next.release()
	}
	o.running--
}

// retain retains a turn that has ended.
func (l *oracleQueue) retain(t *oracleTurn) {
	if l.ended = append(l.ended, t); len(l.ended) > 32 {
		l.ended = l.ended[1:]
	}
}

// removeWaiting removes a waiting turn.
func (t *oracleTurn) removeWaiting(err error) {
	t.queue.waiting = slices.DeleteFunc(t.queue.waiting, func(w *oracleTurn) bool { return w == t })
	if t.err = err; err == nil {
		t.state = "CANCELLED"
		t.add("finished CANCELLED")
		t.queue.retain(t)
	}
	t.release()
	t.queue.reportPositions()
}

// removeAllWaiting removes all waiting turns, the last one first, so that no position changes.
func (l *oracleQueue) removeAllWaiting(cause error) {
	for len(l.waiting) > 0 {
		l.waiting[len(l.waiting)-1].removeWaiting(cause)
	}
}

// cancel is CancelTurn.
func (o *oracle) cancel(t *oracleTurn) {
	switch {
	case t.state != "" || t.err != nil:
	case t.conversation == nil:
		t.removeWaiting(nil)
	default:
		o.stop(t, "CANCELLED")
	}
}

// disconnect removes a reader from its turn.
func (o *oracle) disconnect(r *oracleRead) {
	t := r.turn
	r.turn, r.wantErr, r.wantEnded = nil, context.Canceled, true
	t.readers = slices.DeleteFunc(t.readers, func(other *oracleRead) bool { return other == r })
	switch {
	case len(t.readers) > 0:
	case t.conversation == nil:
		t.removeWaiting(errDisconnected)
	case t.request.GetOnDisconnect() == parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL:
		o.stop(t, "CANCELLED")
	}
}

// delete deletes a conversation.
func (o *oracle) delete(id string) {
	delete(o.conversations, id)
	queue := o.queues[id]
	delete(o.queues, id)
	if queue == nil {
		return
	}
	queue.ended = nil
	queue.removeAllWaiting(ErrConversationDeleted)
	if queue.running != nil {
		o.stop(queue.running, "gone")
	}
}

// releaseAll releases all retained turns.
func (o *oracle) releaseAll() {
	for id, queue := range o.queues {
		if queue.ended = nil; queue.running == nil {
			delete(o.queues, id)
		}
	}
}

// stopAll stops the manager, up to agents that ignore cancellation.
func (o *oracle) stopAll() {
	for _, queue := range o.queues {
		queue.removeAllWaiting(ErrShuttingDown)
		if queue.running != nil {
			o.stop(queue.running, "INTERRUPTED")
		}
	}
}

func (t *oracleTurn) interrupts() bool {
	return t.request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT
}

// add adds an event, which all attached readers receive.
func (t *oracleTurn) add(format string, args ...any) {
	t.log = append(t.log, fmt.Sprintf("%d ", len(t.log)+1)+fmt.Sprintf(format, args...))
	for _, r := range t.readers {
		r.want = append(r.want, r.asReceived(t.log[len(t.log)-1:])...)
	}
}

// release ends the streams of all attached readers.
func (t *oracleTurn) release() {
	for _, r := range t.readers {
		r.wantErr, r.wantEnded, r.turn = t.err, true, nil
	}
	t.readers = nil
}
