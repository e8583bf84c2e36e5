package turn

import (
	"context"
	"iter"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Limits of the retained events of one turn. When a limit is reached, the oldest events are
// dropped. A reader that needs dropped events receives an EventsGoneError; readers never slow down
// the turn. A finished event does not count, since its messages are those of the answer.
const (
	maxEvents     = 16_384
	maxEventBytes = 2 << 20
	// eventOverheadBytes is the memory of an event without its data: its entry in a list that grows
	// in steps, and the rounding of its data.
	eventOverheadBytes = 40
)

// readBatch is the maximum number of events that a reader copies under the lock.
const readBatch = 256

// eventLog is the list of events of a turn. It is safe for concurrent use.
type eventLog struct {
	turnID       string
	conversation key
	sink         EventSink // nil if there is no sink

	mu           sync.Mutex
	retained     []encodedEvent
	bytes        int
	startedEvent encodedEvent // retained even if it was dropped from the list
	startedIndex int32        // 0 before the started event
	// next is the index of the next event, from 1.
	next int32
	// reservedIndex is the index of the finished event that the store has received, 0 if none.
	reservedIndex int32
	// changed is closed when there are new events or the log ends. It is nil if no reader waits.
	changed chan struct{}
	done    bool
	// err ends the sequences of the readers. It is nil after a finished event.
	err error
}

// encodedEvent is a retained event in encoded form. Each reader decodes it into a new message. A
// turn has thousands of texts, and a value may be a tree of 100,000 objects. In encoded form an
// event is one object for the garbage collector, and its counted size is its real size.
type encodedEvent struct {
	data   string // a text, or an encoded TurnEvent without turn_id and index
	offset int32  // byte offset of a text in its message
	kind   eventKind
}

type eventKind uint8

const (
	noEvent eventKind = iota // the index is unused
	textEvent
	protoEvent
	finishedEvent
)

// encodeEvent encodes an event. It returns the zero encodedEvent if a string in the event is not
// UTF-8.
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

// add appends an event and wakes the readers. It sets the event's turn id and index. The event must
// be valid UTF-8.
func (e *eventLog) add(event *parleyv1.TurnEvent) (index int32) {
	return e.addEncoded(encodeEvent(event), event) // Encode before locking, since it may take milliseconds.
}

// addEncoded appends an encoded event. event is the same event in decoded form; if nil, addEncoded
// decodes it when a sink needs it.
func (e *eventLog) addEncoded(n encodedEvent, event *parleyv1.TurnEvent) (index int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if event.GetStarted() != nil {
		e.startedEvent, e.startedIndex = n, e.next
	}
	return e.appendLocked(n, event)
}

// addText appends a piece of text that starts at this byte offset of its message.
func (e *eventLog) addText(text string, offset int32) (index int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.appendLocked(encodedEvent{data: text, offset: offset, kind: textEvent}, nil)
}

// addKeepAlive appends an empty progress event, which shows readers that the turn continues.
func (e *eventLog) addKeepAlive() (index int32) {
	event := &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}}}
	n := encodeEvent(event)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.next == e.reservedIndex {
		// Skip the reserved index: a reader that resumes after it would miss the finished event.
		e.appendLocked(encodedEvent{}, nil)
	}
	return e.appendLocked(n, event)
}

// reserveFinished returns the index of the finished event for the store. If a keep-alive is added
// afterwards, the finished event gets a later index and the reserved index stays unused.
func (e *eventLog) reserveFinished() (finished int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reservedIndex = e.next
	return e.reservedIndex
}

// releaseReserved releases the reserved index, since the store has not stored the answer.
func (e *eventLog) releaseReserved() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reservedIndex = 0
}

// appendLocked appends an encoded event and sends it to the sink. The caller holds mu. See
// addEncoded.
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

// size returns the size in bytes that counts toward maxEventBytes.
func (n encodedEvent) size() int {
	if n.kind == finishedEvent {
		return 0
	}
	return len(n.data) + eventOverheadBytes
}

// decode returns the event as a new message for one reader.
func (n encodedEvent) decode(turnID string, index int32) *parleyv1.TurnEvent {
	event := new(parleyv1.TurnEvent)
	if n.kind == textEvent {
		event.Event = &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: n.data, Offset: n.offset}}
	} else {
		_ = proto.Unmarshal([]byte(n.data), event) // cannot fail: encodeEvent encoded it
	}
	event.TurnId, event.Index = turnID, index
	return event
}

// end ends the log. Readers receive the remaining events and then err, which is nil after a
// finished event.
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

// started returns the started event, nil if there is none.
func (e *eventLog) started() *parleyv1.TurnEvent {
	e.mu.Lock()
	started, index := e.startedEvent, e.startedIndex
	e.mu.Unlock()
	if index == 0 {
		return nil
	}
	return started.decode(e.turnID, index)
}

// finished returns the finished event, nil if there is none.
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

// lastIndex returns the index of the newest event, 0 if there is none.
func (e *eventLog) lastIndex() int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.next - 1
}

// lastBeforeFinished returns the index of the newest event that is not a finished event.
func (e *eventLog) lastBeforeFinished() int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.retained); n > 0 && e.retained[n-1].kind == finishedEvent {
		return e.next - 2
	}
	return e.next - 1
}

// memory returns the approximate memory of the events in bytes.
func (e *eventLog) memory() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	total := e.bytes
	if e.startedIndex > 0 && e.startedIndex < e.next-int32(len(e.retained)) {
		total += len(e.startedEvent.data)
	}
	return total
}

// after returns retained events after an index, at most readBatch. If there are none, it returns a
// channel that is closed when there are. At the end of the log it returns neither.
func (e *eventLog) after(index int32) (batch []encodedEvent, more <-chan struct{}, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	oldest := e.next - int32(len(e.retained))
	newer := int(e.next - 1 - index)
	switch {
	case index+1 < oldest, newer < 0:
		return nil, nil, &EventsGoneError{After: index, Oldest: oldest, Last: e.next - 1}
	case newer > 0:
		batch = e.retained[len(e.retained)-newer:]
		return slices.Clone(batch[:min(newer, readBatch)]), nil, nil
	case e.done:
		return nil, nil, e.err
	}
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return nil, e.changed, nil
}

// read yields the events after an index until the log ends or ctx ends.
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
