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

// puppet is an agent whose every step the test decides. Tests that use it run in a bubble
// of synctest: what they do has had all its effects before they go on.
type controlledAgent struct {
	testEnded chan struct{} // closed at the test's end: nobody is stubborn any more

	mu   sync.Mutex
	runs []*agentRun // in the order in which they began
}

// run is one answer of a puppet.
type agentRun struct {
	request *parleyv1.RespondRequest
	steps   chan step
	ended   chan struct{}
}

// step is what a puppet does next: it says pieces, then goes on, ends well or fails.
type step struct {
	pieces []*parleyv1.RespondResponse
	end    bool
	err    error
}

// newPuppet makes a manager whose default agent is a puppet.
func newControlled(t *testing.T, change func(*Options)) (*fixture, *controlledAgent) {
	t.Helper()
	p := &controlledAgent{testEnded: make(chan struct{})}
	f := newFixture(t, map[string]agent.Agent{"main": p}, change)
	t.Cleanup(func() { close(p.testEnded) })
	return f, p
}

func (p *controlledAgent) Respond(ctx context.Context, r *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		one := &agentRun{request: r, steps: make(chan step), ended: make(chan struct{})}
		defer close(one.ended)
		released, done := p.testEnded, ctx.Done()
		if stubborn := r.GetMessages()[len(r.GetMessages())-1].GetMetadata()["stubborn"]; stubborn != "" {
			done = nil // Not until it is told.
		}
		p.mu.Lock()
		p.runs = append(p.runs, one)
		p.mu.Unlock()
		for {
			select {
			case s := <-one.steps:
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

// last is the newest run.
func (p *controlledAgent) lastRun() *agentRun {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.runs) == 0 {
		return nil
	}
	return p.runs[len(p.runs)-1]
}

// all yields every run, those that begin meanwhile included.
func (p *controlledAgent) allRuns() iter.Seq[*agentRun] {
	return func(yield func(*agentRun) bool) {
		for i := range maxRunningTotal {
			if i == p.runCount() || !yield(p.runs[i]) {
				return
			}
		}
	}
}

// count is how many runs there were.
func (p *controlledAgent) runCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.runs)
}

// do has the run take a step; it reports whether the run had not ended.
func (r *agentRun) do(s step) bool {
	defer synctest.Wait()
	select {
	case r.steps <- s:
		return true
	case <-r.ended:
		return false
	}
}

// say has the run say words, each a piece.
func (r *agentRun) sendText(words ...string) {
	var s step
	for _, word := range words {
		s.pieces = append(s.pieces, text(word))
	}
	r.do(s)
}

// end has the run end well.
func (r *agentRun) complete() bool { return r.do(step{end: true}) }

// fail has the run fail.
func (r *agentRun) fail() { r.do(step{err: &agent.Error{Message: "out of order"}}) }

// stubborn marks a request whose agent does not heed that it is cut off.
var ignoreCancel = map[string]string{"stubborn": "yes"}

// reader reads a turn in a goroutine of its own.
type reader struct {
	cancel context.CancelFunc
	events []*parleyv1.TurnEvent
	err    error
	ended  bool
}

// read begins to read and returns when nothing more comes for now.
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

// leave breaks the stream.
func (r *reader) disconnect() {
	r.cancel()
	synctest.Wait()
}

// begin begins to read a turn of Chat; a request without a request_id has none to find
// again.
func (f *fixture) startChat(t *testing.T, request *parleyv1.ChatRequest) *reader {
	t.Helper()
	return startReading(t.Context(), func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] {
		return f.Chat(ctx, tenant, request, storeRequest(request))
	})
}

// cancelled is a turn of conversation c that is cancelled.
func (f *fixture) mustCancel(t *testing.T, turnID string) *parleyv1.Turn {
	t.Helper()
	turn, err := f.Cancel(t.Context(), tenant, "c", turnID)
	if err != nil {
		t.Errorf("cancel: %v", err)
	}
	synctest.Wait()
	return turn
}

// resume begins to read a turn of conversation c from an index on.
func (f *fixture) startResume(t *testing.T, turnID string, after int32) *reader {
	t.Helper()
	return startReading(t.Context(), func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] {
		return f.Resume(ctx, tenant, "c", turnID, after)
	})
}

// requestOf is how rpc tells a retry, as far as it depends on the content.
func storeRequest(r *parleyv1.ChatRequest) *store.Request {
	if r.GetRequestId() == "" {
		return nil
	}
	q := &store.Request{ID: r.GetRequestId(), Method: "Chat"}
	copy(q.Digest[:], requestText(r))
	return q
}

// saysOf is what two requests with one request_id must have in common.
func requestText(r *parleyv1.ChatRequest) string {
	said := r.GetContent()
	for _, result := range r.GetToolResults() {
		said += " " + result.GetCallId()
	}
	return said
}

// turnID is that of the turn that is read; empty when nothing has come of it.
func (r *reader) turnID() string {
	if len(r.events) == 0 {
		return ""
	}
	return r.events[0].GetTurnId()
}

// finished is the turn as it ended, nil when it has not.
func (r *reader) finished() *parleyv1.Turn {
	if len(r.events) == 0 {
		return nil
	}
	return r.events[len(r.events)-1].GetFinished().GetTurn()
}

// seen describes the events that were read, with their indexes.
func (r *reader) received() []string { return describeAll(r.events) }

func describeAll(events []*parleyv1.TurnEvent) []string {
	var lines []string
	for _, e := range events {
		lines = append(lines, fmt.Sprintf("%d %s", e.GetIndex(), describe(e)))
	}
	return lines
}

func describe(e *parleyv1.TurnEvent) string {
	switch s := e.GetEvent().(type) {
	case *parleyv1.TurnEvent_Queued:
		return fmt.Sprintf("queued %d", s.Queued.GetPosition())
	case *parleyv1.TurnEvent_Started:
		line := fmt.Sprintf("started %q", s.Started.GetUserMessage().GetContent())
		if s.Started.GetCreated() {
			line += " created"
		}
		if s.Started.GetReplayed() {
			line += " replayed"
		}
		return line
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
