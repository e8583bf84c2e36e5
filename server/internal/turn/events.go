package turn

import (
	"context"
	"iter"
	"slices"
	"sync"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"google.golang.org/protobuf/proto"
)

// The bounds of the events kept of one turn; the oldest go first. A reader that falls
// behind them gets an EventsGoneError, the turn is not slowed down. A finished event, whose
// messages are those of the answer, does not count.
const (
	maxEvents     = 16_384
	maxEventBytes = 2 << 20
	// textBytes is what a text counts beside its own bytes, about as much as its event takes.
	textBytes = 64
)

// readBatch is how many events a reader takes at a time.
const readBatch = 256

// events is what happened in a turn so far. Any number of goroutines read.
type events struct {
	turnID   string
	of       key
	audience Audience // nil: none

	mu    sync.Mutex
	kept  []entry
	bytes int
	begun *parleyv1.TurnEvent // the started event, kept in any case
	// next is the index that the next event gets, from 1.
	next int32
	// promised is the index of the finished event as the store was told it; 0: the store was not.
	promised int32
	// more is closed when there is more to read, or the end is reached; nil when nobody waits
	// for that.
	more chan struct{}
	done bool
	// err is why the readers' streams end; nil after a finished event.
	err error
}

// entry is an event as it is kept. Turns are thousands of texts, and a text is kept without
// the three objects of its message, through which the garbage collector would go again and
// again: readers make them.
type entry struct {
	event  *parleyv1.TurnEvent // nil: a text
	text   string
	offset int32
	gap    bool // no event has this index
}

func newEvents(turnID string, of key, audience Audience) *events {
	return &events{turnID: turnID, of: of, audience: audience, next: 1}
}

// add gives the event its turn and its index, and wakes the readers.
func (e *events) add(event *parleyv1.TurnEvent) (index int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	event.TurnId, event.Index = e.turnID, e.next
	if event.GetStarted() != nil {
		e.begun = event
	}
	return e.keep(entry{event: event})
}

// addText adds a piece of text, which begins at that byte of its message.
func (e *events) addText(text string, offset int32) (index int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.keep(entry{text: text, offset: offset})
}

// addSign adds an empty progress event: the turn continues, although nothing else is to be said.
func (e *events) addSign() (index int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.next == e.promised {
		e.keep(entry{gap: true}) // A reader that continues after this index would miss the end.
	}
	return e.keep(entry{event: &parleyv1.TurnEvent{
		TurnId: e.turnID, Index: e.next, Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}},
	}})
}

// promise returns the index that the finished event has unless the turn goes on for so long that
// readers are sent signs of it. The finished event then has a later one, and no other event has
// this one.
func (e *events) promise() (finished int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.promised = e.next
	return e.promised
}

// retract takes back what was promised: the store has not kept it.
func (e *events) retract() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.promised = 0
}

func (e *events) keep(n entry) (index int32) {
	index = e.next
	e.next++
	e.kept = append(e.kept, n)
	e.bytes += n.size()
	for len(e.kept) > maxEvents || e.bytes > maxEventBytes && len(e.kept) > 1 {
		e.bytes -= e.kept[0].size()
		e.kept[0] = entry{}
		e.kept = e.kept[1:]
	}
	e.wake()
	if !n.gap && e.audience != nil && e.audience.Listening() {
		e.audience.TurnEvent(e.of.tenant, e.of.id, n.message(e.turnID, index))
	}
	return index
}

// size is what counts as the bytes of the event.
func (n entry) size() int {
	switch {
	case n.event == nil:
		return len(n.text) + textBytes
	case n.event.GetFinished() != nil:
		return 0
	}
	return proto.Size(n.event)
}

// message is the event as readers get it.
func (n entry) message(turnID string, index int32) *parleyv1.TurnEvent {
	if n.event != nil {
		return n.event
	}
	return &parleyv1.TurnEvent{TurnId: turnID, Index: index, Event: &parleyv1.TurnEvent_TextDelta{
		TextDelta: &parleyv1.TextDelta{Text: n.text, Offset: n.offset},
	}}
}

// end lets readers go once they have read everything; err is nil after a finished event.
func (e *events) end(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done, e.err = true, err
	e.wake()
}

func (e *events) wake() {
	if e.more != nil {
		close(e.more)
		e.more = nil
	}
}

// started is the started event, once there was one.
func (e *events) started() *parleyv1.TurnEvent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.begun
}

// last is the index of the newest event, 0 before the first.
func (e *events) last() int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.next - 1
}

// told is the index of the newest event ahead of a finished one.
func (e *events) told() int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.kept); n > 0 && e.kept[n-1].event.GetFinished() != nil {
		return e.next - 2
	}
	return e.next - 1
}

// memory is about how many bytes the events take beside the answer that they tell of.
func (e *events) memory() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	total := 8 << 10
	for _, n := range e.kept {
		switch event := n.event; {
		case event == nil:
			total += textBytes + len(n.text)
		case event.GetStructuredData() != nil, event.GetToolCall() != nil, event.GetToolResult() != nil:
			total += 256 // Its value is the answer's.
		default:
			total += 256 + n.size()
		}
	}
	return total
}

// after returns the kept events behind an index. When there are none it returns a channel
// that is closed when there are, nil at the end.
func (e *events) after(index int32) (batch []entry, more <-chan struct{}, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	oldest := e.next - int32(len(e.kept))
	behind := int(e.next - 1 - index)
	switch {
	case index+1 < oldest, behind < 0:
		return nil, nil, &EventsGoneError{After: index, Oldest: oldest, Last: e.next - 1}
	case behind > 0:
		batch = e.kept[len(e.kept)-behind:]
		return slices.Clone(batch[:min(behind, readBatch)]), nil, nil
	case e.done:
		return nil, nil, e.err
	}
	if e.more == nil {
		e.more = make(chan struct{})
	}
	return nil, e.more, nil
}

// read yields the events behind an index until the turn's end, an error, or ctx's end. The
// events are shared: they are not to be changed.
func (e *events) read(ctx context.Context, index int32) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		for {
			batch, more, err := e.after(index)
			switch {
			case err != nil:
				yield(nil, err)
				return
			case len(batch) == 0 && more == nil:
				return
			case len(batch) == 0:
				select {
				case <-more:
				case <-ctx.Done():
					yield(nil, context.Cause(ctx))
					return
				}
			}
			for _, n := range batch {
				index++
				if !n.gap && !yield(n.message(e.turnID, index), nil) {
					return
				}
			}
		}
	}
}
