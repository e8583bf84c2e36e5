package agent

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// ProgressInterval is the interval at which an answer without new output sends a Progress piece, so
// that the turn does not treat its agent as hung.
const ProgressInterval = 10 * time.Second

// Limit returns an agent that answers like a, but at most n requests at the same time. Further
// requests wait in the order of their arrival. A request that waits yields a Progress piece at once
// and every 10 s. If n is less than 1, Limit returns a.
func Limit(a Agent, n int) Agent {
	if n < 1 {
		return a
	}
	return &limited{Agent: a, slots: NewSlots(n)}
}

type limited struct {
	Agent
	slots *Slots
}

// Respond acquires a slot, answers and releases the slot.
func (l *limited) Respond(
	ctx context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		if !l.slots.Acquire(ctx, yield) {
			return
		}
		defer l.slots.Release()
		l.Agent.Respond(ctx, request)(yield)
	}
}

// Slots limits the number of concurrent answers. Use [NewSlots] to create it; the zero value has no
// slots. It is safe for concurrent use.
type Slots struct {
	n int

	mu    sync.Mutex
	taken int
	queue []chan struct{} // Waiters, oldest first. A channel is closed when its waiter has a slot.
}

// NewSlots returns n free slots. n is at least 1.
func NewSlots(n int) *Slots { return &Slots{n: n} }

// Acquire waits for a slot and yields Progress pieces as [Limit] describes. It returns false if the
// request must not be answered: ctx has ended and its cause was yielded, or the consumer has
// stopped. If it returns true, the caller must call Release.
func (s *Slots) Acquire(ctx context.Context, yield func(*parleyv1.RespondResponse, error) bool) (ok bool) {
	granted := s.enqueue()
	defer func() {
		if !ok { // Also after a panic in yield.
			s.abandon(granted)
		}
	}()
	select {
	case <-granted:
		return true
	default:
	}
	text := fmt.Sprintf("Waiting: the agent has reached its limit of concurrent answers (%d).", s.n)
	ticker := time.NewTicker(ProgressInterval)
	defer ticker.Stop()
	for yield(progress(text), nil) {
		select {
		case <-granted:
			return true
		case <-ctx.Done():
			yield(nil, context.Cause(ctx))
			return false
		case <-ticker.C:
		}
	}
	return false
}

// Release releases a slot. The oldest waiter gets it, if there is one.
func (s *Slots) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.taken--
		return
	}
	close(s.queue[0])
	s.queue = slices.Delete(s.queue, 0, 1)
}

// enqueue acquires a free slot or joins the queue. The channel is closed when the caller has a
// slot.
func (s *Slots) enqueue() (granted chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	granted = make(chan struct{})
	if s.taken < s.n {
		s.taken++
		close(granted)
	} else {
		s.queue = append(s.queue, granted)
	}
	return granted
}

// abandon leaves the queue. If a slot has been granted in the meantime, abandon releases it.
func (s *Slots) abandon(granted chan struct{}) {
	s.mu.Lock()
	i := slices.Index(s.queue, granted)
	if i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		s.Release()
	}
}

func progress(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{
		Piece: &parleyv1.RespondResponse_Progress{Progress: &parleyv1.TurnProgress{Text: text}},
	}
}
