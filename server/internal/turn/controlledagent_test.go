package turn

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

// controlledAgent is an agent whose steps the test controls. Tests that use it run in a synctest
// bubble: each step returns when all its effects have happened.
type controlledAgent struct {
	testEnded chan struct{} // closed at the end of the test; agents then stop even with ignoreCancel

	mu   sync.Mutex
	runs []*agentRun // in the order of their starts
}

// agentRun is one call of a controlledAgent.
type agentRun struct {
	request *parleyv1.RespondRequest
	steps   chan step
	ended   chan struct{}
}

// step is the next step of a run: it sends pieces, and then continues, completes or fails.
type step struct {
	pieces []*parleyv1.RespondResponse
	end    bool
	err    error
}

// newControlled returns a manager whose default agent is a controlledAgent.
func newControlled(t *testing.T, change func(*Options)) (*fixture, *controlledAgent) {
	t.Helper()
	p := &controlledAgent{testEnded: make(chan struct{})}
	f := newFixture(t, map[string]agent.Agent{"main": p}, change)
	t.Cleanup(func() { close(p.testEnded) })
	return f, p
}

func (p *controlledAgent) Respond(
	ctx context.Context, r *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		run := &agentRun{request: r, steps: make(chan step), ended: make(chan struct{})}
		defer close(run.ended)
		released, done := p.testEnded, ctx.Done()
		if stubborn := r.GetMessages()[len(r.GetMessages())-1].GetMetadata()["stubborn"]; stubborn != "" {
			done = nil // Do not stop until the test says so.
		}
		p.mu.Lock()
		p.runs = append(p.runs, run)
		p.mu.Unlock()
		for {
			select {
			case s := <-run.steps:
				for _, piece := range s.pieces {
					if !yield(piece, nil) {
						return
					}
				}
				if s.err != nil {
					yield(nil, s.err)
				}
				if s.end || s.err != nil {
					return
				}
			case <-released:
				released, done = nil, ctx.Done()
			case <-done:
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

func (*controlledAgent) Close() error { return nil }

// lastRun returns the newest run.
func (p *controlledAgent) lastRun() *agentRun {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.runs) == 0 {
		return nil
	}
	return p.runs[len(p.runs)-1]
}

// allRuns yields every run, including those that start during the iteration.
func (p *controlledAgent) allRuns() iter.Seq[*agentRun] {
	return func(yield func(*agentRun) bool) {
		for i := range maxRunningTotal {
			if i == p.runCount() || !yield(p.runs[i]) {
				return
			}
		}
	}
}

// runCount returns the number of runs.
func (p *controlledAgent) runCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.runs)
}

// do makes the run take a step. It reports whether the run had not ended.
func (r *agentRun) do(s step) bool {
	defer synctest.Wait()
	select {
	case r.steps <- s:
		return true
	case <-r.ended:
		return false
	}
}

// sendText makes the run send texts, each as a piece.
func (r *agentRun) sendText(texts ...string) {
	var s step
	for _, content := range texts {
		s.pieces = append(s.pieces, text(content))
	}
	r.do(s)
}

// complete makes the run complete.
func (r *agentRun) complete() bool { return r.do(step{end: true}) }

// fail makes the run fail.
func (r *agentRun) fail() { r.do(step{err: &agent.Error{Message: "out of order"}}) }

// ignoreCancel is the metadata of a request whose agent ignores cancellation.
var ignoreCancel = map[string]string{"stubborn": "yes"}

// reader reads a turn in its own goroutine.
type reader struct {
	cancel context.CancelFunc
	events []*parleyv1.TurnEvent
	err    error
	ended  bool
}

// startReading starts a reader and returns when it waits for the next event.
func startReading(ctx context.Context, open func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error]) *reader {
	r := new(reader)
	ctx, r.cancel = context.WithCancel(ctx)
	go func() {
		for event, err := range open(ctx) {
			if err != nil {
				r.err = err
				break
			}
			r.events = append(r.events, event)
		}
		r.ended = true
	}()
	synctest.Wait()
	return r
}

