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

// ReassureEvery is how often an answer that has nothing to show for itself says that it
// is under way all the same, so that the turn does not take its agent for stuck.
const ReassureEvery = 10 * time.Second

// Limit returns an agent that answers as a does, n requests at once. A further one waits
// for its turn, first come, first served; it says so in a Progress piece at once and
// every 10 s. Below 1 there is no limit.
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

// Respond answers when it has a slot, which it gives back when the answer has ended.
func (l *limited) Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		if !l.slots.Take(ctx, yield) {
			return
		}
		defer l.slots.Free()
		l.Agent.Respond(ctx, request)(yield)
	}
}

// Slots bound how many answers are under way at once. Make them by [NewSlots]; the zero
// value has none. Many goroutines may use them.
type Slots struct {
	n int

	mu    sync.Mutex
	taken int
	queue []chan struct{} // of those who wait, the first come first; closed with the slot given
}

// NewSlots makes n slots; n is 1 or more.
func NewSlots(n int) *Slots { return &Slots{n: n} }

// Take waits for a slot, and tells the consumer of the answer so, as [Limit] describes. It
// returns false when there is to be no answer: ctx has ended, and its cause was yielded,
// or the consumer has stopped. Otherwise the caller must Free the slot.
func (s *Slots) Take(ctx context.Context, yield func(*parleyv1.RespondResponse, error) bool) (got bool) {
	given := s.enter()
	defer func() {
		if !got { // by a panic in yield too
			s.leave(given)
		}
	}()
	select {
	case <-given:
		return true
	default:
	}
	note := fmt.Sprintf("Waiting: the agent is busy with as many answers as it may give at once (%d).", s.n)
	again := time.NewTicker(ReassureEvery)
	defer again.Stop()
	for yield(progress(note), nil) {
		select {
		case <-given:
			return true
		case <-ctx.Done():
			yield(nil, context.Cause(ctx))
			return false
		case <-again.C:
		}
	}
	return false
}

// Free gives a slot back, to the one that has waited longest if any does.
func (s *Slots) Free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		s.taken--
		return
	}
	close(s.queue[0])
	s.queue = slices.Delete(s.queue, 0, 1)
}

// enter joins the queue, or takes a slot at once: the channel is closed with the slot
// given.
func (s *Slots) enter() (given chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	given = make(chan struct{})
	if s.taken < s.n {
		s.taken++
		close(given)
	} else {
		s.queue = append(s.queue, given)
	}
	return given
}

// leave gives up a place in the queue, or the slot that it has just led to.
func (s *Slots) leave(given chan struct{}) {
	s.mu.Lock()
	i := slices.Index(s.queue, given)
	if i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		s.Free()
	}
}

func progress(note string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Progress{Progress: &parleyv1.TurnProgress{Text: note}}}
}
