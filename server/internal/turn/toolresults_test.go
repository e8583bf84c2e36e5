package turn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

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
	for _, call := range calls {
		id, name, _ := strings.Cut(call, " ")
		m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id, Name: name})
	}
	return m
}

func TestToolResults(t *testing.T) {
	oneMessage := &parleyv1.ContextWindow{MaxMessages: 1}
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
		{
			"in their own order",
			[]string{"calls:1 2"},
			"",
			[]string{"2", "1"},
			nil,
			[]string{"user: q", "assistant: ", "tool: of 2", "tool: of 1"},
			2,
		},
		{
			"some of them",
			[]string{"calls:1 2 3"},
			"",
			[]string{"2"},
			nil,
			[]string{"user: q", "assistant: ", "tool: of 2"},
			1,
		},
		{
			"the others",
			[]string{"calls:1 2", "tool:1"},
			"",
			[]string{"2"},
			nil,
			[]string{"user: q", "assistant: ", "tool: 1", "tool: of 2"},
			1,
		},
		{
			"and text",
			[]string{"calls:1 2"},
			"go on",
			[]string{"1", "2"},
			nil,
			[]string{"user: q", "assistant: ", "tool: of 1", "tool: of 2", "user: go on"},
			3,
		},
		{
			"of a turn that failed",
			[]string{"breaks:1"},
			"",
			[]string{"1"},
			nil,
			[]string{"user: q", "assistant:  …", "tool: of 1"},
			1,
		},
		{
			"of an earlier exchange",
			[]string{"calls:1", "completes:a"},
			"",
			[]string{"1"},
			nil,
			[]string{"user: q", "assistant: ", "user: q", "assistant: a", "tool: of 1"},
			1,
		},
		{
			"an id that is used again",
			[]string{"calls:1", "tool:1", "calls:1"},
			"",
			[]string{"1"},
			nil,
			[]string{"user: q", "assistant: ", "tool: 1", "user: q", "assistant: ", "tool: of 1"},
			1,
		},

		{
			"window",
			[]string{"completes:a", "calls:1 2"},
			"",
			[]string{"1", "2"},
			oneMessage,
			[]string{"user: q", "assistant: ", "tool: of 1", "tool: of 2"},
			2,
		},
		{
			"window and text",
			[]string{"completes:a", "calls:1"},
			"go on",
			[]string{"1"},
			oneMessage,
			[]string{"user: q", "assistant: ", "tool: of 1", "user: go on"},
			2,
		},
		{
			"window, of an earlier exchange",
			[]string{"completes:a", "calls:1", "completes:b"},
			"",
			[]string{"1"},
			oneMessage,
			[]string{"user: q", "assistant: ", "user: q", "assistant: b", "tool: of 1"},
			1,
		},
		{
			"window, of two exchanges",
			[]string{"completes:a", "calls:1", "calls:2"},
			"",
			[]string{"2", "1"},
			oneMessage,
			[]string{"user: q", "assistant: ", "user: q", "assistant: ", "tool: of 2", "tool: of 1"},
			2,
		},
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
				if turn := r.finished(); stateName(turn.GetState()) != "COMPLETED" ||
					turn.GetInputSequence() != input.GetSequence() ||
					int(started.GetHistoryCount()) != len(given)-1 || input.GetMetadata()["from"] == "" {
					t.Errorf("started = %v, finished = %v, input = %v", started, turn, input)
				}
				want := slices.Concat(before, test.given[len(test.given)-test.inputs:], []string{"assistant: yes"})
				if diff := cmp.Diff(want, f.stored(t)); diff != "" {
					t.Errorf("stored messages (-want +got):\n%s", diff)
				}
				// A retry returns the same turn, from memory and from the store.
				live := f.startChat(t, request)
				f.releaseAll()
				stored := f.startChat(t, request)
				for _, retry := range []*reader{live, stored} {
					if diff := cmp.Diff([]string{
						fmt.Sprintf("1 started %q replayed", test.content), `2 text "yes" at 0`,
						"3 finished COMPLETED",
					}, retry.received()); diff != "" || retry.err != nil {
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
		{
			"answered",
			[]string{"calls:1 2", "tool:1"},
			[]string{"1"},
			NoOpenCallError{CallID: "1", Answered: true, Open: []string{"2"}},
		},
		{"answered by the agent", []string{"finds:wait"}, []string{"1"}, NoOpenCallError{CallID: "1", Answered: true}},
		{
			"of an older message",
			[]string{"calls:1 2", "calls:1", "tool:1"},
			[]string{"1"},
			NoOpenCallError{CallID: "1", Answered: true, Open: []string{"2"}},
		},
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
						t.Errorf("%d agent calls, %d turns run; stored messages (-want +got):\n%s", p.runCount()-runsBefore,
							f.Running(), diff)
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
