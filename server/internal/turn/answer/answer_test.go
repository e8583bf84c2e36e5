package answer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
)

func text(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: s}}
}

func call(id string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{
		ToolCall: &parleyv1.ToolCall{Id: id, Name: "find"},
	}}
}

func result(id string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolResult{
		ToolResult: &parleyv1.ToolResult{CallId: id},
	}}
}

func handoff(name string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: name}}
}

func note(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Progress{
		Progress: &parleyv1.TurnProgress{Text: s},
	}}
}

func usage(model string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: &parleyv1.Usage{Model: model}}}
}

func reason(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: s}}
}

// answerOf returns an answer of agent main with these pieces, and the error of the last piece.
func answerOf(limit int, pieces ...*parleyv1.RespondResponse) (*Answer, *eventlog.Log, error) {
	l := eventlog.New("turn", "tenant", "c", nil)
	a := New("turn", limit, l)
	a.SetAgent("main")
	for _, piece := range pieces {
		if err := a.Add(piece); err != nil {
			return a, l, err
		}
	}
	return a, l, nil
}

// describe returns role, agent and content of each message, with "…" if it is INCOMPLETE.
func describe(messages []*parleyv1.Message) []string {
	var all []string
	for _, m := range messages {
		s := fmt.Sprintf("%s %s: %s", strings.TrimPrefix(m.GetRole().String(), "ROLE_"), m.GetAgent(), m.GetContent())
		if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
			s += "…"
		}
		all = append(all, s)
	}
	return all
}

func TestMessages(t *testing.T) {
	tests := []struct {
		name     string
		pieces   []*parleyv1.RespondResponse
		complete bool
		want     []string
	}{
		{"no pieces", nil, true, nil},
		{"texts", []*parleyv1.RespondResponse{text("a"), text("b")}, true, []string{"ASSISTANT main: ab"}},
		{"incomplete", []*parleyv1.RespondResponse{text("a")}, false, []string{"ASSISTANT main: a…"}},
		{"progress only", []*parleyv1.RespondResponse{note("a")}, true, nil},
		{"usage only", []*parleyv1.RespondResponse{usage("m")}, true, nil},
		{"invalid UTF-8", []*parleyv1.RespondResponse{text("a\xff")}, true, []string{"ASSISTANT main: a\uFFFD"}},
		{
			"a handoff",
			[]*parleyv1.RespondResponse{text("a"), handoff("b"), text("c")},
			true,
			[]string{"ASSISTANT main: a", "ASSISTANT b: c"},
		},
		{"a handoff without text", []*parleyv1.RespondResponse{text("a"), handoff("b")}, true, []string{"ASSISTANT main: a"}},
		{
			"a call with its result",
			[]*parleyv1.RespondResponse{text("a"), call("1"), result("1"), text("b")},
			true,
			[]string{"ASSISTANT main: a", "TOOL main: ", "ASSISTANT main: b"},
		},
		{
			"incomplete after a result",
			[]*parleyv1.RespondResponse{call("1"), result("1")},
			false,
			[]string{"ASSISTANT main: …", "TOOL main: "},
		},
	}
	for _, test := range tests {
		a, _, err := answerOf(1000, test.pieces...)
		if err != nil {
			t.Fatalf("%s: Add: %v", test.name, err)
		}
		messages, indexes := a.Finish(test.complete)
		if diff := cmp.Diff(test.want, describe(messages)); diff != "" || len(indexes) != len(messages) {
			t.Errorf("%s: messages with %d indexes (-want +got):\n%s", test.name, len(indexes), diff)
		}
	}
}

// TestIndexes: the recorded indexes are those of the events.
func TestIndexes(t *testing.T) {
	a, l, err := answerOf(1000, text("a"), note("n"), text("b"), call("1"), result("1"), handoff("b"), text("c"))
	if err != nil {
		t.Fatalf("Add: %v", err)
	}
	_, indexes := a.Finish(true)
	want := []string{"1-3 [4] 0, started 0", "0-0 [] 5, started 0", "7-7 [] 0, started 6"}
	var got []string
	for _, m := range indexes {
		got = append(got, fmt.Sprintf("%d-%d %v %d, started %d",
			m.GetFirstText(), m.GetLastText(), m.GetToolCalls(), m.GetToolResult(), m.GetAnswerStarted()))
	}
	if diff := cmp.Diff(want, got); diff != "" || l.LastIndex() != 7 {
		t.Errorf("indexes of %d events (-want +got):\n%s", l.LastIndex(), diff)
	}
}

