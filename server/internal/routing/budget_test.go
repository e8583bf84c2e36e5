package routing

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// budgetedSize returns the size that Options.MaxBytes limits.
func budgetedSize(messages []*parleyv1.Message, referenced []*parleyv1.ReferencedData) int {
	return proto.Size(&parleyv1.RoutingSummary{RecentMessages: messages, ReferencedData: referenced})
}

// TestBudgetSmallerThanMessage summarizes messages of 10 KiB with a budget of 2 KiB. The newest
// message is truncated, and the other fields of the summary are complete.
func TestBudgetSmallerThanMessage(t *testing.T) {
	long := strings.Repeat("日本 ", 1500)
	messages := history(
		user(long), assistant("finder", long, data("list", long)),
		user(long), assistant("writer", long, data("essay", "1")),
	)
	c := header(messages)
	s := summarize(t, c, messages, Options{MessageLimit: 3, MaxBytes: 2048})

	if len(s.RecentMessages) != 1 || len(s.ReferencedData) != 0 || !s.Truncated {
		t.Fatalf(
			"got %d messages, %d values, truncated %t, want 1, 0, true",
			len(s.RecentMessages),
			len(s.ReferencedData),
			s.Truncated,
		)
	}
	newest := s.RecentMessages[0]
	if !strings.HasPrefix(long, newest.Content) || !utf8.ValidString(newest.Content) {
		t.Errorf("content = %q, want a valid prefix of the message's content", newest.Content)
	}
	if size := budgetedSize(s.RecentMessages, nil); size > 2048 || size < 2040 {
		t.Errorf("size = %d bytes, want 2040 to 2048", size)
	}
	if len(newest.StructuredData) != 1 || newest.Sequence != 4 || newest.Agent != "writer" {
		t.Errorf("message = %v, want all fields of the newest message except content", newest)
	}
	if len(s.StructuredDataTypes) != 2 || s.ActiveAgent == nil {
		t.Errorf("got %d types and lease %v, want 2 types and the lease", len(s.StructuredDataTypes), s.ActiveAgent)
	}
}

// TestBudgetKeepsQuestion checks that the end of the second newest message is kept. A short answer
// mostly refers to it.
func TestBudgetKeepsQuestion(t *testing.T) {
	long := strings.Repeat("日本 ", 1500) + "Shall I order the red ones?"
	messages := history(user("I need shoes"), assistant("shop", long, data("list", "1")), user("yes"))
	s := summarize(t, header(messages), messages, Options{MessageLimit: 3, MaxBytes: 2048})

	if len(s.RecentMessages) != 2 || !s.Truncated || s.RecentMessages[1].GetContent() != "yes" {
		t.Fatalf(
			"got %d messages, truncated %t, want the answer and the end of its question",
			len(s.RecentMessages),
			s.Truncated,
		)
	}
	question := s.RecentMessages[0]
	if !strings.HasSuffix(long, question.GetContent()) || !utf8.ValidString(question.GetContent()) ||
		len(question.GetStructuredData()) != 1 {
		t.Errorf("question = %v, want the end of its content and its structured data", question)
	}
	if size := budgetedSize(s.RecentMessages, nil); size > 2048 || size < 2044 {
		t.Errorf("size = %d bytes, want 2044 to 2048", size)
	}
}

func TestBudgetOrder(t *testing.T) {
	messages := history(
		assistant("a", "", data("oldest", "1")), assistant("a", "", data("older", "2")),
		user("3"), user("4"), user("5"),
	)
	full := summarize(t, nil, messages, Options{MessageLimit: 3})
	recent, referenced := full.RecentMessages, full.ReferencedData
	tests := []struct {
		name             string
		budget           int
		messages, values int
	}{
		{"all fits", budgetedSize(recent, referenced), 3, 2},
		{"oldest value removed", budgetedSize(recent, referenced) - 1, 3, 1},
		{"both values removed", budgetedSize(recent, referenced[:1]) - 1, 3, 0},
		{"oldest message removed", budgetedSize(recent, nil) - 1, 2, 0},
		{"next message removed", budgetedSize(recent[1:], nil) - 1, 1, 0},
		{"newest message truncated", budgetedSize(recent[2:], nil) - 1, 1, 0},
		{"nothing fits", 1, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := summarize(t, nil, messages, Options{MessageLimit: 3, MaxBytes: test.budget})
			if len(s.RecentMessages) != test.messages || len(s.ReferencedData) != test.values {
				t.Errorf("got %d messages and %d values, want %d and %d",
					len(s.RecentMessages), len(s.ReferencedData), test.messages, test.values)
			}
			if want := test.name != "all fits"; s.Truncated != want {
				t.Errorf("Truncated = %t, want %t", s.Truncated, want)
			}
		})
	}
}

