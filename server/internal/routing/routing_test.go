package routing

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func user(content string) *parleyv1.Message {
	return &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content}
}

func assistant(agent, content string, data ...*parleyv1.StructuredData) *parleyv1.Message {
	return &parleyv1.Message{
		Role: parleyv1.Role_ROLE_ASSISTANT, Agent: agent, Content: content, StructuredData: data,
		Status: parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE,
	}
}

// withSummary returns an assistant message that has a summary.
func withSummary(summary string, data ...*parleyv1.StructuredData) *parleyv1.Message {
	m := assistant("researcher", "At length.", data...)
	m.Summary = summary
	return m
}

func calls(ids ...string) *parleyv1.Message {
	m := assistant("researcher", "")
	for _, id := range ids {
		m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id, Name: "search"})
	}
	return m
}

func result(id string) *parleyv1.Message {
	return &parleyv1.Message{
		Role:       parleyv1.Role_ROLE_TOOL,
		ToolResult: &parleyv1.ToolResult{CallId: id, Content: "found"},
	}
}

func system() *parleyv1.Message {
	return &parleyv1.Message{Role: parleyv1.Role_ROLE_SYSTEM, Content: "be brief"}
}

func data(kind, value string) *parleyv1.StructuredData {
	return &parleyv1.StructuredData{Type: kind, Value: structpb.NewStringValue(value)}
}

// history sets sequences and create times as the store does.
func history(messages ...*parleyv1.Message) []*parleyv1.Message {
	for i, m := range messages {
		m.Sequence = int32(i + 1)
		m.CreateTime = &timestamppb.Timestamp{Seconds: int64(1000 + i)}
	}
	return messages
}

func header(messages []*parleyv1.Message) *parleyv1.Conversation {
	return &parleyv1.Conversation{
		Id: "shop", Uid: "b6f1", Version: 7,
		LastSequence: int32(len(messages)), MessageCount: int32(len(messages)),
		ActiveAgent:  &parleyv1.ActiveAgent{Agent: "researcher", Reason: "it started"},
		ActiveTurnId: "turn-1",
		UpdateTime:   &timestamppb.Timestamp{Seconds: 2000},
		ExpireTime:   &timestamppb.Timestamp{Seconds: 5600},
	}
}

// encode returns messages in the form that a store returns.
func encode(tb rapid.TB, messages []*parleyv1.Message) store.Frames {
	tb.Helper()
	var frames store.Frames
	for _, m := range messages {
		body, err := proto.Marshal(m)
		if err != nil {
			tb.Fatal(err)
		}
		frames = append(frames, frame(body)...)
	}
	return frames
}

// summarize calls Summarize and returns the summary as a client receives it. It fails the test if
// Summarize changes the messages.
func summarize(
	tb rapid.TB,
	c *parleyv1.Conversation,
	messages []*parleyv1.Message,
	o Options,
) *parleyv1.RoutingSummary {
	tb.Helper()
	frames := encode(tb, messages)
	before := slices.Clone(frames)
	sent, err := Summarize(c, frames, o)
	if err != nil {
		tb.Fatal(err)
	}
	if !bytes.Equal(before, frames) {
		tb.Fatal("Summarize changed the messages")
	}
	clear(frames) // The summary must not reference them.
	encoded, err := proto.Marshal(sent)
	if err != nil {
		tb.Fatal(err)
	}
	received := new(parleyv1.RoutingSummary)
	if err := proto.Unmarshal(encoded, received); err != nil {
		tb.Fatal(err)
	}
	return received
}

// diff compares protobuf messages or lists of them. Nil and empty lists are equal.
func diff(want, got any) string {
	if w, ok := want.(proto.Message); ok {
		if g, ok := got.(proto.Message); ok && proto.Equal(w, g) {
			return "" // proto.Equal takes a hundredth of the time of cmp.Diff.
		}
	}
	return cmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateEmpty())
}

