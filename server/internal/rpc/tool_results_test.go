package rpc

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// appendCalls creates a conversation whose calls "1" and "2" are open.
func (f *fixture) appendCalls(t *testing.T, id string) {
	t.Helper()
	calls := assistant("I look")
	calls.ToolCalls = []*parleyv1.ToolCall{{Id: "1", Name: "find"}, {Id: "2", Name: "price"}}
	f.append(t, id, user("q"), calls)
}

// resultOf returns a result of a call.
func resultOf(id, content string) *parleyv1.ToolResult {
	return &parleyv1.ToolResult{CallId: id, Content: content}
}

// TestToolResults checks that the results of a request are stored before its message, in the exchange of
// the calls, and that a retry changes nothing.
func TestToolResults(t *testing.T) {
	f := open(t, nil)
	f.appendCalls(t, "c1")
	request := &parleyv1.ChatRequest{
		ConversationId: "c1", Content: "and now?", RequestId: "r1", ToolResults: []*parleyv1.ToolResult{
			resultOf("2", "50"), resultOf("1", "sugar"),
		},
	}
	for i := range 2 {
		events, err := f.chat(t, request)
		if err != nil {
			t.Fatal(err)
		}
		if started := events[0].GetStarted(); started.GetReplayed() != (i > 0) ||
			started.GetUserMessage().GetContent() != "and now?" {
			t.Errorf("started event of call %d = %v", i, started)
		}
	}
	reply, err := f.ListMessages(
		t.Context(),
		&parleyv1.ListMessagesRequest{ConversationId: "c1", Ascending: true, AfterSequence: 2},
	)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Name, Result, Content string
		Exchange              int32
	}
	var rows []row
	for _, m := range reply.GetMessages() {
		rows = append(
			rows,
			row{m.GetToolResult().GetName(), m.GetToolResult().GetContent(), m.GetContent(), m.GetExchange()},
		)
	}
	want := []row{{"price", "50", "", 1}, {"find", "sugar", "", 1}, {"", "", "and now?", 2}, {"", "", "and now?", 2}}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	// A request with other results is not a retry.
	request.ToolResults[0].Content = "60"
	_, err = f.chat(t, request)
	wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

// TestInvalidToolResults checks that nothing is stored if results have no open call or are too large.
func TestInvalidToolResults(t *testing.T) {
	f := open(t, nil)
	f.appendCalls(t, "c1")
	written := f.changeCount()
	ask := func(results ...*parleyv1.ToolResult) error {
		_, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", ToolResults: results})
		return err
	}
	got := wantError(t, ask(resultOf("1", ""), resultOf("x", "")), codes.FailedPrecondition, "NOTHING_TO_ANSWER")
	if want := `tool_results: "x" is not a call in the history; these calls wait for a result: ["1" "2"]`; got.text != want ||
		got.metadata["open_call_ids"] != "1, 2" {
		t.Errorf("refused with %q, %v, want %q", got.text, got.metadata, want)
	}
	got = wantError(t, ask(resultOf("1", ""), resultOf("1", "")), codes.InvalidArgument, "INVALID_REQUEST")
	if diff := cmp.Diff([]string{"tool_results"}, got.fields); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	got = wantError(
		t,
		ask(resultOf("1", ""), resultOf("2", strings.Repeat("x", defaultMaxMessageBytes))),
		codes.ResourceExhausted,
		"MESSAGE_TOO_LARGE",
	)
	if !strings.HasPrefix(got.text, "tool_results[1] has ") {
		t.Errorf("text = %q, want the path of the result", got.text)
	}
	_, err := f.chat(
		t,
		&parleyv1.ChatRequest{
			ConversationId: "c2",
			Content:        "x",
			ToolResults:    []*parleyv1.ToolResult{resultOf("1", "")},
		},
	)
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	if n := f.changeCount(); n != written {
		t.Errorf("got %d changes, want 0", n-written)
	}
}