// TestTruncateEndOrder checks that a message is truncated only as far as necessary, and that its
// least informative parts are removed first.
func TestTruncateEndOrder(t *testing.T) {
	complete := func() *parleyv1.Message {
		return &parleyv1.Message{
			Sequence: 7, Role: parleyv1.Role_ROLE_ASSISTANT, Content: "words", Metadata: map[string]string{"k": "v"},
			Attachments:    []*parleyv1.Attachment{{Uri: "file:1"}, {Uri: "file:2"}},
			ToolCalls:      []*parleyv1.ToolCall{{Id: "1", Name: "tool"}},
			StructuredData: []*parleyv1.StructuredData{data("list", "1"), data("price", "2")},
			ToolResult:     &parleyv1.ToolResult{CallId: "1", Content: "result"},
		}
	}
	want := complete()
	for _, step := range []func(){
		func() { want.Content = "word" },
		func() { want.Content = "" },
		func() { want.ToolResult.Content = "resul" },
		func() { want.ToolResult.Content = "" },
		func() { want.Metadata = nil },
		func() { want.Attachments = nil },
		func() { want.ToolCalls = nil },
		func() { want.StructuredData = want.StructuredData[:1] },
		func() { want.StructuredData = nil },
	} {
		step()
		got := complete()
		if !truncateEnd(got, fieldSize(want)) {
			t.Fatalf("truncateEnd(%d) = false, want %v", fieldSize(want), want)
		}
		if d := diff(want, got); d != "" {
			t.Errorf("truncateEnd(%d) (-want +got):\n%s", fieldSize(want), d)
		}
	}
	if truncateEnd(complete(), fieldSize(want)-1) {
		t.Errorf("truncateEnd(%d) = true, want false", fieldSize(want)-1)
	}
}

// TestBudget checks summaries of random histories with random budgets.
func TestBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages := drawHistory(t)
		c := header(messages)
		limit := rapid.IntRange(0, 5).Draw(t, "limit")
		full := summarize(t, c, messages, Options{MessageLimit: limit})
		newest := full.RecentMessages[max(0, len(full.RecentMessages)-1):]
		budget := rapid.OneOf(
			rapid.IntRange(1, budgetedSize(full.RecentMessages, full.ReferencedData)+10),
			rapid.IntRange(1, budgetedSize(newest, nil)+10),
		).Draw(t, "budget")

		got := summarize(t, c, messages, Options{MessageLimit: limit, MaxBytes: budget})
		if size := budgetedSize(got.RecentMessages, got.ReferencedData); size > budget {
			t.Fatalf("size = %d bytes, want at most %d", size, budget)
		}
		checkTruncation(t, full, got, budget)

		// The other fields are the same as without a budget.
		got.RecentMessages, got.ReferencedData, got.Truncated = full.RecentMessages, full.ReferencedData, false
		if d := diff(full, got); d != "" {
			t.Fatalf("summary except messages and values (-full +got):\n%s", d)
		}
	})
}

