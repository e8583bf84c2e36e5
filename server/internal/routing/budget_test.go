package routing

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// encoded is what a budget bounds.
func encoded(messages []*parleyv1.Message, referenced []*parleyv1.ReferencedData) int {
	return proto.Size(&parleyv1.RoutingSummary{RecentMessages: messages, ReferencedData: referenced})
}

// Two KiB over messages of ten: the newest shows as far as it fits, the rest is whole.
func TestBudgetSmallerThanAMessage(t *testing.T) {
	long := strings.Repeat("日本 ", 1500)
	messages := history(
		user(long), assistant("finder", long, data("list", long)),
		user(long), assistant("writer", long, data("essay", "1")),
	)
	c := header(messages)
	s := summarize(t, c, messages, Options{MessageLimit: 3, MaxBytes: 2048})

	if len(s.RecentMessages) != 1 || len(s.ReferencedData) != 0 || !s.Truncated {
		t.Fatalf("%d messages, %d values, truncated %t, want 1, 0, true", len(s.RecentMessages), len(s.ReferencedData), s.Truncated)
	}
	newest := s.RecentMessages[0]
	if !strings.HasPrefix(long, newest.Content) || !utf8.ValidString(newest.Content) {
		t.Errorf("content %q is no beginning of what was said", newest.Content)
	}
	if size := encoded(s.RecentMessages, nil); size > 2048 || size < 2040 {
		t.Errorf("%d bytes, want what fits of 2048", size)
	}
	if len(newest.StructuredData) != 1 || newest.Sequence != 4 || newest.Agent != "writer" {
		t.Errorf("message %v, want all of the newest but its content", newest)
	}
	if len(s.StructuredDataTypes) != 2 || s.ActiveAgent == nil {
		t.Errorf("%d types, lease %v, want 2 and the lease", len(s.StructuredDataTypes), s.ActiveAgent)
	}
}

// What a short answer refers to stands at the end of what was said before.
func TestBudgetKeepsTheQuestion(t *testing.T) {
	long := strings.Repeat("日本 ", 1500) + "Shall I order the red ones?"
	messages := history(user("I need shoes"), assistant("shop", long, data("list", "1")), user("yes"))
	s := summarize(t, header(messages), messages, Options{MessageLimit: 3, MaxBytes: 2048})

	if len(s.RecentMessages) != 2 || !s.Truncated || s.RecentMessages[1].GetContent() != "yes" {
		t.Fatalf("%d messages, truncated %t, want the answer and the end of its question", len(s.RecentMessages), s.Truncated)
	}
	question := s.RecentMessages[0]
	if !strings.HasSuffix(long, question.GetContent()) || !utf8.ValidString(question.GetContent()) || len(question.GetStructuredData()) != 1 {
		t.Errorf("of the question there is %v", question)
	}
	if size := encoded(s.RecentMessages, nil); size > 2048 || size < 2044 {
		t.Errorf("%d bytes, want what fits of 2048", size)
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
		{"all fits", encoded(recent, referenced), 3, 2},
		{"the oldest value goes", encoded(recent, referenced) - 1, 3, 1},
		{"the other value goes", encoded(recent, referenced[:1]) - 1, 3, 0},
		{"the oldest message goes", encoded(recent, nil) - 1, 2, 0},
		{"the next message goes", encoded(recent[1:], nil) - 1, 1, 0},
		{"the newest is cut", encoded(recent[2:], nil) - 1, 1, 0},
		{"nothing fits", 1, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := summarize(t, nil, messages, Options{MessageLimit: 3, MaxBytes: test.budget})
			if len(s.RecentMessages) != test.messages || len(s.ReferencedData) != test.values {
				t.Errorf("%d messages and %d values, want %d and %d",
					len(s.RecentMessages), len(s.ReferencedData), test.messages, test.values)
			}
			if want := test.name != "all fits"; s.Truncated != want {
				t.Errorf("Truncated = %t, want %t", s.Truncated, want)
			}
		})
	}
}

// A message is cut only as far as it must be, the least telling parts first.
func TestCutOrder(t *testing.T) {
	whole := func() *parleyv1.Message {
		return &parleyv1.Message{
			Sequence: 7, Role: parleyv1.Role_ROLE_ASSISTANT, Content: "words", Metadata: map[string]string{"k": "v"},
			Attachments:    []*parleyv1.Attachment{{Uri: "file:1"}, {Uri: "file:2"}},
			ToolCalls:      []*parleyv1.ToolCall{{Id: "1", Name: "tool"}},
			StructuredData: []*parleyv1.StructuredData{data("list", "1"), data("price", "2")},
			ToolResult:     &parleyv1.ToolResult{CallId: "1", Content: "result"},
		}
	}
	want := whole()
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
		got := whole()
		if !cut(got, framed(want)) {
			t.Fatalf("nothing is left, want %v", want)
		}
		if d := diff(want, got); d != "" {
			t.Errorf("cut to %d bytes (-want +got):\n%s", framed(want), d)
		}
	}
	if cut(whole(), framed(want)-1) {
		t.Error("something is left of a message that does not fit, want nothing")
	}
}

func TestBudgetIsKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		messages := drawHistory(t)
		c := header(messages)
		limit := rapid.IntRange(0, 5).Draw(t, "limit")
		full := summarize(t, c, messages, Options{MessageLimit: limit})
		newest := full.RecentMessages[max(0, len(full.RecentMessages)-1):]
		budget := rapid.OneOf(
			rapid.IntRange(1, encoded(full.RecentMessages, full.ReferencedData)+10),
			rapid.IntRange(1, encoded(newest, nil)+10),
		).Draw(t, "budget")

		got := summarize(t, c, messages, Options{MessageLimit: limit, MaxBytes: budget})
		if size := encoded(got.RecentMessages, got.ReferencedData); size > budget {
			t.Fatalf("%d bytes, budget %d", size, budget)
		}
		checkWhatIsLeft(t, full, got, budget)

		// All else is as it would be without a budget.
		got.RecentMessages, got.ReferencedData, got.Truncated = full.RecentMessages, full.ReferencedData, false
		if d := diff(full, got); d != "" {
			t.Fatalf("summary without messages and values (-full +got):\n%s", d)
		}
	})
}

// checkWhatIsLeft checks that got leaves out of full no more than the budget makes it.
func checkWhatIsLeft(t *rapid.T, full, got *parleyv1.RoutingSummary, budget int) {
	all, values := full.RecentMessages, full.ReferencedData
	lost, lostValues := len(all)-len(got.RecentMessages), len(values)-len(got.ReferencedData)
	left := &parleyv1.RoutingSummary{ReferencedData: values[:len(got.ReferencedData)]}
	if d := diff(left, &parleyv1.RoutingSummary{ReferencedData: got.ReferencedData}); d != "" {
		t.Fatalf("referenced data (-newest of full +got):\n%s", d)
	}
	if len(all) > 0 && encoded(all[len(all)-1:], nil) > budget {
		if len(got.RecentMessages) > 1 || len(got.ReferencedData) > 0 || !got.Truncated {
			t.Fatalf("more than a cut message is left: %v", got)
		}
		checkCut(t, all[len(all)-1], got.RecentMessages, budget)
		return
	}
	cutOff := ""
	if len(got.RecentMessages) > 0 {
		oldest, content := proto.CloneOf(all[lost]), got.RecentMessages[0].GetContent()
		cutOff = strings.TrimSuffix(oldest.GetContent(), content)
		if oldest.GetContent() != content && !utf8.ValidString(content) {
			t.Fatalf("%q is cut within a character", content)
		}
		oldest.Content = oldest.GetContent()[len(cutOff):]
		all = append(append(slices.Clone(all[:lost]), oldest), all[lost+1:]...)
	}
	left = &parleyv1.RoutingSummary{RecentMessages: all[lost:]}
	if d := diff(left, &parleyv1.RoutingSummary{RecentMessages: got.RecentMessages}); d != "" {
		t.Fatalf("recent messages (-newest of full +got):\n%s", d)
	}
	if want := lost+lostValues+len(cutOff) > 0; got.Truncated != want {
		t.Fatalf("Truncated = %t, want %t", got.Truncated, want)
	}
	if lost+len(cutOff) > 0 && len(got.ReferencedData) > 0 {
		t.Fatalf("a message went before the referenced data: %v", got)
	}
	if cutOff != "" {
		oldest := proto.CloneOf(all[lost])
		_, size := utf8.DecodeLastRuneInString(cutOff)
		oldest.Content = cutOff[len(cutOff)-size:] + oldest.GetContent()
		if encoded(append([]*parleyv1.Message{oldest}, all[lost+1:]...), nil) <= budget {
			t.Fatalf("more than must be is cut off: %q", cutOff)
		}
	}
	if lost > 0 {
		oldest := proto.CloneOf(all[lost-1])
		_, size := utf8.DecodeLastRuneInString(oldest.GetContent())
		oldest.Content = oldest.GetContent()[len(oldest.GetContent())-size:]
		if encoded(append([]*parleyv1.Message{oldest}, all[lost:]...), nil) <= budget {
			t.Fatalf("a message is gone of which something fits: %v", oldest)
		}
	}
	if lost == 0 && cutOff == "" && lostValues > 0 && encoded(all, values[:len(got.ReferencedData)+1]) <= budget {
		t.Fatalf("a value is gone that fits: %v", got)
	}
}

// checkCut checks that what is left of a message is a beginning of it, in whole characters.
func checkCut(t *rapid.T, whole *parleyv1.Message, left []*parleyv1.Message, budget int) {
	if len(left) == 0 {
		if budget >= 256 { // enough for all that is never cut
			t.Fatalf("nothing is left of the newest message in %d bytes", budget)
		}
		return
	}
	for _, text := range []func(*parleyv1.Message) string{
		(*parleyv1.Message).GetContent,
		func(m *parleyv1.Message) string { return m.GetToolResult().GetContent() },
	} {
		if got := text(left[0]); !strings.HasPrefix(text(whole), got) || !utf8.ValidString(got) {
			t.Fatalf("%q is no beginning of %q", got, text(whole))
		}
	}
}

// A large value that has to go leaves its room to the words beside it.
func TestCutFillsWithContent(t *testing.T) {
	m := &parleyv1.Message{
		Sequence: 1, Role: parleyv1.Role_ROLE_ASSISTANT, Content: strings.Repeat("x", 200<<10),
		StructuredData: []*parleyv1.StructuredData{{Type: "list", Value: structpb.NewStringValue(strings.Repeat("y", 50<<10))}},
	}
	s := summarize(t, nil, []*parleyv1.Message{m}, Options{MessageLimit: 3, MaxBytes: 32 << 10})
	if got := s.GetRecentMessages()[0]; len(got.GetContent()) < 31<<10 || len(got.GetStructuredData()) != 0 || !s.GetTruncated() {
		t.Errorf("%d bytes of content and %d values are left", len(got.GetContent()), len(got.GetStructuredData()))
	}
}
