package turn

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

// addHistory adds messages and turns to conversation c, one for each entry "kind:text". The kind
// "user", "tool" and so on appends a message. "fails", "cancels", "calls" and so on run a turn that
// asks "q" and ends so. "again" runs a turn that answers the pending message and fails. "cleared"
// removes all messages.
func addHistory(t *testing.T, f *fixture, p *controlledAgent, entries ...string) {
	t.Helper()
	failure := &agent.Error{Message: "out of order"}
	broken := map[string]error{"breaks": failure, "finds": failure, "continues": failure}
	for _, entry := range entries {
		kind, content, _ := strings.Cut(entry, ":")
		if role, ok := parleyv1.Role_value["ROLE_"+strings.ToUpper(kind)]; ok {
			m := &parleyv1.Message{Role: parleyv1.Role(role), Content: content}
			if m.GetRole() == parleyv1.Role_ROLE_TOOL {
				m.Content, m.ToolResult = "", &parleyv1.ToolResult{CallId: content, Content: content}
			}
			f.append(t, m)
			continue
		}
		if kind == "cleared" {
			f.trimHistory(t, "c", 0)
			continue
		}
		request := chatRequest("q", 0)
		if kind == "again" {
			request.Content, request.AnswerPending = "", true
		}
		r := f.startChat(t, request)
		if content != "" && kind != "calls" && kind != "breaks" {
			p.lastRun().sendText(content)
		}
		switch kind {
		case "completes":
			p.lastRun().complete()
		case "fails", "again":
			p.lastRun().fail()
		case "cancels":
			f.mustCancel(t, r.turnID())
		case "hands off":
			p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{handoff("other"), text("more")}})
			p.lastRun().fail()
		case "calls", "breaks":
			for id := range strings.FieldsSeq(content) {
				p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{call(id)}})
			}
			p.lastRun().do(step{end: kind == "calls", err: broken[kind]})
		case "finds", "continues", "closes":
			p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{call("1"), result("1", "found")}})
			if kind == "continues" {
				p.lastRun().sendText("so")
			}
			p.lastRun().do(step{end: kind == "closes", err: broken[kind]})
		default:
			t.Fatalf("unknown kind in %q", entry)
		}
		if r.finished() == nil {
			t.Fatalf("%s: %q, %v", entry, r.received(), r.err)
		}
	}
}

