package e2e

import (
	"fmt"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestLongConversation checks the calls about a conversation of 10,000 messages and 10 MiB: pages in both directions,
// the window, a search by id, a replacement of all but the newest 50 with a summary, an export and an import.
func TestLongConversation(t *testing.T) {
	skipShort(t)
	t.Parallel()
	const count, id = 10_000, "long"
	s := startServer(t, t.TempDir(), "--max-conversation-bytes=64MiB", "--max-messages=1000000")
	for first := 1; first <= count; first += 100 {
		r := &parleyv1.AppendMessagesRequest{ConversationId: id}
		for n := first; n < first+100; n++ {
			role := parleyv1.Role_ROLE_USER
			if n%2 == 0 {
				role = parleyv1.Role_ROLE_ASSISTANT
			}
			r.Messages = append(r.Messages, &parleyv1.Message{
				Id: fmt.Sprint("m", n), Role: role, Content: fmt.Sprint(n, " ", strings.Repeat("x", 1000)),
			})
		}
		if _, err := s.AppendMessages(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	wantPages(t, s, id, 1, count)
	found, err := s.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{
		ConversationId: id, MessageIds: []string{"m3", "m5000", "m10000"},
	})
	if err != nil || len(found.GetMessages()) != 3 || found.GetNextPageToken() != "" ||
		found.GetMessages()[2].GetSequence() != 3 {
		t.Errorf("ListMessages by id = %.300v, %v, want the messages 10000, 5000 and 3", found, err)
	}
	window, err := s.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: id})
	if err != nil {
		t.Fatal(err)
	}
	n := len(window.GetMessages())
	if n < 2800 || n > 3100 || int(window.GetOmittedCount())+n != count ||
		window.GetMessages()[n-1].GetSequence() != count {
		t.Errorf("GetContext = %d messages, %d omitted, want the newest 3 MiB of %d", n, window.GetOmittedCount(), count)
	}

	// Compaction: a summary and the newest 50 replace all messages, in one commit.
	replaced := compact(t, s, id)
	again := compact(t, s, id)
	if !again.GetReplayed() || again.GetConversation().GetVersion() != replaced.GetConversation().GetVersion() {
		t.Errorf("the second compaction = %v, want the first one replayed", again.GetConversation())
	}
	messages := history(t, s, id).GetMessages()
	if len(messages) != 51 || messages[0].GetContent() != "summary" || messages[50].GetContent() != replacedText(50) {
		t.Errorf("%d messages after the compaction, want a summary and 50 others", len(messages))
	}
	wantPages(t, s, id, count+1, count+51)
}

// compact replaces all messages with a summary and 50 others.
func compact(t *testing.T, s *server, id string) *parleyv1.AppendMessagesResponse {
	t.Helper()
	r := &parleyv1.AppendMessagesRequest{ConversationId: id, RequestId: "compact", ReplaceAfterSequence: new(int32(0))}
	r.Messages = append(r.Messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "summary"})
	for n := 1; n <= 50; n++ {
		r.Messages = append(r.Messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: replacedText(n)})
	}
	result, err := s.AppendMessages(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func replacedText(n int) string { return fmt.Sprint("kept ", n) }

// wantPages checks that the pages in both directions have the messages with these sequences.
func wantPages(t *testing.T, s *server, id string, first, last int32) {
	t.Helper()
	for _, ascending := range []bool{true, false} {
		next, step := first, int32(1)
		if !ascending {
			next, step = last, -1
		}
		r := &parleyv1.ListMessagesRequest{ConversationId: id, PageSize: 900, Ascending: ascending}
		for {
			page, err := s.ListMessages(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if page.GetOldestSequence() != first {
				t.Errorf("oldest_sequence = %d, want %d", page.GetOldestSequence(), first)
			}
			for _, m := range page.GetMessages() {
				if m.GetSequence() != next {
					t.Fatalf("ascending = %t: message %d, want %d", ascending, m.GetSequence(), next)
				}
				next += step
			}
			if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
				break
			}
		}
		if want := map[bool]int32{true: last + 1, false: first - 1}[ascending]; next != want {
			t.Errorf("ascending = %t: the pages ended before message %d, want %d", ascending, next, want)
		}
	}
}

// TestLongTransfer checks that an export of a conversation of more than 20 MiB can be imported, under the limit of
// memory for large conversations.
func TestLongTransfer(t *testing.T) {
	skipShort(t)
	t.Parallel()
	const limit = "--max-conversation-bytes=1GiB"
	from, to := startServer(t, t.TempDir(), limit), startServer(t, t.TempDir(), limit)
	for _, id := range []string{"a", "b", "c"} {
		for range 100 {
			r := &parleyv1.AppendMessagesRequest{
				ConversationId: id, CreateWith: &parleyv1.Conversation{Retention: &parleyv1.Retention{KeepAll: true}},
			}
			r.Messages = append(r.Messages, &parleyv1.Message{
				Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", 220<<10),
			})
			if _, err := from.AppendMessages(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	copyConversations(t, t.Context(), from, to, 3)
	for _, id := range []string{"a", "b", "c"} {
		want, err := from.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
		if err != nil {
			t.Fatal(err)
		}
		got, err := to.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
		if err != nil || got.GetConversation().GetMessageCount() != want.GetConversation().GetMessageCount() {
			t.Errorf("%s after the import = %v, %v, want %d messages", id, got.GetConversation(), err,
				want.GetConversation().GetMessageCount())
		}
	}
	fork, err := to.ForkConversation(t.Context(), &parleyv1.ForkConversationRequest{ConversationId: "a"})
	if err != nil || fork.GetConversation().GetMessageCount() != 100 {
		t.Errorf("ForkConversation(a) = %v, %v, want 100 messages", fork.GetConversation(), err)
	}
}
