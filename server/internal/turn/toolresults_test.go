package turn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// resultsRequest returns a request for conversation c with a result for each id and an optional
// text.
func resultsRequest(content string, ids ...string) *parleyv1.ChatRequest {
	r := &parleyv1.ChatRequest{ConversationId: "c", Content: content}
	for _, id := range ids {
		r.ToolResults = append(r.ToolResults, &parleyv1.ToolResult{CallId: id, Content: "of " + id})
	}
	return r
}

// callMessage returns a message of an agent with calls, each "id" or "id name".
func callMessage(calls ...string) *parleyv1.Message {
	m := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "I call"}
	for _, one := range calls {
		id, name, _ := strings.Cut(one, " ")
		m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id, Name: name})
	}
	return m
}

func TestToolResults(t *testing.T) {
	one := &parleyv1.ContextWindow{MaxMessages: 1}
	tests := []struct {
		name    string
		history []string
		content string
		ids     []string
		window  *parleyv1.ContextWindow
		given   []string // to the agent
		inputs  int      // number of messages in given that come from the request
	}{
		{"a result", []string{"calls:1"}, "", []string{"1"}, nil, []string{"user: q", "assistant: ", "tool: of 1"}, 1},
		{"in their own order", []string{"calls:1 2"}, "", []string{"2", "1"}, nil, []string{"user: q", "assistant: ", "tool: of 2", "tool: of 1"}, 2},
		{"some of them", []string{"calls:1 2 3"}, "", []string{"2"}, nil, []string{"user: q", "assistant: ", "tool: of 2"}, 1},
		{"the others", []string{"calls:1 2", "tool:1"}, "", []string{"2"}, nil, []string{"user: q", "assistant: ", "tool: 1", "tool: of 2"}, 1},
		{"and text", []string{"calls:1 2"}, "go on", []string{"1", "2"}, nil, []string{"user: q", "assistant: ", "tool: of 1", "tool: of 2", "user: go on"}, 3},
		{"of a turn that failed", []string{"breaks:1"}, "", []string{"1"}, nil, []string{"user: q", "assistant:  …", "tool: of 1"}, 1},
		{"of an earlier exchange", []string{"calls:1", "completes:a"}, "", []string{"1"}, nil, []string{"user: q", "assistant: ", "user: q", "assistant: a", "tool: of 1"}, 1},
		{"an id that is used again", []string{"calls:1", "tool:1", "calls:1"}, "", []string{"1"}, nil, []string{"user: q", "assistant: ", "tool: 1", "user: q", "assistant: ", "tool: of 1"}, 1},

		{"window", []string{"completes:a", "calls:1 2"}, "", []string{"1", "2"}, one, []string{"user: q", "assistant: ", "tool: of 1", "tool: of 2"}, 2},
		{"window and text", []string{"completes:a", "calls:1"}, "go on", []string{"1"}, one, []string{"user: q", "assistant: ", "tool: of 1", "user: go on"}, 2},
		{"window, of an earlier exchange", []string{"completes:a", "calls:1", "completes:b"}, "", []string{"1"}, one, []string{"user: q", "assistant: ", "user: q", "assistant: b", "tool: of 1"}, 1},
		{"window, of two exchanges", []string{"completes:a", "calls:1", "calls:2"}, "", []string{"2", "1"}, one, []string{"user: q", "assistant: ", "user: q", "assistant: ", "tool: of 2", "tool: of 1"}, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, p := newControlled(t, nil)
				addHistory(t, f, p, test.history...)
				before := f.stored(t)
				request := resultsRequest(test.content, test.ids...)
				request.Window, request.RequestId, request.Metadata = test.window, "r", map[string]string{"from": "a test"}
				r := f.startChat(t, request)
				given := p.lastRun().request.GetMessages()
				if diff := cmp.Diff(test.given, describeMessages(given)); diff != "" {
					t.Errorf("messages to the agent (-want +got):\n%s", diff)
				}
				p.lastRun().sendText("yes")
				p.lastRun().complete()

				input := given[len(given)-1]
				started := r.events[0].GetStarted()
				if user := started.GetUserMessage(); (user != nil) != (test.content != "") || user.GetContent() != test.content {
					t.Errorf("user_message of started = %v", user)
				}
				if turn := r.finished(); stateName(turn.GetState()) != "COMPLETED" || turn.GetInputSequence() != input.GetSequence() ||
					int(started.GetHistoryCount()) != len(given)-1 || input.GetMetadata()["from"] == "" {
					t.Errorf("started = %v, finished = %v, input = %v", started, turn, input)
				}
				want := slices.Concat(before, test.given[len(test.given)-test.inputs:], []string{"assistant: yes"})
				if diff := cmp.Diff(want, f.stored(t)); diff != "" {
					t.Errorf("stored messages (-want +got):\n%s", diff)
				}
				// A retry returns the same turn, from memory and from the store.
				again := f.startChat(t, request)
				f.releaseAll()
				stored := f.startChat(t, request)
				for _, retry := range []*reader{again, stored} {
					if diff := cmp.Diff([]string{fmt.Sprintf("1 started %q replayed", test.content), `2 text "yes" at 0`, "3 finished COMPLETED"}, retry.received()); diff != "" || retry.err != nil {
						t.Errorf("retry: error %v, events (-want +got):\n%s", retry.err, diff)
					}
					if user := retry.events[0].GetStarted().GetUserMessage(); (user != nil) != (test.content != "") {
						t.Errorf("user_message of a replay = %v", user)
					}
				}
			})
		})
	}
}

