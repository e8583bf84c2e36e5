package turn

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestCallsChangeBeforeStart: between the read of the calls and the start of the turn, other
// messages may be appended.
func TestCallsChangeBeforeStart(t *testing.T) {
	result := &parleyv1.Message{
		Role:       parleyv1.Role_ROLE_TOOL,
		ToolResult: &parleyv1.ToolResult{CallId: "1", Content: "another"},
	}
	userMessage := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "hello"}
	tests := []struct {
		name      string
		appended  *parleyv1.Message
		ifVersion *int32
		given     []string // nil if the request is refused
		version   bool     // because of if_version
	}{
		{"a result of the call", result, nil, nil, false},
		{
			"a call of that id", callMessage("1 again"), nil,
			[]string{"user: q", "assistant: ", "assistant: I call", "tool: of 1"},
			false,
		},
		{"text", userMessage, nil, []string{"user: q", "assistant: ", "user: hello", "tool: of 1"}, false},
		{"text, with if_version", userMessage, new(int32(2)), nil, true},
		{"nothing, with if_version", nil, new(int32(2)), []string{"user: q", "assistant: ", "tool: of 1"}, false},
		{"nothing, with another if_version", nil, new(int32(1)), nil, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h *hookStore
				f, p := newControlled(t, func(o *Options) {
					h = &hookStore{Store: o.Store}
					o.Store = h
				})
				addHistory(t, f, p, "calls:1") // The conversation is at version 2.
				runsBefore := p.runCount()
				h.begin = func(*store.Append) {
					h.begin = nil
					if test.appended != nil {
						f.append(t, test.appended)
					}
				}
				request := resultsRequest("", "1")
				request.IfVersion = test.ifVersion
				r := f.startChat(t, request)
				switch {
				case test.given != nil:
					given := p.lastRun().request.GetMessages()
					if diff := cmp.Diff(test.given, describeMessages(given)); diff != "" || r.err != nil {
						t.Errorf("Chat: error %v; messages to the agent (-want +got):\n%s", r.err, diff)
					}
					if name := given[len(given)-1].GetToolResult().GetName(); test.appended.GetToolCalls() != nil && name != "again" {
						t.Errorf("name of the result = %q, want again", name)
					}
				case errors.As(r.err, new(*store.VersionError)) != test.version,
					errors.As(r.err, new(*NoOpenCallError)) == test.version, p.runCount() != runsBefore:
					t.Errorf("Chat: error = %v; %d agent calls, want 0", r.err, p.runCount()-runsBefore)
				}
			})
		})
	}
}

// TestQueuedResults: the results of a queued turn are compared with the calls at its start.
func TestQueuedResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		first := f.startChat(t, chatRequest("q", 0))
		if r := f.startChat(t, resultsRequest("", "1")); !errors.As(r.err, new(*store.BusyError)) {
			t.Errorf("Chat during the turn: error = %v, want BusyError", r.err)
		}
		// A request that would be refused interrupts nothing, even if the running turn has the
		// call.
		p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{call("1"), call("2")}})
		eager := resultsRequest("", "1")
		eager.OnBusy = onBusyInterrupt
		if r := f.startChat(t, eager); !errors.As(r.err, new(*NoOpenCallError)) || first.ended {
			t.Errorf("interrupting Chat: error = %v, want NoOpenCallError; first turn ended = %t", r.err, first.ended)
		}
		queued := [3]*reader{}
		for i, ids := range [][]string{{"1"}, {"1", "2"}, {"2"}} {
			request := resultsRequest("", ids...)
			request.OnBusy = onBusyQueue
			queued[i] = f.startChat(t, request)
		}
		p.lastRun().complete()
		if state := stateName(first.finished().GetState()); state != "INPUT_REQUIRED" {
			t.Errorf("first turn ended %s, want INPUT_REQUIRED", state)
		}
		// Now the calls are stored, and a queued turn may be interrupted for one.
		eager = resultsRequest("", "2")
		eager.OnBusy = onBusyInterrupt
		last := f.startChat(t, eager)
		p.lastRun().complete()
		if !errors.As(queued[1].err, new(*NoOpenCallError)) || !errors.As(queued[2].err, new(*NoOpenCallError)) {
			t.Errorf("Chat with results of closed calls: errors %v, %v, want NoOpenCallError", queued[1].err, queued[2].err)
		}
		got := []string{stateName(queued[0].finished().GetState()), stateName(last.finished().GetState())}
		if diff := cmp.Diff([]string{"INTERRUPTED", "COMPLETED"}, got); diff != "" {
			t.Errorf("states of the turns (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"user: q", "assistant: ", "tool: of 1", "tool: of 2"}, f.stored(t)); diff != "" {
			t.Errorf("stored messages (-want +got):\n%s", diff)
		}
	})
}

// TestResultsAfterCrash: a turn that a crash left running is ended first, since it may have the
// call.
func TestResultsAfterCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m *crashStore
		var full *refusingStore
		f, p := newControlled(t, func(o *Options) {
			m = &crashStore{Store: o.Store}
			full = &refusingStore{Store: m}
			o.Store = full
		})
		f.startChat(t, chatRequest("q", 0))
		p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{call("1")}})
		<-time.After(saveInterval)
		synctest.Wait()
		full.refusals = []error{store.ErrClosed, store.ErrNoSpace} // of the stop, of the start
		f.crash(t, m)
		if r := f.startChat(t, resultsRequest("", "1")); r.err != nil || r.ended {
			t.Errorf("Chat = %q, %v", r.received(), r.err)
		}
		if diff := cmp.Diff([]string{"user: q", "assistant:  …", "tool: of 1"}, f.stored(t)); diff != "" {
			t.Errorf("stored messages (-want +got):\n%s", diff)
		}
	})
}

// TestTwoInterruptsWithOneResult: of two interrupting requests with a result of the same call, one
// succeeds, and the other interrupts nothing.
func TestTwoInterruptsWithOneResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		addHistory(t, f, p, "calls:1")
		slow := chatRequest("ahead", 0)
		slow.Metadata = ignoreCancel
		f.startChat(t, slow)
		var both []*reader
		for range 2 {
			request := resultsRequest("", "1")
			request.OnBusy = onBusyInterrupt
			both = append(both, f.startChat(t, request))
		}
		p.lastRun().complete()
		synctest.Wait()
		if both[0].err != nil || both[0].ended || !errors.As(both[1].err, new(*NoOpenCallError)) {
			t.Errorf("Chat = %q, %v and %q, %v, want one turn and one refusal", both[0].received(), both[0].err,
				both[1].received(), both[1].err)
		}
	})
}

// TestTurnsReleaseHistory: a turn that runs or waits does not hold the history that was read for
// it, which may have 3 MiB.
func TestTurnsReleaseHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		addHistory(t, f, p, "calls:1")
		request, conversation := resultsRequest("", "1"), key{tenant, "c"}
		snapshot, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "c", Newest: -1})
		if err != nil {
			t.Fatal(err)
		}
		e := &queueEntry{
			live: newLiveTurn(t.Context(), f.Manager, conversation, request), queue: &queue{key: conversation},
			readers: 1,
		}
		defer e.live.cancel(nil)
		if x := newExecution(f.Manager, e, request, snapshot, true); x.snapshot != nil {
			t.Error("a waiting turn holds the history")
		}
		x := newExecution(f.Manager, e, request, snapshot, false)
		if err := x.start(); err != nil || x.snapshot != nil {
			t.Errorf("start() = %v; the running turn holds the history: %t", err, x.snapshot != nil)
		}
	})
}