// append appends messages to conversation c.
func (f *fixture) append(t *testing.T, messages ...*parleyv1.Message) {
	t.Helper()
	if _, err := f.store.Append(t.Context(), &store.Append{
		Tenant: tenant, ConversationID: "c",
		Messages: messages,
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAnswerPending(t *testing.T) {
	exchange := &parleyv1.ContextWindow{MaxExchanges: 1}
	tests := []struct {
		name    string
		history []string
		window  *parleyv1.ContextWindow
		given   []string // to the agent; nil if there is nothing to answer
	}{
		{"failed without text", []string{"fails:"}, nil, []string{"user: q"}},
		{"failed with half an answer", []string{"fails:half"}, nil, []string{"user: q"}},
		{"failed twice", []string{"fails:half", "again:half"}, nil, []string{"user: q"}},
		{"cancelled without text", []string{"cancels:"}, nil, []string{"user: q"}},
		{"cancelled with half an answer", []string{"cancels:half"}, nil, []string{"user: q"}},
		{"failed after a handoff", []string{"hands off:I ask"}, nil, []string{"user: q"}},
		{
			"failed after an exchange with a tool",
			[]string{"finds:wait"},
			nil,
			[]string{"user: q", "assistant: wait …", "tool: found"},
		},
		{"failed after others", []string{"completes:a", "fails:half"}, nil, []string{"user: q", "assistant: a", "user: q"}},
		{
			"an incomplete answer to an earlier message",
			[]string{"fails:half", "user:next"},
			nil,
			[]string{"user: q", "assistant: half …", "user: next"},
		},
		{"appended", []string{"user:hello"}, nil, []string{"user: hello"}},
		{"appended, two", []string{"user:hello", "user:there"}, nil, []string{"user: hello", "user: there"}},
		{
			"system messages",
			[]string{"user:hello", "system:be brief", "user:there", "system:be kind"},
			nil,
			[]string{"user: hello", "system: be brief", "user: there"},
		},
		{"the result of a call", []string{"calls:1", "tool:1"}, nil, []string{"user: q", "assistant: ", "tool: 1"}},
		{
			"the results of calls",
			[]string{"calls:1 2", "tool:1", "tool:2"},
			nil,
			[]string{"user: q", "assistant: ", "tool: 1", "tool: 2"},
		},
		{
			"a result whose turn failed",
			[]string{"calls:1", "tool:1", "again:half"},
			nil,
			[]string{"user: q", "assistant: ", "tool: 1"},
		},
		{
			"window",
			[]string{"completes:a", "completes:b", "fails:half"},
			exchange,
			[]string{"user: q", "assistant: b", "user: q"},
		},
		{
			"window, and a result",
			[]string{"completes:a", "completes:b", "calls:1", "tool:1"},
			exchange,
			[]string{"user: q", "assistant: b", "user: q", "assistant: ", "tool: 1"},
		},
		{
			"failed after an answer that ends with its own result",
			[]string{"closes:a", "finds:wait"},
			nil,
			[]string{"user: q", "assistant: a", "tool: found", "user: q", "assistant: wait …", "tool: found"},
		},
		{
			"failed after its own result",
			[]string{"continues:wait"},
			nil,
			[]string{"user: q", "assistant: wait", "tool: found"},
		},
		{"failed with calls", []string{"breaks:1"}, nil, []string{"user: q"}},
		{
			"a result and a text",
			[]string{"completes:a", "calls:1", "tool:1", "user:go on"},
			exchange,
			[]string{"user: q", "assistant: a", "user: q", "assistant: ", "tool: 1", "user: go on"},
		},
		{"no message", []string{"completes:"}, nil, []string{"user: q"}},

		{"completed", []string{"completes:a"}, nil, nil},
		{"completed after it had failed", []string{"fails:half", "user:again", "assistant:a"}, nil, nil},
		{"calls that wait", []string{"calls:1"}, nil, nil},
		{"completed with its own result", []string{"closes:wait"}, nil, nil},
		{"completed with its own result, after it had failed", []string{"finds:wait", "closes:wait"}, nil, nil},
		{"answered by an append", []string{"fails:half", "assistant:a"}, nil, nil},
		{"no user message", []string{"system:be brief", "assistant:hello"}, nil, nil},
		{"system message only", []string{"system:be brief"}, nil, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, p := newControlled(t, nil)
				addHistory(t, f, p, test.history...)
				before, runsBefore := f.stored(t), p.runCount()
				r := f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", AnswerPending: true, Window: test.window})
				if test.given == nil {
					if !errors.Is(r.err, ErrNothingToAnswer) || len(r.events) != 0 || p.runCount() != runsBefore {
						t.Errorf("Chat = %q, %v", r.received(), r.err)
					}
				} else {
					given := p.lastRun().request.GetMessages()
					if diff := cmp.Diff(test.given, describeMessages(given)); diff != "" {
						t.Errorf("messages to the agent (-want +got):\n%s", diff)
					}
					p.lastRun().sendText("yes")
					p.lastRun().complete()
					started := r.events[0].GetStarted()
					if started.GetUserMessage() != nil || int(started.GetHistoryCount()) != len(given)-1 ||
						r.finished().GetInputSequence() != given[len(given)-1].GetSequence() {
						t.Errorf("started = %v, finished = %v", started, r.finished())
					}
					before = append(before, "assistant: yes")
				}
				// The pending message is not stored again, and an incomplete answer stays.
				if diff := cmp.Diff(before, f.stored(t)); diff != "" {
					t.Errorf("stored messages (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAnswerPendingWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newControlled(t, nil)
		request := &parleyv1.ChatRequest{ConversationId: "c", AnswerPending: true}
		if r := f.startChat(t, request); !errors.Is(r.err, store.ErrNotFound) {
			t.Errorf("Chat without a conversation: error = %v, want ErrNotFound", r.err)
		}
		if _, err := f.store.Create(t.Context(), &store.Create{
			Tenant:       tenant,
			Conversation: &parleyv1.Conversation{Id: "c"},
		}); err != nil {
			t.Fatal(err)
		}
		if r := f.startChat(t, request); !errors.Is(r.err, ErrNothingToAnswer) {
			t.Errorf("Chat without a message: error = %v, want ErrNothingToAnswer", r.err)
		}
	})
}

// TestPendingMessageChangesBeforeStart: between the read of the pending message and the start of
// the turn, other messages may be appended.
func TestPendingMessageChangesBeforeStart(t *testing.T) {
	user := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "newer"}
	reply := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "a"}
	tests := []struct {
		name      string
		appended  []*parleyv1.Message
		ifVersion *int32
		given     []string
		err       error
		version   bool // the error is a VersionError
	}{
		{"a question", []*parleyv1.Message{user}, nil, []string{"user: q", "user: newer"}, nil, false},
		{"an answer", []*parleyv1.Message{reply}, nil, nil, ErrNothingToAnswer, false},
		{"a question, with if_version", []*parleyv1.Message{user}, new(int32(2)), nil, nil, true},
		{"nothing, with if_version", nil, new(int32(2)), []string{"user: q"}, nil, false},
		{"nothing, with another if_version", nil, new(int32(1)), nil, nil, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h *hookStore
				f, p := newControlled(t, func(o *Options) {
					h = &hookStore{Store: o.Store}
					o.Store = h
				})
				addHistory(t, f, p, "fails:") // The conversation is at version 2.
				runsBefore := p.runCount()
				h.begin = func(*store.Append) {
					h.begin = nil
					if test.appended != nil {
						f.append(t, test.appended...)
					}
				}
				r := f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", AnswerPending: true, IfVersion: test.ifVersion})
				if mismatch := errors.As(r.err, new(*store.VersionError)); mismatch != test.version || !mismatch &&
					!errors.Is(r.err, test.err) {
					t.Fatalf("Chat: error = %v, want %v", r.err, test.err)
				}
				if r.err == nil {
					if diff := cmp.Diff(test.given, describeMessages(p.lastRun().request.GetMessages())); diff != "" {
						t.Errorf("messages to the agent (-want +got):\n%s", diff)
					}
				} else if p.runCount() != runsBefore || f.Running() != 0 {
					t.Errorf("%d agent calls, %d turns run, want none", p.runCount()-runsBefore, f.Running())
				}
			})
		})
	}
}