// disconnect cancels the stream.
func (r *reader) disconnect() {
	r.cancel()
	synctest.Wait()
}

// startChat starts a Chat and a reader of its events. A request without request_id cannot be
// repeated.
func (f *fixture) startChat(t *testing.T, request *parleyv1.ChatRequest) *reader {
	t.Helper()
	return startReading(t.Context(), func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] {
		return f.Chat(ctx, tenant, request, storeRequest(request))
	})
}

// mustCancel cancels a turn of conversation c and returns it.
func (f *fixture) mustCancel(t *testing.T, turnID string) *parleyv1.Turn {
	t.Helper()
	turn, err := f.Cancel(t.Context(), tenant, "c", turnID)
	if err != nil {
		t.Errorf("Cancel: %v", err)
	}
	synctest.Wait()
	return turn
}

// startResume starts a reader of a turn of conversation c after an index.
func (f *fixture) startResume(t *testing.T, turnID string, after int32) *reader {
	t.Helper()
	return startReading(t.Context(), func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] {
		return f.Resume(ctx, tenant, "c", turnID, after)
	})
}

// storeRequest returns the identification of a request as package rpc makes it, as far as it
// depends on the content.
func storeRequest(r *parleyv1.ChatRequest) *store.Request {
	if r.GetRequestId() == "" {
		return nil
	}
	q := &store.Request{ID: r.GetRequestId(), Method: "Chat"}
	copy(q.Digest[:], requestText(r))
	return q
}

// requestText returns what two requests with the same request_id must have in common.
func requestText(r *parleyv1.ChatRequest) string {
	content := r.GetContent()
	for _, result := range r.GetToolResults() {
		content += " " + result.GetCallId()
	}
	return content
}

// turnID returns the id of the turn, empty before the first event.
func (r *reader) turnID() string {
	if len(r.events) == 0 {
		return ""
	}
	return r.events[0].GetTurnId()
}

// finished returns the turn as it ended, nil if it has not ended.
func (r *reader) finished() *parleyv1.Turn {
	if len(r.events) == 0 {
		return nil
	}
	return r.events[len(r.events)-1].GetFinished().GetTurn()
}

// received describes the received events with their indexes.
func (r *reader) received() []string { return describeAll(r.events) }

func describeAll(events []*parleyv1.TurnEvent) []string {
	var described []string
	for _, e := range events {
		described = append(described, fmt.Sprintf("%d %s", e.GetIndex(), describe(e)))
	}
	return described
}

func describe(e *parleyv1.TurnEvent) string {
	switch s := e.GetEvent().(type) {
	case *parleyv1.TurnEvent_Queued:
		return fmt.Sprintf("queued %d", s.Queued.GetPosition())
	case *parleyv1.TurnEvent_Started:
		description := fmt.Sprintf("started %q", s.Started.GetUserMessage().GetContent())
		if s.Started.GetCreated() {
			description += " created"
		}
		if s.Started.GetReplayed() {
			description += " replayed"
		}
		return description
	case *parleyv1.TurnEvent_TextDelta:
		return fmt.Sprintf("text %q at %d", s.TextDelta.GetText(), s.TextDelta.GetOffset())
	case *parleyv1.TurnEvent_ToolCall:
		return fmt.Sprintf("call %q", s.ToolCall.GetId())
	case *parleyv1.TurnEvent_Progress:
		return fmt.Sprintf("progress %q", s.Progress.GetText())
	case *parleyv1.TurnEvent_Finished:
		return "finished " + stateName(s.Finished.GetTurn().GetState())
	default:
		return fmt.Sprint(s)
	}
}

func stateName(s parleyv1.TurnState) string { return strings.TrimPrefix(s.String(), "TURN_STATE_") }
