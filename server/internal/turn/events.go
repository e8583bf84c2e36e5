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
	entryBytes = 40
)

// readBatch is how many events a reader takes at a time.
const readBatch = 256

// events is what happened in a turn so far. Any number of goroutines read.
type events struct {
	turnID   string
	of       key
	audience Audience // nil: none

	mu      sync.Mutex
	kept    []entry
	bytes   int
	begun   entry // the started event, always retained
	begunAt int32 // its index, 0 before it
	// next is the index that the next event gets, from 1.
	next int32
	// promised is the index of the finished event that the store was given; 0 if it was given none.
	promised int32
	// more is closed when there is more to read, or the end is reached; nil when nobody waits
	// for that.
	more chan struct{}
	done bool
	// err is why the readers' streams end; nil after a finished event.
	err error
}

// entry is a retained event in encoded form, from which each reader decodes a message. A turn has
// thousands of texts, and a value may be a tree of 100,000 objects. In this form an event is one
// object for the garbage collector, and its counted size is the size that it takes.
type entry struct {
	data   string // a text, or an encoded TurnEvent without its turn and index
	offset int32  // offset of a text in its message
	kind   entryKind
}

type entryKind uint8

const (
	noEntry entryKind = iota // no event has this index
	textEntry
	eventEntry
	finishedEntry
)

// newEntry encodes an event. It returns the zero entry if a string in the event is not UTF-8.
func newEntry(event *parleyv1.TurnEvent) entry {
	data, err := proto.Marshal(event)
	switch {
	case err != nil:
		return entry{}
	case event.GetFinished() != nil:
		return entry{data: string(data), kind: finishedEntry}
	}
	return entry{data: string(data), kind: eventEntry}
}

func newEvents(turnID string, of key, audience Audience) *events {
	return &events{turnID: turnID, of: of, audience: audience, next: 1}
}

// add appends an event that can be encoded, sets its turn and its index, and wakes the readers.
func (e *events) add(event *parleyv1.TurnEvent) (index int32) {
	return e.addEntry(newEntry(event), event) // Encode before the lock: this may take milliseconds.
}

// addEntry appends an encoded event. event is the same event decoded; if nil, addEntry decodes it
// if needed.
func (e *events) addEntry(n entry, event *parleyv1.TurnEvent) (index int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if event.GetStarted() != nil {
		e.begun, e.begunAt = n, e.next
	}
	return e.keep(n, event)
}

// addText adds a piece of text, which begins at that byte of its message.
func (e *events) addText(text string, offset int32) (index int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.keep(entry{data: text, offset: offset, kind: textEntry}, nil)
}

// addSign appends an empty progress event, which shows readers that the turn continues.
func (e *events) addSign() (index int32) {
	sign := &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}}}
	n := newEntry(sign)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.next == e.promised {
		e.keep(entry{}, nil) // Skip the promised index: a reader that resumes after it would miss the end.
	}
	return e.keep(n, sign)
}

// promise returns the index of the finished event for the store. If readers are sent a sign after
// that, the finished event has a later index, and no event has this one.
func (e *events) promise() (finished int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.promised = e.next
	return e.promised
}

// retract withdraws the promised index, since the store has not stored the answer.
func (e *events) retract() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.promised = 0
}

// keep appends an entry; see addEntry.
func (e *events) keep(n entry, event *parleyv1.TurnEvent) (index int32) {
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
	if n.kind != noEntry && e.audience != nil && e.audience.Listening() {
		if event == nil {
			event = n.message(e.turnID, index)
		}
		event.TurnId, event.Index = e.turnID, index
		e.audience.TurnEvent(e.of.tenant, e.of.id, event)
	}
	return index
}

// size is what counts as the bytes of the event.
func (n entry) size() int {
	if n.kind == finishedEntry {
		return 0
	}
	return len(n.data) + entryBytes
}

// message decodes the event into a new message for one reader.
func (n entry) message(turnID string, index int32) *parleyv1.TurnEvent {
	event := new(parleyv1.TurnEvent)
	if n.kind == textEntry {
		event.Event = &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: n.data, Offset: n.offset}}
	} else {
		_ = proto.Unmarshal([]byte(n.data), event) // cannot fail: newEntry encoded it
	}
	event.TurnId, event.Index = turnID, index
	return event
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

// started returns the started event; nil if there was none.
func (e *events) started() *parleyv1.TurnEvent {
	e.mu.Lock()
	begun, index := e.begun, e.begunAt
	e.mu.Unlock()
	if index == 0 {
		return nil
	}
	return begun.message(e.turnID, index)
}

// finished returns the finished event; nil if there was none.
func (e *events) finished() *parleyv1.TurnEvent {
	e.mu.Lock()
	var end entry
	if n := len(e.kept); n > 0 {
		end = e.kept[n-1]
	}
	index := e.next - 1
	e.mu.Unlock()
	if end.kind != finishedEntry {
		return nil
	}
	return end.message(e.turnID, index)
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
	if n := len(e.kept); n > 0 && e.kept[n-1].kind == finishedEntry {
		return e.next - 2
	}
	return e.next - 1
}

// memory returns about how many bytes the events take.
func (e *events) memory() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	total := e.bytes
	if e.begunAt > 0 && e.begunAt < e.next-int32(len(e.kept)) {
		total += len(e.begun.data)
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

// read yields the events after an index until the turn ends, an error occurs or ctx ends.
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
				if n.kind != noEntry && !yield(n.message(e.turnID, index), nil) {
					return
				}
			}
		}
	}
}
