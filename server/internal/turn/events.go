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
// behind them gets an EventsGoneError, the turn is not slowed down.
const (
	maxEvents     = 16_384
	maxEventBytes = 2 << 20
)

// readBatch is how many events a reader takes at a time.
const readBatch = 256

// events is what happened in a turn so far. One goroutine adds, any number read.
type events struct {
	mu    sync.Mutex
	kept  []*parleyv1.TurnEvent
	bytes int
	// next is the index that the next event gets, from 1.
	next int32
	// more is closed when there is more to read, or the end is reached.
	more chan struct{}
	done bool
	// err is why the readers' streams end; nil after a finished event.
	err error
}

func newEvents() *events {
	return &events{next: 1, more: make(chan struct{})}
}

// add gives the event its index and wakes the readers.
func (e *events) add(event *parleyv1.TurnEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	event.Index = e.next
	e.next++
	e.kept = append(e.kept, event)
	e.bytes += proto.Size(event)
	for len(e.kept) > maxEvents || e.bytes > maxEventBytes && len(e.kept) > 1 {
		e.bytes -= proto.Size(e.kept[0])
		e.kept[0] = nil
		e.kept = e.kept[1:]
	}
	e.wake()
}

// end lets readers go once they have read everything; err is nil after a finished event.
func (e *events) end(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.done, e.err = true, err
	e.wake()
}

func (e *events) wake() {
	close(e.more)
	e.more = make(chan struct{})
}

// after returns the kept events behind an index. When there are none it returns a channel
// that is closed when there are, nil at the end.
func (e *events) after(index int32) (batch []*parleyv1.TurnEvent, more <-chan struct{}, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	oldest := e.next - int32(len(e.kept))
	if index+1 < oldest {
		return nil, nil, &EventsGoneError{Oldest: oldest}
	}
	if behind := int(e.next - 1 - index); behind > 0 {
		batch = e.kept[len(e.kept)-behind:]
		return slices.Clone(batch[:min(behind, readBatch)]), nil, nil
	}
	if e.done {
		return nil, nil, e.err
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
			for _, event := range batch {
				if !yield(event, nil) {
					return
				}
				index = event.GetIndex()
			}
		}
	}
}
