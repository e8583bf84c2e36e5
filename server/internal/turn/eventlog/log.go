// Package eventlog retains the events of one turn for its readers.
//
// A [Log] retains the newest events in encoded form, so that the counted memory is the real memory.
// The turn appends events; any number of readers follow them from an index. Readers never slow down
// the turn. A reader is late if several events wait for it. It receives adjacent deltas of one kind as one
// event. A [Sink] receives each event when it is appended.
//
// Start at [Log].
package eventlog

import (
	"context"
	"iter"
	"sync"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Limits of a log. When a limit is reached, the oldest events are dropped, and a reader that needs
// them receives a GoneError. A finished event does not count, since its messages are those of the
// answer.
const (
	// MaxEvents is the maximum number of retained events.
	MaxEvents = 16_384
	// MaxBytes is the maximum size of the retained events.
	MaxBytes = 2 << 20
)

// readBatch is the maximum number of events that a reader copies under the lock.
const readBatch = 256

// maxMergedBytes is the maximum size of a delta that is merged from several, in bytes. The proto names it.
const maxMergedBytes = 4 << 10

// Log is the list of events of a turn. It is safe for concurrent use.
type Log struct {
	turnID, tenant, conversationID string

	sink Sink // nil if there is no sink

	mu           sync.Mutex
	retained     []Encoded
	bytes        int
	startedEvent Encoded // retained even if it was dropped from the list
	startedIndex int32   // 0 before the started event
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

// New returns an empty log of a turn. sink may be nil.
func New(turnID, tenant, conversationID string, sink Sink) *Log {
	return &Log{turnID: turnID, tenant: tenant, conversationID: conversationID, sink: sink, next: 1}
}

// Add appends an event and wakes the readers. It sets the event's turn id and index. The event must
// be valid UTF-8.
func (l *Log) Add(event *parleyv1.TurnEvent) (index int32) {
	return l.AddEncoded(Encode(event), event) // Encode before locking, since it may take milliseconds.
}

// AddEncoded appends an encoded event. event is the same event in decoded form; if nil, AddEncoded
// decodes it when a sink needs it.
func (l *Log) AddEncoded(n Encoded, event *parleyv1.TurnEvent) (index int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if event.GetStarted() != nil {
		l.startedEvent, l.startedIndex = n, l.next
	}
	return l.appendLocked(n, event)
}

// AddText appends a piece of text that starts at this byte offset of its message.
func (l *Log) AddText(text string, offset int32) (index int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(Encoded{data: text, offset: offset, kind: textEvent}, nil)
}

// AddReasoning appends a piece of reasoning that starts at this byte offset of the reasoning of its message.
func (l *Log) AddReasoning(text string, offset int32) (index int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(Encoded{data: text, offset: offset, kind: reasoningEvent}, nil)
}

// AddArguments appends a piece of the arguments of a call that starts at this byte offset of them. All
// pieces of a call must have the same pointer, so that they are merged.
func (l *Log) AddArguments(call *Call, arguments string, offset int32) (index int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(Encoded{data: arguments, offset: offset, kind: argumentsEvent, call: call}, nil)
}

// AddKeepAlive appends an empty progress event, which shows readers that the turn continues.
func (l *Log) AddKeepAlive() (index int32) {
	event := &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}}}
	n := Encode(event)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == l.reservedIndex {
		// Skip the reserved index: a reader that resumes after it would miss the finished event.
		l.appendLocked(Encoded{}, nil)
	}
	return l.appendLocked(n, event)
}

// ReserveFinished returns the index of the finished event for the store. If a keep-alive is added
// afterwards, the finished event gets a later index and the reserved index stays unused.
func (l *Log) ReserveFinished() (finished int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reservedIndex = l.next
	return l.reservedIndex
}

// ReleaseReserved releases the reserved index, since the store has not stored the answer.
func (l *Log) ReleaseReserved() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reservedIndex = 0
}

