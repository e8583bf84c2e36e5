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
	lines         map[string]*oracleLine
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
type oracleLine struct {
	running *oracleTurn
	waiting []*oracleTurn
	ended   []*oracleTurn
}

// oracleTurn is a turn.
type oracleTurn struct {
	request  *parleyv1.ChatRequest
	in       *oracleConversation // since it has begun
	line     *oracleLine
	id       string // as the manager calls it
	position int
	asked    bool // its agent was asked
	agent    *run
	cut      string // why it is to end, if it is
	text     string
	open     []string // ids of the agent's calls
	state    string   // empty: it has not ended
	err      error    // that its streams end with instead

	log       []string      // its events
	readers   []*oracleRead // that are attached
	firstText int           // index of the event
	lastText  int
}

func newOracle(maxTurns int) *oracle {
	return &oracle{maxTurns: maxTurns, lines: make(map[string]*oracleLine), conversations: make(map[string]*oracleConversation)}
}

// chat says what becomes of a request: the turn that it is attached to, one that is only in
// the store, or an error.
func (o *oracle) chat(r *parleyv1.ChatRequest) (t, stored *oracleTurn, joined bool, err error) {
	line, c := o.lines[r.GetConversationId()], o.conversations[r.GetConversationId()]
	if first := o.find(line, c, r.GetRequestId()); first != nil {
		switch {
		case saysOf(first.request) != saysOf(r):
			return nil, nil, true, store.ErrRequestReused
		case slices.Contains(line.all(), first):
			return first, nil, true, nil
		case c == nil || !slices.Contains(c.turns, first):
			return nil, nil, true, &EventsGoneError{}
		}
		return nil, first, true, nil
	}
	if line != nil && line.running != nil {
		queued, interrupting := 0, 0
		for _, w := range line.waiting {
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
			if err := o.hopeless(r); err != nil {
				return nil, nil, false, err
			}
		default:
			return nil, nil, false, &store.BusyError{}
		}
	} else if o.running == o.maxTurns {
		return nil, nil, false, ErrTooManyTurns
	} else if err := o.hopeless(r); err != nil {
		return nil, nil, false, err
	}
	if line == nil {
		line = new(oracleLine)
		o.lines[r.GetConversationId()] = line
	}
	t = &oracleTurn{request: r, line: line}
	if line.running == nil {
		o.running++
		line.running = t
		o.begin(t)
		return t, nil, false, nil
	}
	at := len(line.waiting)
	if t.interrupts() {
		at = slices.IndexFunc(line.waiting, func(w *oracleTurn) bool { return !w.interrupts() })
		if at < 0 {
			at = len(line.waiting)
		}
	}
	line.waiting = slices.Insert(line.waiting, at, t)
	line.count()
	if t.interrupts() {
		o.stop(line.running, "INTERRUPTED")
	}
	return t, nil, false, nil
}

// find is the turn that a request_id began.
func (o *oracle) find(line *oracleLine, c *oracleConversation, id string) *oracleTurn {
	if id == "" {
		return nil
	}
	for _, t := range line.all() {
		if t.request.GetRequestId() == id {
			return t
		}
	}
	if c == nil {
		return nil
	}
	return c.requests[id]
}

func (l *oracleLine) all() []*oracleTurn {
	if l == nil {
		return nil
	}
	all := slices.Concat(l.ended, l.waiting)
	if l.running != nil {
		all = append(all, l.running)
	}
	return all
}

// count tells those who wait where that is news.
func (l *oracleLine) count() {
	for i, t := range l.waiting {
		if t.position != i+1 {
			t.position = i + 1
			t.add("queued %d", t.position)
		}
	}
}

