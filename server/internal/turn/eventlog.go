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
	// entryBytes is the memory of an event besides its data: its entry, in a list that grows in
	// steps, and the rounding of its data.
	eventOverheadBytes = 40
)

// readBatch is how many events a reader takes at a time.
const readBatch = 256

// events is what happened in a turn so far. Any number of goroutines read.
type eventLog struct {
	turnID       string
	conversation key
	sink         EventSink // nil: none

	mu           sync.Mutex
	retained     []encodedEvent
	bytes        int
	startedEvent encodedEvent // the started event, always retained
	startedIndex int32        // its index, 0 before it
	// next is the index that the next event gets, from 1.
	next int32
	// promised is the index of the finished event that the store was given; 0 if it was given none.
	reservedIndex int32
	// more is closed when there is more to read, or the end is reached; nil when nobody waits
	// for that.
	changed chan struct{}
	done    bool
	// err is why the readers' streams end; nil after a finished event.
	err error
}

// entry is a retained event in encoded form, from which each reader decodes a message. A turn has
// thousands of texts, and a value may be a tree of 100,000 objects. In this form an event is one
// object for the garbage collector, and its counted size is the size that it takes.
type encodedEvent struct {
	data   string // a text, or an encoded TurnEvent without its turn and index
	offset int32  // offset of a text in its message
	kind   eventKind
}

type eventKind uint8

const (
	noEvent eventKind = iota // no event has this index
	textEvent
	protoEvent
	finishedEvent
)

// newEntry encodes an event. It returns the zero entry if a string in the event is not UTF-8.
func encodeEvent(event *parleyv1.TurnEvent) encodedEvent {
	data, err := proto.Marshal(event)
	switch {
	case err != nil:
		return encodedEvent{}
	case event.GetFinished() != nil:
		return encodedEvent{data: string(data), kind: finishedEvent}
	}
	return encodedEvent{data: string(data), kind: protoEvent}
}

func newEventLog(turnID string, of key, audience EventSink) *eventLog {
	return &eventLog{turnID: turnID, conversation: of, sink: audience, next: 1}
}

// add appends an event that can be encoded, sets its turn and its index, and wakes the readers.
func (e *eventLog) add(event *parleyv1.TurnEvent) (index int32) {
	return e.addEncoded(encodeEvent(event), event) // Encode before the lock: this may take milliseconds.
}

// addEntry appends an encoded event. event is the same event decoded; if nil, addEntry decodes it
// if needed.
func (e *eventLog) addEncoded(n encodedEvent, event *parleyv1.TurnEvent) (index int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if event.GetStarted() != nil {
		e.startedEvent, e.startedIndex = n, e.next
	}
	return e.appendLocked(n, event)
}

// addText adds a piece of text, which begins at that byte of its message.
func (e *eventLog) addText(text string, offset int32) (index int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.appendLocked(encodedEvent{data: text, offset: offset, kind: textEvent}, nil)
}

// addSign appends an empty progress event, which shows readers that the turn continues.
func (e *eventLog) addKeepAlive() (index int32) {
	event := &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}}}
	n := encodeEvent(event)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.next == e.reservedIndex {
		e.appendLocked(encodedEvent{}, nil) // Skip the promised index: a reader that resumes after it would miss the end.
	}
	return e.appendLocked(n, event)
}

// promise returns the index of the finished event for the store. If readers are sent a sign after
// that, the finished event has a later index, and no event has this one.
func (e *eventLog) reserveFinished() (finished int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reservedIndex = e.next
	return e.reservedIndex
}

// retract withdraws the promised index, since the store has not stored the answer.
func (e *eventLog) releaseReserved() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reservedIndex = 0
}

// keep appends an entry; see addEntry.
func (e *eventLog) appendLocked(n encodedEvent, event *parleyv1.TurnEvent) (index int32) {
	index = e.next
	e.next++
	e.retained = append(e.retained, n)
	e.bytes += n.size()
	for len(e.retained) > maxEvents || e.bytes > maxEventBytes && len(e.retained) > 1 {
		e.bytes -= e.retained[0].size()
		e.retained[0] = encodedEvent{}
		e.retained = e.retained[1:]
	}
	e.wakeReaders()
	if n.kind != noEvent && e.sink != nil && e.sink.HasSubscribers() {
		if event == nil {
			event = n.decode(e.turnID, index)
		}
		event.TurnId, event.Index = e.turnID, index
		e.sink.TurnEvent(e.conversation.tenant, e.conversation.id, event)
	}
	return index
}

// size is what counts as the bytes of the event.
func (n encodedEvent) size() int {
	if n.kind == finishedEvent {
		return 0
	}
	return len(n.data) + eventOverheadBytes
}

// message decodes the event into a new message for one reader.
func (n encodedEvent) decode(turnID string, index int32) *parleyv1.TurnEvent {
	event := new(parleyv1.TurnEvent)
	if n.kind == textEvent {
		event.Event = &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: n.data, Offset: n.offset}}
	} else {
		_ = proto.Unmarshal([]byte(n.data), event) // cannot fail: newEntry encoded it
	}
	event.TurnId, event.Index = turnID, index
	return event
}

// end lets readers go once they have read everything; err is nil after a finished event.
func (e *eventLog) end(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done, e.err = true, err
	e.wakeReaders()
}

func (e *eventLog) wakeReaders() {
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// started returns the started event; nil if there was none.
func (e *eventLog) started() *parleyv1.TurnEvent {
	e.mu.Lock()
	begun, index := e.startedEvent, e.startedIndex
	e.mu.Unlock()
	if index == 0 {
		return nil
	}
	return begun.decode(e.turnID, index)
}

// finished returns the finished event; nil if there was none.
func (e *eventLog) finished() *parleyv1.TurnEvent {
	e.mu.Lock()
	var end encodedEvent
	if n := len(e.retained); n > 0 {
		end = e.retained[n-1]
	}
	index := e.next - 1
	e.mu.Unlock()
	if end.kind != finishedEvent {
		return nil
	}
	return end.decode(e.turnID, index)
}

// last is the index of the newest event, 0 before the first.
func (e *eventLog) lastIndex() int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.next - 1
}

// told is the index of the newest event ahead of a finished one.
func (e *eventLog) lastBeforeFinished() int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.retained); n > 0 && e.retained[n-1].kind == finishedEvent {
		return e.next - 2
	}
	return e.next - 1
}

// memory returns about how many bytes the events take.
func (e *eventLog) memory() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	total := e.bytes
	if e.startedIndex > 0 && e.startedIndex < e.next-int32(len(e.retained)) {
		total += len(e.startedEvent.data)
	}
	return total
}

// after returns the kept events behind an index. When there are none it returns a channel
// that is closed when there are, nil at the end.
func (e *eventLog) after(index int32) (batch []encodedEvent, more <-chan struct{}, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	oldest := e.next - int32(len(e.retained))
	behind := int(e.next - 1 - index)
	switch {
	case index+1 < oldest, behind < 0:
		return nil, nil, &EventsGoneError{After: index, Oldest: oldest, Last: e.next - 1}
	case behind > 0:
		batch = e.retained[len(e.retained)-behind:]
		return slices.Clone(batch[:min(behind, readBatch)]), nil, nil
	case e.done:
		return nil, nil, e.err
	}
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return nil, e.changed, nil
}

// read yields the events after an index until the turn ends, an error occurs or ctx ends.
func (e *eventLog) read(ctx context.Context, index int32) iter.Seq2[*parleyv1.TurnEvent, error] {
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
				if n.kind != noEvent && !yield(n.decode(e.turnID, index), nil) {
					return
				}
			}
		}
	}
}
