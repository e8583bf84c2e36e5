package turn

import (
	"context"
	"fmt"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// oracle says what a Manager has to do, one step after the other: TestModel compares the
// two. It knows nothing of goroutines, contexts and stores.
type oracle struct {
	maxTurns      int
	running       int // lines in which a turn runs
	queues        map[string]*oracleQueue
	conversations map[string]*oracleConversation
}

// oracleConversation is what the store has of one.
type oracleConversation struct {
	history  []string
	open     []string      // ids of calls, oldest first
	turns    []*oracleTurn // oldest first
	requests map[string]*oracleTurn
}

// oracleLine is the turns of a conversation that can be followed.
type oracleQueue struct {
	running *oracleTurn
	waiting []*oracleTurn
	ended   []*oracleTurn
}

// oracleTurn is a turn.
type oracleTurn struct {
	request      *parleyv1.ChatRequest
	conversation *oracleConversation // since it has begun
	queue        *oracleQueue
	id           string // as the manager calls it
	position     int
	agentCalled  bool // its agent was asked
	agent        *agentRun
	stopState    string // why it is to end, if it is
	text         string
	open         []string // ids of the agent's calls
	state        string   // empty: it has not ended
	err          error    // that its streams end with instead

	log       []string      // its events
	readers   []*oracleRead // that are attached
	firstText int           // index of the event
	lastText  int
}

func newOracle(maxTurns int) *oracle {
	return &oracle{maxTurns: maxTurns, queues: make(map[string]*oracleQueue), conversations: make(map[string]*oracleConversation)}
}

// chat says what becomes of a request: the turn that it is attached to, one that is only in
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

// find is the turn that a request_id began.
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

// count tells those who wait where that is news.
func (l *oracleQueue) reportPositions() {
	for i, t := range l.waiting {
		if t.position != i+1 {
			t.position = i + 1
			t.add("queued %d", t.position)
		}
	}
}

// hopeless says why a request cannot begin a turn as things are.
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

// answer takes the results of a request, each for the open call of its id.
func (c *oracleConversation) answer(r *parleyv1.ChatRequest) {
	for _, result := range r.GetToolResults() {
		c.history = append(c.history, "tool: "+result.GetContent())
		c.open = slices.DeleteFunc(c.open, func(id string) bool { return id == result.GetCallId() })
	}
}

// begin begins the running turn of a line.
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

// say is what the agent says.
func (t *oracleTurn) say(word string) {
	t.add("text %q at %d", word, len(t.text))
	if t.text += word; t.firstText == 0 {
		t.firstText = len(t.log)
	}
	t.lastText = len(t.log)
}

// call is what the agent asks for.
func (t *oracleTurn) call(id string) {
	t.add("call %q", id)
	t.open = append(t.open, id)
}

// stop cuts a running turn off; the first reason counts.
func (o *oracle) stop(t *oracleTurn, state string) {
	if t.stopState != "" {
		return
	}
	if t.stopState = state; !t.agentCalled || t.request.GetMetadata() == nil {
		o.end(t, state)
	}
}

// end ends a running turn, whose agent has stopped, and lets the next one begin.
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
		// Those of an older answer are over.
		t.conversation.open = append(slices.DeleteFunc(t.conversation.open, func(id string) bool { return slices.Contains(t.open, id) }), t.open...)
		t.add("finished %s", state)
		t.queue.retain(t)
	} else {
		t.err = ErrConversationGone
	}
	t.release()
	o.startNext(t.queue)
}

// advance lets the next turn of a line begin that can.
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

// keep keeps what can be followed of a turn that has ended.
func (l *oracleQueue) retain(t *oracleTurn) {
	if l.ended = append(l.ended, t); len(l.ended) > 32 {
		l.ended = l.ended[1:]
	}
}

// withdraw takes a turn out of the line that waits there.
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

// disperse withdraws all that wait, the last one first: nobody moves up.
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

// left is what becomes of the turn that somebody leaves.
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

// delete is the end of a conversation.
func (o *oracle) delete(id string) {
	delete(o.conversations, id)
	queue := o.queues[id]
	delete(o.queues, id)
	if queue == nil {
		return
	}
	queue.ended = nil
	queue.removeAllWaiting(ErrConversationGone)
	if queue.running != nil {
		o.stop(queue.running, "gone")
	}
}

// forget is the end of all that is kept of ended turns.
func (o *oracle) releaseAll() {
	for id, queue := range o.queues {
		if queue.ended = nil; queue.running == nil {
			delete(o.queues, id)
		}
	}
}

// close is a stop of the manager, as far as agents heed it.
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

// add is the next event, which all who are attached read.
func (t *oracleTurn) add(format string, args ...any) {
	t.log = append(t.log, fmt.Sprintf("%d ", len(t.log)+1)+fmt.Sprintf(format, args...))
	for _, r := range t.readers {
		r.want = append(r.want, r.asReceived(t.log[len(t.log)-1:])...)
	}
}

// release ends the streams of all who are attached.
func (t *oracleTurn) release() {
	for _, r := range t.readers {
		r.wantErr, r.wantEnded, r.turn = t.err, true, nil
	}
	t.readers = nil
}