// appendLocked appends an encoded event and sends it to the sink. The caller holds mu. See
// AddEncoded.
func (l *Log) appendLocked(n Encoded, event *parleyv1.TurnEvent) (index int32) {
	index = l.next
	l.next++
	l.retained = append(l.retained, n)
	l.bytes += n.size()
	for len(l.retained) > MaxEvents || l.bytes > MaxBytes && len(l.retained) > 1 {
		l.bytes -= l.retained[0].size()
		l.retained[0] = Encoded{}
		l.retained = l.retained[1:]
	}
	l.wakeReaders()
	if n.kind != noEvent && l.sink != nil && l.sink.HasSubscribers() {
		if event == nil {
			event = n.decode(l.turnID, index)
		}
		event.TurnId, event.Index = l.turnID, index
		l.sink.TurnEvent(l.tenant, l.conversationID, event)
	}
	return index
}

// End ends the log. Readers receive the remaining events and then err, which is nil after a
// finished event.
func (l *Log) End(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done, l.err = true, err
	l.wakeReaders()
}

func (l *Log) wakeReaders() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Started returns the started event, nil if there is none.
func (l *Log) Started() *parleyv1.TurnEvent {
	l.mu.Lock()
	started, index := l.startedEvent, l.startedIndex
	l.mu.Unlock()
	if index == 0 {
		return nil
	}
	return started.decode(l.turnID, index)
}

// Finished returns the finished event, nil if there is none.
func (l *Log) Finished() *parleyv1.TurnEvent {
	l.mu.Lock()
	var end Encoded
	if n := len(l.retained); n > 0 {
		end = l.retained[n-1]
	}
	index := l.next - 1
	l.mu.Unlock()
	if end.kind != finishedEvent {
		return nil
	}
	return end.decode(l.turnID, index)
}

// LastIndex returns the index of the newest event, 0 if there is none.
func (l *Log) LastIndex() int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next - 1
}

// LastBeforeFinished returns the index of the newest event that is not a finished event.
func (l *Log) LastBeforeFinished() int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.retained); n > 0 && l.retained[n-1].kind == finishedEvent {
		return l.next - 2
	}
	return l.next - 1
}

// Memory returns the approximate memory of the events in bytes.
func (l *Log) Memory() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	total := l.bytes
	if l.startedIndex > 0 && l.startedIndex < l.next-int32(len(l.retained)) {
		total += len(l.startedEvent.data)
	}
	return total
}

// after appends retained events after an index to batch, at most readBatch. If there are none, it returns
// a channel that is closed when there are. At the end of the log it returns neither.
func (l *Log) after(index int32, batch []Encoded) (_ []Encoded, more <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest := l.next - int32(len(l.retained))
	newer := int(l.next - 1 - index)
	switch {
	case index+1 < oldest, newer < 0:
		return nil, nil, &GoneError{After: index, Oldest: oldest, Last: l.next - 1}
	case newer > 0:
		first := len(l.retained) - newer
		return append(batch, l.retained[first:first+min(newer, readBatch)]...), nil, nil
	case l.done:
		return nil, nil, l.err
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return nil, l.changed, nil
}

// Read yields the events after an index until the log ends or ctx ends. If several events wait when the
// reader asks for the next one, Read yields deltas of one kind that follow one another as one event of at
// most maxMergedBytes, with the index of the last of them. A reader that keeps up receives each delta at once.
func (l *Log) Read(ctx context.Context, index int32) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		var buffer [8]Encoded // More than a reader that keeps up needs.
		for {
			batch, more, err := l.after(index, buffer[:0])
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
			for len(batch) > 0 {
				n, count := merge(batch)
				batch, index = batch[count:], index+int32(count)
				if n.kind != noEvent && !yield(n.decode(l.turnID, index), nil) {
					return
				}
			}
			clear(buffer[:]) // The reader must not retain events while it waits.
		}
	}
}