func TestSummarize(t *testing.T) {
	libraries := data("library_list", "Zustand, Jotai, Redux")
	analysis := data("analysis", "small and quick")
	messages := history(
		user("Which React state libraries are there?"),
		withSummary("searched for React libraries", libraries),
		user("Tell me about the first one."),
		withSummary("analyzed Zustand", analysis),
		user("And the second one?"),
	)
	got := summarize(t, header(messages), messages, Options{MessageLimit: 3})
	want := &parleyv1.RoutingSummary{
		ConversationId: "shop", Uid: "b6f1", Version: 7,
		RecentMessages: messages[2:],
		StructuredDataTypes: []*parleyv1.StructuredDataUse{
			{Type: "analysis", Count: 1, LastSequence: 4, LastAgent: "researcher"},
			{Type: "library_list", Count: 1, LastSequence: 2, LastAgent: "researcher"},
		},
		ReferencedData: []*parleyv1.ReferencedData{{Sequence: 2, Agent: "researcher", Data: libraries}},
		Text:           "Previous: searched for React libraries, analyzed Zustand",
		ActiveAgent:    &parleyv1.ActiveAgent{Agent: "researcher", Reason: "it started"},
		RecentAgents: []*parleyv1.AgentUse{
			{Agent: "researcher", LastSequence: 4, LastTime: &timestamppb.Timestamp{Seconds: 1003}},
		},
		AwaitingAnswer: true, ActiveTurnId: "turn-1", MessageCount: 5, LastSequence: 5,
		UpdateTime: &timestamppb.Timestamp{Seconds: 2000},
		ExpireTime: &timestamppb.Timestamp{Seconds: 5600},
	}
	if d := diff(want, got); d != "" {
		t.Errorf("summary (-want +got):\n%s", d)
	}
}

func TestSummarizeEmpty(t *testing.T) {
	if d := diff(&parleyv1.RoutingSummary{}, summarize(t, nil, nil, Options{MessageLimit: 3, MaxBytes: 1})); d != "" {
		t.Errorf("summary (-want +got):\n%s", d)
	}
}

func TestRecentMessages(t *testing.T) {
	messages := history(user("1"), user("2"), user("3"))
	for limit, want := range map[int]int{-1: 0, 0: 0, 1: 1, 3: 3, 4: 3} {
		s := summarize(t, nil, messages, Options{MessageLimit: limit})
		if d := diff(messages[3-want:], s.RecentMessages); d != "" {
			t.Errorf("limit %d (-want +got):\n%s", limit, d)
		}
		if s.Truncated {
			t.Errorf("limit %d: Truncated = true, want false without MaxBytes", limit)
		}
	}
}

// TestNoNativeForms: a summary has neither native forms nor reasoning, with or without a budget, and they do not
// count.
func TestNoNativeForms(t *testing.T) {
	messages := history(user("1"), assistant("writer", "2"), user("3"))
	want := summarize(t, nil, messages, Options{MessageLimit: 3})
	for _, m := range messages {
		m.Reasoning, m.Native = strings.Repeat("why ", 1000), &parleyv1.Native{Type: "t", Value: make([]byte, 1000)}
	}
	for _, budget := range []int{0, 1000} {
		s := summarize(t, nil, messages, Options{MessageLimit: 3, MaxBytes: budget})
		if d := diff(want, s); d != "" {
			t.Errorf("MaxBytes %d (-want +got):\n%s", budget, d)
		}
	}
	s := summarize(t, nil, messages, Options{MessageLimit: 3, MaxBytes: 30})
	if len(s.RecentMessages) == 0 || len(s.RecentMessages) == 3 || s.RecentMessages[0].GetNative() != nil {
		t.Errorf("MaxBytes 30: recent messages = %v, want a part without native forms", s.RecentMessages)
	}
}