// TestResultsWithoutOpenCall: a result without an open call is refused, the error lists the open
// calls, and nothing is stored.
func TestResultsWithoutOpenCall(t *testing.T) {
	tests := []struct {
		name    string
		history []string
		ids     []string
		want    NoOpenCallError
	}{
		{"no calls", []string{"completes:a"}, []string{"1"}, NoOpenCallError{CallID: "1"}},
		{"another", []string{"calls:1 2"}, []string{"3"}, NoOpenCallError{CallID: "3", Open: []string{"1", "2"}}},
		{"one of them", []string{"calls:2 1"}, []string{"1", "3"}, NoOpenCallError{CallID: "3", Open: []string{"2", "1"}}},
		{"answered", []string{"calls:1 2", "tool:1"}, []string{"1"}, NoOpenCallError{CallID: "1", Answered: true, Open: []string{"2"}}},
		{"answered by the agent", []string{"finds:wait"}, []string{"1"}, NoOpenCallError{CallID: "1", Answered: true}},
		{"of an older message", []string{"calls:1 2", "calls:1", "tool:1"}, []string{"1"}, NoOpenCallError{CallID: "1", Answered: true, Open: []string{"2"}}},
		{"no longer stored", []string{"calls:1", "cleared:"}, []string{"1"}, NoOpenCallError{CallID: "1"}},
	}
	for _, test := range tests {
		for _, content := range []string{"", "and text"} {
			t.Run(test.name+content, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, p := newControlled(t, nil)
					addHistory(t, f, p, test.history...)
					before, runsBefore := f.stored(t), p.runCount()
					r := f.startChat(t, resultsRequest(content, test.ids...))
					var got *NoOpenCallError
					if !errors.As(r.err, &got) || len(r.events) != 0 {
						t.Fatalf("Chat = %q, %v", r.received(), r.err)
					}
					if diff := cmp.Diff(test.want, *got); diff != "" {
						t.Errorf("error of Chat (-want +got):\n%s", diff)
					}
					if diff := cmp.Diff(before, f.stored(t)); diff != "" || p.runCount() != runsBefore || f.Running() != 0 {
						t.Errorf("%d agent calls, %d turns run; stored messages (-want +got):\n%s", p.runCount()-runsBefore, f.Running(), diff)
					}
				})
			})
		}
	}
}

// TestResultsWithoutConversation: tool results do not create a conversation.
func TestResultsWithoutConversation(t *testing.T) {
	for _, must := range []bool{false, true} {
		f, _ := newControlled(t, nil)
		request := resultsRequest("and text", "1")
		request.MustExist = must
		if _, err := f.tryChat(t, request, nil); !errors.Is(err, store.ErrNotFound) || f.stored(t) != nil {
			t.Errorf("Chat, must_exist %t: error = %v, want ErrNotFound; stored messages = %q", must, err, f.stored(t))
		}
	}
}

// TestResultsReceiveToolNames: results resolve the calls of the newest message with their id, in
// order, and receive the tool's name unless they have one. Calls of older messages with the same id
// are closed.
func TestResultsReceiveToolNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		addHistory(t, f, p, "user:q")
		f.append(t, callMessage("1 old", "2 other"), callMessage("1 new", "1 newer"))
		request := resultsRequest("", "1", "2")
		request.ToolResults[1].Name = "my own"
		f.startChat(t, request)
		p.lastRun().complete()
		f.startChat(t, resultsRequest("", "1"))
		p.lastRun().complete()
		var names []string
		for _, m := range p.lastRun().request.GetMessages() {
			if m.GetToolResult() != nil {
				names = append(names, m.GetToolResult().GetName())
			}
		}
		if diff := cmp.Diff([]string{"new", "my own", "newer"}, names); diff != "" {
			t.Errorf("names of results (-want +got):\n%s", diff)
		}
		// A retry must not resolve the other open call.
		before, runsBefore := f.stored(t), p.runCount()
		r := f.startChat(t, resultsRequest("", "1"))
		var got *NoOpenCallError
		if !errors.As(r.err, &got) || !cmp.Equal(NoOpenCallError{CallID: "1", Answered: true}, *got) {
			t.Errorf("Chat = %q, %v", r.received(), r.err)
		}
		if diff := cmp.Diff(before, f.stored(t)); diff != "" || p.runCount() != runsBefore {
			t.Errorf("%d agent calls; stored messages (-want +got):\n%s", p.runCount()-runsBefore, diff)
		}
	})
}

// TestCallsChangeBeforeStart: between the read of the calls and the start of the turn, other
// messages may be appended.
func TestCallsChangeBeforeStart(t *testing.T) {
	result := &parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1", Content: "another"}}
	userMessage := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "hello"}
	tests := []struct {
		name      string
		appended  *parleyv1.Message
		ifVersion *int32
		given     []string // nil if the request is refused
		version   bool     // because of if_version
	}{
		{"a result of the call", result, nil, nil, false},
		{"a call of that id", callMessage("1 again"), nil, []string{"user: q", "assistant: ", "assistant: I call", "tool: of 1"}, false},
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
				case errors.As(r.err, new(*store.VersionError)) != test.version, errors.As(r.err, new(*NoOpenCallError)) == test.version, p.runCount() != runsBefore:
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
			t.Errorf("Chat = %q, %v and %q, %v, want one turn and one refusal", both[0].received(), both[0].err, both[1].received(), both[1].err)
		}
	})
}

// TestTurnsReleaseHistory: a turn that runs or waits does not hold the history that was read for
// it, which may have 3 MiB.
func TestTurnsReleaseHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		addHistory(t, f, p, "calls:1 2")
		first, second := resultsRequest("", "1"), resultsRequest("", "2")
		first.OnBusy, second.OnBusy = onBusyInterrupt, onBusyQueue
		f.startChat(t, first)
		f.startChat(t, second)
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, one := range f.turns {
			if one.conversation != nil {
				t.Errorf("turn of %v holds the history", one.request)
			}
		}
	})
}