// TestUsageAfterLastResult: usage and finish reason that an agent reports after its last tool
// result belong to the last message that it has written, but not if another agent reports them.
func TestUsageAfterLastResult(t *testing.T) {
	tests := []struct {
		name   string
		pieces []*parleyv1.RespondResponse
		want   []string // model and finish reason of each message
	}{
		{
			"usage and reason",
			[]*parleyv1.RespondResponse{call("1"), result("1"), usage("m"), reason("stop")},
			[]string{"m stop", " "},
		},
		{
			"the last one counts",
			[]*parleyv1.RespondResponse{call("1"), usage("a"), reason("stop"), result("1"), usage("b")},
			[]string{"b stop", " "},
		},
		{
			"between two results",
			[]*parleyv1.RespondResponse{call("1"), call("2"), result("1"), usage("m"), result("2"), reason("stop")},
			[]string{"m stop", " ", " "},
		},
		{
			"followed by text",
			[]*parleyv1.RespondResponse{call("1"), result("1"), usage("m"), reason("stop"), text("so")},
			[]string{" ", " ", "m stop"},
		},
		{"without content", []*parleyv1.RespondResponse{usage("m"), reason("stop")}, nil},
		{
			"another agent's",
			[]*parleyv1.RespondResponse{call("1"), result("1"), usage("m"), handoff("b"), usage("n"), reason("stop")},
			[]string{"m ", " "},
		},
	}
	for _, test := range tests {
		a, _, err := answerOf(1000, test.pieces...)
		if err != nil {
			t.Fatalf("%s: Add: %v", test.name, err)
		}
		messages, _ := a.Finish(true)
		var got []string
		for _, m := range messages {
			got = append(got, m.GetUsage().GetModel()+" "+m.GetFinishReason())
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: reports of messages (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestLimits: the error names the limit that the answer has exceeded, and the part within the limit
// is kept.
func TestLimits(t *testing.T) {
	tests := []struct {
		name     string
		piece    func(i int) *parleyv1.RespondResponse
		want     string
		messages int
	}{
		{"bytes", func(int) *parleyv1.RespondResponse { return text("0123456") }, "is larger than 10000 bytes", 1},
		{"messages", func(i int) *parleyv1.RespondResponse {
			return []*parleyv1.RespondResponse{text("x"), handoff("b")}[i%2]
		}, "has more than 100 messages", MaxMessages},
		{"results", func(i int) *parleyv1.RespondResponse {
			return []*parleyv1.RespondResponse{call("1"), result("1")}[i%2]
		}, "has more than 100 messages", MaxMessages},
		{
			"calls", func(i int) *parleyv1.RespondResponse { return call(fmt.Sprint(i)) },
			"has more than 1000 values, calls and results", 1,
		},
	}
	for _, test := range tests {
		var pieces []*parleyv1.RespondResponse
		for i := range 2 * MaxValues {
			pieces = append(pieces, test.piece(i))
		}
		limit := 1 << 20
		if test.name == "bytes" {
			limit = 10_000
		}
		a, _, err := answerOf(limit, pieces...)
		messages, _ := a.Finish(false)
		large, _ := errors.AsType[*TooLargeError](err)
		if large == nil || large.Error() != test.want || len(messages) != test.messages {
			t.Errorf("%s: Add: error = %v, %d messages, want %q and %d", test.name, err, len(messages), test.want, test.messages)
		}
		if test.name == "bytes" && len(messages[0].GetContent()) != limit {
			t.Errorf("%s: %d bytes of text, want %d", test.name, len(messages[0].GetContent()), limit)
		}
	}
}

// TestRules: a piece that breaks a rule is not added, and its error is not retryable.
func TestRules(t *testing.T) {
	for _, pieces := range [][]*parleyv1.RespondResponse{
		{call("")},
		{call("1"), call("1")},
		{result("1")},
		{call("1"), result("1"), result("1")},
		{handoff("")},
		{reason(strings.Repeat("x", 129))},
	} {
		earlier, _, _ := answerOf(1000, slices.Concat([]*parleyv1.RespondResponse{text("a")}, pieces[:len(pieces)-1])...)
		a, _, err := answerOf(1000, slices.Concat([]*parleyv1.RespondResponse{text("a")}, pieces)...)
		want, _ := earlier.Finish(false)
		got, _ := a.Finish(false)
		failure, _ := errors.AsType[*agent.Error](err)
		if diff := cmp.Diff(describe(want), describe(got)); failure == nil || failure.Retryable || diff != "" {
			t.Errorf("%v: Add: error = %v, want agent.Error; messages (-want +got):\n%s", pieces, err, diff)
		}
	}
}

// TestSnapshot: a snapshot is a copy of the answer so far, incomplete, and nil without a change.
func TestSnapshot(t *testing.T) {
	a, l, _ := answerOf(1000, text("a"))
	first := a.Snapshot(0)
	if again := a.Snapshot(first.Changes); again != nil {
		t.Errorf("Snapshot(%d) = %v without a change, want nil", first.Changes, again)
	}
	if err := a.Add(text("b")); err != nil {
		t.Fatal(err)
	}
	second := a.Snapshot(first.Changes)
	got := slices.Concat(describe(first.Messages), describe(second.Messages))
	if diff := cmp.Diff([]string{"ASSISTANT main: a…", "ASSISTANT main: ab…"}, got); diff != "" {
		t.Errorf("snapshots (-want +got):\n%s", diff)
	}
	messages, indexes := a.Finish(true)
	l.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: &parleyv1.TurnFinished{Messages: messages}}})
	a.Release(indexes)
	last := a.Snapshot(-1)
	if diff := cmp.Diff([]string{"ASSISTANT main: ab"}, describe(last.Messages)); diff != "" || last.LastIndex != 2 {
		t.Errorf("snapshot at %d after Release (-want +got):\n%s", last.LastIndex, diff)
	}
}

// TestTextOnly: only messages with text remain, without the fields that may not be valid.
func TestTextOnly(t *testing.T) {
	messages := []*parleyv1.Message{
		{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "a", Agent: "main", FinishReason: "\xff"},
		{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1"}},
	}
	indexes := []*storev1.MessageEvents{{FirstText: 1, LastText: 2, ToolCalls: []int32{3}}, {ToolResult: 4}}
	texts, textIndexes := TextOnly(messages, indexes)
	if diff := cmp.Diff([]string{"ASSISTANT main: a…"}, describe(texts)); diff != "" || texts[0].GetFinishReason() != "" {
		t.Errorf("TextOnly = %v (-want +got):\n%s", texts, diff)
	}
	if len(textIndexes) != 1 || textIndexes[0].GetLastText() != 2 || textIndexes[0].GetToolCalls() != nil {
		t.Errorf("TextOnly: indexes = %v, want those of the text", textIndexes)
	}
}