// TestAnswerPendingRetry: a retry of answer_pending returns the first turn, even if it is no longer
// retained and nothing is pending any more.
func TestAnswerPendingRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		addHistory(t, f, p, "fails:")
		request := &parleyv1.ChatRequest{ConversationId: "c", AnswerPending: true, RequestId: "r"}
		first, joined := f.startChat(t, request), f.startChat(t, request)
		p.lastRun().sendText("yes")
		p.lastRun().complete()
		retry := f.startChat(t, request)
		f.releaseAll()
		stored := f.startChat(t, request)
		want := []string{`1 started "" replayed`, `2 text "yes" at 0`, "3 finished COMPLETED"}
		for i, r := range []*reader{joined, retry, stored} {
			if diff := cmp.Diff(want, r.received()); diff != "" || r.err != nil || r.turnID() != first.turnID() {
				t.Errorf("retry %d: error %v, events (-want +got):\n%s", i+1, r.err, diff)
			}
		}
		if diff := cmp.Diff([]string{"user: q", "assistant: yes"}, f.stored(t)); diff != "" || p.runCount() != 2 {
			t.Errorf("%d agent calls; stored messages (-want +got):\n%s", p.runCount(), diff)
		}
	})
}

// TestIDReusedBeforeStart: a request that depends on stored messages must not start in another
// conversation that has the same id, and possibly the same version.
func TestIDReusedBeforeStart(t *testing.T) {
	for _, request := range []*parleyv1.ChatRequest{
		resultsRequest("", "1"), resultsRequest("and text", "1"),
		{ConversationId: "c", AnswerPending: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			var h *hookStore
			f, p := newControlled(t, func(o *Options) {
				h = &hookStore{Store: o.Store}
				o.Store = h
			})
			conversation := func(content string) {
				f.append(t, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content}, callMessage("1 find"))
				if request.GetAnswerPending() {
					f.append(t, &parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1"}})
				}
			}
			conversation("q")
			var remade []string
			h.begin = func(*store.Append) {
				h.begin = nil
				if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
					t.Error(err)
				}
				conversation("another")
				remade = f.stored(t)
			}
			r := f.startChat(t, request)
			if diff := cmp.Diff(remade, f.stored(t)); diff != "" || !errors.Is(r.err, ErrConversationDeleted) ||
				p.runCount() > 0 {
				t.Errorf("%v: Chat = %q, %v; %d agent calls; stored messages (-want +got):\n%s", request, r.received(), r.err,
					p.runCount(), diff)
			}
		})
	}
}