// checkTruncation checks that the budget requires everything that full has and got has not.
func checkTruncation(t *rapid.T, full, got *parleyv1.RoutingSummary, budget int) {
	all, values := full.RecentMessages, full.ReferencedData
	removed, removedValues := len(all)-len(got.RecentMessages), len(values)-len(got.ReferencedData)
	left := &parleyv1.RoutingSummary{ReferencedData: values[:len(got.ReferencedData)]}
	if d := diff(left, &parleyv1.RoutingSummary{ReferencedData: got.ReferencedData}); d != "" {
		t.Fatalf("referenced data (-newest of full +got):\n%s", d)
	}
	if len(all) > 0 && budgetedSize(all[len(all)-1:], nil) > budget {
		if len(got.RecentMessages) > 1 || len(got.ReferencedData) > 0 || !got.Truncated {
			t.Fatalf("summary = %v, want at most one truncated message", got)
		}
		checkTruncatedEnd(t, all[len(all)-1], got.RecentMessages, budget)
		return
	}
	prefix := "" // removed from the content of the oldest message that is left
	if len(got.RecentMessages) > 0 {
		oldest, content := proto.CloneOf(all[removed]), got.RecentMessages[0].GetContent()
		prefix = strings.TrimSuffix(oldest.GetContent(), content)
		if oldest.GetContent() != content && !utf8.ValidString(content) {
			t.Fatalf("content = %q, want complete characters", content)
		}
		oldest.Content = oldest.GetContent()[len(prefix):]
		all = append(append(slices.Clone(all[:removed]), oldest), all[removed+1:]...)
	}
	left = &parleyv1.RoutingSummary{RecentMessages: all[removed:]}
	if d := diff(left, &parleyv1.RoutingSummary{RecentMessages: got.RecentMessages}); d != "" {
		t.Fatalf("recent messages (-newest of full +got):\n%s", d)
	}
	if want := removed+removedValues+len(prefix) > 0; got.Truncated != want {
		t.Fatalf("Truncated = %t, want %t", got.Truncated, want)
	}
	if removed+len(prefix) > 0 && len(got.ReferencedData) > 0 {
		t.Fatalf("summary = %v, want referenced data removed before messages", got)
	}
	if prefix != "" {
		oldest := proto.CloneOf(all[removed])
		_, size := utf8.DecodeLastRuneInString(prefix)
		oldest.Content = prefix[len(prefix)-size:] + oldest.GetContent()
		if budgetedSize(append([]*parleyv1.Message{oldest}, all[removed+1:]...), nil) <= budget {
			t.Fatalf("removed %q from the oldest message, but one more character fits", prefix)
		}
	}
	if removed > 0 {
		oldest := proto.CloneOf(all[removed-1])
		_, size := utf8.DecodeLastRuneInString(oldest.GetContent())
		oldest.Content = oldest.GetContent()[len(oldest.GetContent())-size:]
		if budgetedSize(append([]*parleyv1.Message{oldest}, all[removed:]...), nil) <= budget {
			t.Fatalf("removed a message, but its last character fits: %v", oldest)
		}
	}
	if removed == 0 && prefix == "" && removedValues > 0 &&
		budgetedSize(all, values[:len(got.ReferencedData)+1]) <= budget {
		t.Fatalf("summary = %v, want one more value, which fits", got)
	}
}

// checkTruncatedEnd checks that the texts of the message that is left are prefixes of complete's
// texts, with complete characters. left has at most one message.
func checkTruncatedEnd(t *rapid.T, complete *parleyv1.Message, left []*parleyv1.Message, budget int) {
	if len(left) == 0 {
		if budget >= 256 { // enough for the fields that are never removed
			t.Fatalf("removed the newest message with a budget of %d bytes", budget)
		}
		return
	}
	for _, text := range []func(*parleyv1.Message) string{
		(*parleyv1.Message).GetContent,
		func(m *parleyv1.Message) string { return m.GetToolResult().GetContent() },
	} {
		if got := text(left[0]); !strings.HasPrefix(text(complete), got) || !utf8.ValidString(got) {
			t.Fatalf("text = %q, want a valid prefix of %q", got, text(complete))
		}
	}
}

// TestTruncateEndRestoresContent checks that the content uses the bytes of a large value that was
// removed.
func TestTruncateEndRestoresContent(t *testing.T) {
	m := &parleyv1.Message{
		Sequence: 1, Role: parleyv1.Role_ROLE_ASSISTANT, Content: strings.Repeat("x", 200<<10),
		StructuredData: []*parleyv1.StructuredData{
			{Type: "list", Value: structpb.NewStringValue(strings.Repeat("y", 50<<10))},
		},
	}
	s := summarize(t, nil, []*parleyv1.Message{m}, Options{MessageLimit: 3, MaxBytes: 32 << 10})
	if got := s.GetRecentMessages()[0]; len(got.GetContent()) < 31<<10 || len(got.GetStructuredData()) != 0 ||
		!s.GetTruncated() {
		t.Errorf(
			"got %d bytes of content and %d values, want 31 KiB and 0",
			len(got.GetContent()),
			len(got.GetStructuredData()),
		)
	}
}