// hopeless says why a request cannot begin a turn as things are.
func (o *oracle) hopeless(r *parleyv1.ChatRequest) error {
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
func (o *oracle) begin(t *oracleTurn) {
	id := t.request.GetConversationId()
	c, created := o.conversations[id], ""
	if c == nil {
		c, created = &oracleConversation{requests: make(map[string]*oracleTurn)}, " created"
		o.conversations[id] = c
	}
	t.in = c
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
	if len(t.line.waiting) > 0 && t.line.waiting[0].interrupts() {
		o.stop(t, "INTERRUPTED")
		return
	}
	t.asked = true
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
func (o *oracle) stop(t *oracleTurn, why string) {
	if t.cut != "" {
		return
	}
	if t.cut = why; !t.asked || t.request.GetMetadata() == nil {
		o.end(t, why)
	}
}

// end ends a running turn, whose agent has stopped, and lets the next one begin.
func (o *oracle) end(t *oracleTurn, state string) {
	if t.cut != "" {
		state = t.cut
	}
	if state == "COMPLETED" && len(t.open) > 0 {
		state = "INPUT_REQUIRED"
	}
	if t.in == o.conversations[t.request.GetConversationId()] {
		t.state = state
		if t.text != "" || len(t.open) > 0 {
			line := "assistant: " + t.text
			if state != "COMPLETED" && state != "INPUT_REQUIRED" {
				line += " …"
			}
			t.in.history = append(t.in.history, line)
		}
		// Those of an older answer are over.
		t.in.open = append(slices.DeleteFunc(t.in.open, func(id string) bool { return slices.Contains(t.open, id) }), t.open...)
		t.add("finished %s", state)
		t.line.keep(t)
	} else {
		t.err = ErrConversationGone
	}
	t.release()
	o.advance(t.line)
}

// advance lets the next turn of a line begin that can.
func (o *oracle) advance(line *oracleLine) {
	for line.running = nil; len(line.waiting) > 0; line.running = nil {
		next := line.waiting[0]
		line.running, line.waiting = next, line.waiting[1:]
		line.count()
		if next.err = o.hopeless(next.request); next.err == nil {
			o.begin(next)
			return
		}
		next.release()
	}
	o.running--
}

// keep keeps what can be followed of a turn that has ended.
func (l *oracleLine) keep(t *oracleTurn) {
	if l.ended = append(l.ended, t); len(l.ended) > 32 {
		l.ended = l.ended[1:]
	}
}

// withdraw takes a turn out of the line that waits there.
func (t *oracleTurn) withdraw(err error) {
	t.line.waiting = slices.DeleteFunc(t.line.waiting, func(w *oracleTurn) bool { return w == t })
	if t.err = err; err == nil {
		t.state = "CANCELLED"
		t.add("finished CANCELLED")
		t.line.keep(t)
	}
	t.release()
	t.line.count()
}

// disperse withdraws all that wait, the last one first: nobody moves up.
func (l *oracleLine) disperse(why error) {
	for len(l.waiting) > 0 {
		l.waiting[len(l.waiting)-1].withdraw(why)
	}
}

// cancel is CancelTurn.
func (o *oracle) cancel(t *oracleTurn) {
	switch {
	case t.state != "" || t.err != nil:
	case t.in == nil:
		t.withdraw(nil)
	default:
		o.stop(t, "CANCELLED")
	}
}

// left is what becomes of the turn that somebody leaves.
func (o *oracle) left(r *oracleRead) {
	t := r.turn
	r.turn, r.wantErr, r.wantOver = nil, context.Canceled, true
	t.readers = slices.DeleteFunc(t.readers, func(other *oracleRead) bool { return other == r })
	switch {
	case len(t.readers) > 0:
	case t.in == nil:
		t.withdraw(errLeft)
	case t.request.GetOnDisconnect() == parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL:
		o.stop(t, "CANCELLED")
	}
}

// delete is the end of a conversation.
func (o *oracle) delete(id string) {
	delete(o.conversations, id)
	line := o.lines[id]
	delete(o.lines, id)
	if line == nil {
		return
	}
	line.ended = nil
	line.disperse(ErrConversationGone)
	if line.running != nil {
		o.stop(line.running, "gone")
	}
}

// forget is the end of all that is kept of ended turns.
func (o *oracle) forget() {
	for id, line := range o.lines {
		if line.ended = nil; line.running == nil {
			delete(o.lines, id)
		}
	}
}

// close is a stop of the manager, as far as agents heed it.
func (o *oracle) close() {
	for _, line := range o.lines {
		line.disperse(ErrShuttingDown)
		if line.running != nil {
			o.stop(line.running, "INTERRUPTED")
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
		r.want = append(r.want, r.told(t.log[len(t.log)-1:])...)
	}
}

// release ends the streams of all who are attached.
func (t *oracleTurn) release() {
	for _, r := range t.readers {
		r.wantErr, r.wantOver, r.turn = t.err, true, nil
	}
	t.readers = nil
}