func TestStructuredData(t *testing.T) {
	messages := history(
		user("1"),
		assistant("finder", "", data("list", "old"), data("list", "new"), data("price", "5")),
		assistant("judge", "", data("verdict", "good"), data("list", "newest")),
		user("4"),
	)
	messages[3].StructuredData = []*parleyv1.StructuredData{data("choice", "b"), data("verdict", "bad")}

	s := summarize(t, nil, messages, Options{MessageLimit: 1})
	uses := []*parleyv1.StructuredDataUse{
		{Type: "verdict", Count: 2, LastSequence: 4},
		{Type: "choice", Count: 1, LastSequence: 4},
		{Type: "list", Count: 3, LastSequence: 3, LastAgent: "judge"},
		{Type: "price", Count: 1, LastSequence: 2, LastAgent: "finder"},
	}
	if d := diff(uses, s.StructuredDataTypes); d != "" {
		t.Errorf("types (-want +got):\n%s", d)
	}
	referenced := []*parleyv1.ReferencedData{
		{Sequence: 3, Agent: "judge", Data: data("list", "newest")},
		{Sequence: 2, Agent: "finder", Data: data("price", "5")},
	}
	if d := diff(referenced, s.ReferencedData); d != "" {
		t.Errorf("referenced (-want +got):\n%s", d)
	}
}

func TestRecentAgents(t *testing.T) {
	messages := history(
		assistant("a", "1"), assistant("b", "2"), assistant("a", "3"), assistant("", "4"),
		&parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL, Agent: "c", ToolResult: &parleyv1.ToolResult{CallId: "x"}},
	)
	want := []*parleyv1.AgentUse{
		{Agent: "a", LastSequence: 3, LastTime: messages[2].CreateTime},
		{Agent: "b", LastSequence: 2, LastTime: messages[1].CreateTime},
	}
	if d := diff(want, summarize(t, nil, messages, Options{}).RecentAgents); d != "" {
		t.Errorf("agents (-want +got):\n%s", d)
	}
}

func TestAwaitingAnswer(t *testing.T) {
	incomplete := assistant("a", "I th")
	incomplete.Status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
	tests := []struct {
		name     string
		messages []*parleyv1.Message
		want     bool
	}{
		{"no messages", nil, false},
		{"question", history(user("?")), true},
		{"answer", history(user("?"), assistant("a", "!")), false},
		{"second question", history(user("?"), assistant("a", "!"), user("?")), true},
		{"incomplete answer", history(user("?"), incomplete), false},
		{"answer cut off in its reasoning", history(user("?"), reasoningOnly()), true},
		{"tool result", history(user("?"), calls("1"), result("1")), false},
		{"system message after the question", history(user("?"), system()), true},
		{"system message after the answer", history(user("?"), assistant("a", "!"), system()), false},
		{"only a system message", history(system()), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := summarize(t, nil, test.messages, Options{}).AwaitingAnswer; got != test.want {
				t.Errorf("AwaitingAnswer = %t, want %t", got, test.want)
			}
		})
	}
}

// reasoningOnly returns the message of a turn that ended while its model only reasoned.
func reasoningOnly() *parleyv1.Message {
	m := assistant("a", "")
	m.Reasoning, m.Status = "hm", parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
	return m
}

// TestEmptyAnswers: answers that were cut off before they said anything take no place in a summary. Those with an
// attachment or a summary do.
func TestEmptyAnswers(t *testing.T) {
	attached, summarized := reasoningOnly(), reasoningOnly()
	attached.Attachments = []*parleyv1.Attachment{{Uri: "file:1"}}
	summarized.Summary = "thought"
	tests := []struct {
		name     string
		messages []*parleyv1.Message
		want     []int32 // sequences of the recent messages
	}{
		{"at the end", history(user("?"), assistant("b", "!"), user("?"), reasoningOnly()), []int32{2, 3}},
		{"between", history(user("?"), reasoningOnly(), user("?")), []int32{1, 3}},
		{"alone", history(reasoningOnly()), nil},
		{"with an attachment", history(user("?"), attached), []int32{1, 2}},
		{"with a summary", history(user("?"), summarized), []int32{1, 2}},
		{"complete", history(user("?"), assistant("a", "")), []int32{1, 2}},
	}
	for _, test := range tests {
		s := summarize(t, nil, test.messages, Options{MessageLimit: 2})
		var got []int32
		for _, m := range s.RecentMessages {
			got = append(got, m.Sequence)
		}
		if d := cmp.Diff(test.want, got); d != "" || s.Truncated {
			t.Errorf("%s: recent messages (-want +got):\n%s, truncated = %t", test.name, d, s.Truncated)
		}
	}
}

func TestPendingToolCalls(t *testing.T) {
	tests := []struct {
		name     string
		messages []*parleyv1.Message
		want     string
	}{
		{"no calls", history(user("?")), ""},
		{"one call", history(user("?"), calls("1")), "1"},
		{"answered", history(user("?"), calls("1"), result("1")), ""},
		{"one of three answered", history(calls("1", "2", "3"), result("2")), "1 3"},
		{"oldest first", history(calls("3"), calls("1"), calls("2")), "3 1 2"},
		{"user message after the call", history(calls("1"), user("never mind")), "1"},
		{"user message before the result", history(calls("1"), user("and?"), result("1")), ""},
		{"id reused after the result", history(calls("1"), result("1"), calls("1")), "1"},
		{"id reused and answered", history(calls("1"), calls("1"), result("1")), ""},
		{"id reused without result", history(calls("1", "2"), calls("1")), "2 1"},
		{"id reused twice in one message", history(calls("1"), calls("1", "2", "1"), result("1")), "2 1"},
		{"id repeated in one message", history(calls("1", "1", "1"), result("1"), user("and?"), result("1")), "1"},
		{"more results than calls", history(calls("1"), calls("1"), result("1"), result("1")), ""},
		{"result before its id is reused", history(calls("1", "2"), result("1"), calls("1"), result("2")), "1"},
		{"result before its call", history(result("1"), calls("1")), "1"},
		{"result without call", history(user("?"), result("9")), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var ids []string
			for _, call := range summarize(t, nil, test.messages, Options{}).PendingToolCalls {
				ids = append(ids, call.GetId())
			}
			if got := strings.Join(ids, " "); got != test.want {
				t.Errorf("PendingToolCalls = %q, want %q", got, test.want)
			}
		})
	}
}

// TestShortAnswer checks that a summary with a short answer contains the question, too. A coordinator
// cannot route "yes" without it.
func TestShortAnswer(t *testing.T) {
	messages := history(user("I need shoes"), assistant("shop", "Shall I order the red ones?"), user("yes"))
	s := summarize(t, header(messages), messages, Options{MessageLimit: 3, MaxBytes: 2048})
	if d := diff(messages, s.RecentMessages); d != "" {
		t.Errorf("recent messages (-want +got):\n%s", d)
	}
	if !s.AwaitingAnswer || s.RecentAgents[0].Agent != "shop" {
		t.Errorf(`AwaitingAnswer = %t, newest agent = %q, want true, "shop"`, s.AwaitingAnswer, s.RecentAgents[0].Agent)
	}
}

// BenchmarkSummarize measures the time that a coordinator waits before it routes a message.
func BenchmarkSummarize(b *testing.B) {
	var messages []*parleyv1.Message
	words := strings.Repeat("word ", 100)
	for range 10 {
		messages = append(messages, user(words), assistant("writer", words))
	}
	plain := history(messages...)
	messages = nil
	for i := range 10 {
		messages = append(
			messages,
			user(words),
			withSummary(fmt.Sprintf("analyzed library %d", i), data("list", words), data("price", "5")),
		)
	}
	rich := history(messages...)
	for _, bench := range []struct {
		name     string
		messages []*parleyv1.Message
		o        Options
	}{
		{"plain", plain, Options{MessageLimit: 3}},
		{"plain, budget", plain, Options{MessageLimit: 3, MaxBytes: 32 << 10}},
		{"plain, truncated", plain, Options{MessageLimit: 3, MaxBytes: 200}},
		{"data and summaries", rich, Options{MessageLimit: 3}},
		{"data and summaries, 20 of them in a budget", rich, Options{MessageLimit: 20, MaxBytes: 32 << 10}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			c, frames := header(bench.messages), encode(b, bench.messages)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Summarize(c, frames, bench.o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
